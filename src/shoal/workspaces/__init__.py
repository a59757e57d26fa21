"""Give each session files of its own: an overlay, a linked git worktree, or a plain copy.

Start at `kind.py`: a `Kind` opens a `Workspace` for a `WorkspaceOrder`. `registry.py` has the table of kinds,
`base_checkouts.py` and `object_stores.py` hold the files and objects that all sessions of a run share,
`setup_layers.py` the results of set-up, `quota.py` disks of fixed size, and `mount.py` is the only place that mounts.

To add a kind, write one file with a class that satisfies `Kind`, and add one line to `KINDS` in `registry.py`.
"""
