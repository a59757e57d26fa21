"""The JSON Schema that `shoal schema` prints for editors, made from the shapes of a pipeline file.

Start with `schema.py`; `values.py` describes what validators accept where their types cannot say it.
"""
