"""Hold agents to their limits of memory, CPU, processes and disk.

Start at `kind.py`: an `Enforcer` makes a `LimitGroup` for each session. `choose.py` has the table of kinds and tries
them, the best first; `cgroups.py` serves both versions of control groups, `polling.py` works anywhere, `disk.py`
measures disk use, and `guard.py` starts the process that cleans up after us.

To add an enforcer, write one file with a class that satisfies `Enforcer`, and add one line to `KINDS` in `choose.py`.
"""
