"""Where sessions run.

Start at `kind.py`, the protocol; `local.py` runs sessions on this machine. To add an executor, write a file with a
class that satisfies the protocol, add it to the contract tests in `tests/executors/`, and pass it to `WorkerRunner`.
"""
