"""The types of contract, one module each: which keys one has in YAML, how its value is built, how it is checked.

The table of them is `shoal/pipeline/keys/contract_types.py`: to add a type, write its module here and its line there.
Every pipeline file loads these modules, so they import what only a check needs inside of `check`.
"""
