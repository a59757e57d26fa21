"""Run git on the host, so that nothing that anybody configured runs with it.

Start at `run.py`, the one way to start git. `repository.py` inspects the user's repository, `refs.py` moves refs by
compare-and-swap, `imports.py` takes an agent's work from quarantine, `merge.py` merges beside every checkout, and
`deliver.py` moves the user's branch with its checkouts. `conflicts.py` reads what `git merge-tree` prints.
"""
