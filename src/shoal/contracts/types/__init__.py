"""The types of contract, one module each: its keys in YAML, how its value is built, and how it is checked.

The table of them is `shoal/pipeline/keys/contract_types.py`: to add a type, write its module here and its line there.
Every pipeline file loads these modules, so imports that only a check needs are inside `check`.
"""
