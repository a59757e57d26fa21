"""Set-up: make a workspace ready once, as a layer below the agents' own files. Start at `prepare.py`."""
