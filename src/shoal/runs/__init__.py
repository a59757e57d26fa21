"""A whole run: from a person's request to the report.

Start at `run.py`: `run` is the main path of a pipeline. `coordinator.py` is the same for a Python program,
`preflight.py` contains everything that is refused before an agent starts, and `context.py` opens every run.

After a kill, `killed_sessions.py` finds what is left and `recovery.py` imports its work. `resume.py` continues a run.
`clean.py` is `shoal clean`, and `removable.py` says what it may remove.
"""
