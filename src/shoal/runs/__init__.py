"""A whole run: from what a person asked for to the report.

Start at `run.py`: `run` is the main path of a pipeline. `coordinator.py` is the same for a Python program,
`preflight.py` holds everything that is refused before an agent starts, `context.py` opens every run, and
`recovery.py` brings in what a killed Shoal left behind.
"""
