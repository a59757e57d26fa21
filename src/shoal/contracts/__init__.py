"""The requirements that the work of a step must meet to count as a success.

Start at `check.py`. Each type of contract is a module in `types/` and a line in `pipeline/keys/contract_types.py`; to
add one, write both. `workbench.py` defines what a check may do with the work, and `committed_work.py` implements it.
"""
