"""Bring the work of sessions together on one branch, beside every checkout, and deliver it where that was asked.

Start at `merge.py`. `queue.py` verifies and lands one candidate after the other, `conflicts.py` resolves by rule or by
an agent, `deliver.py` moves the user's branch, and `undo.py` takes a merge back.
"""
