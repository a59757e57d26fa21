"""Merge the work of sessions into one integration branch, outside every checkout, and deliver it on request.

Start at `merge.py`, which reads as a list. `candidates.py` selects the sessions, `queue.py` verifies and lands them,
`commits.py` writes the commits of each strategy, `conflicts.py` resolves what conflicts by the rules in `resolvers.py`,
`deliver.py` moves the user's branch, and `undo.py` takes a merge back.

To add a strategy, add a case to `CommitBuilder.join`; to add a conflict rule, a case to `resolvers.resolve`.
"""
