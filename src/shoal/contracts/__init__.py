"""What the work of a step must satisfy before it counts.

Start at `check.py`. Each type of contract is a module in `types/` and a line in `pipeline/keys/contract_types.py`; to
add one, write both. `workbench.py` is what a check may ask of the work, and `committed_work.py` answers it.
"""
