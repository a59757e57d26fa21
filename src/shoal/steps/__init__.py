"""The stages of a plan and the workers of a step.

Start at `stages.py`, which runs the stages in the order of their needs; `step.py` runs one step, `workers.py` makes its
workers and `attempts.py` runs each of them: a slot, admission, a session, retries.
"""
