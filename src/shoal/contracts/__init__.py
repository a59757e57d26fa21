"""What the work of a step must satisfy before it counts.

Start at `check.py`: each type of contract has one function there, or a file of its own where it needs more.
"""
