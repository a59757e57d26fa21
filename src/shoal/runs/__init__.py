"""A whole run: from a person's request to the report.

Start at `run.py`: `run` is the main path of a pipeline. `coordinator.py` is the same for a Python program,
`preflight.py` contains everything that is refused before an agent starts, `context.py` opens every run, and
`recovery.py` imports what a killed Shoal left behind.
"""
