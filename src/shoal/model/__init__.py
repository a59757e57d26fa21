"""Frozen values that every other package shares; nothing here reads, writes or starts anything.

Start with `plan.py` (what a run does), `results.py` (its outcome) and `events.py` (what is recorded).
To add an event, add its class to `events.Event` and handle it in `store.fold`.
"""
