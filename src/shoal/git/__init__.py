"""Run git on the host, so that no configured program ever runs with it.

Start at `run.py`, the one way to start git. `repository.py` inspects the user's repository, `refs.py` moves refs by
compare-and-swap, `imports.py` imports an agent's work from quarantine, `merge.py` merges outside every checkout, and
`deliver.py` moves the user's branch with its checkouts. `conflicts.py` parses the output of `git merge-tree`.
"""
