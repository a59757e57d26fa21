"""Read a pipeline file into a plan. This is the only package that reads YAML.

Start with `load.py` (file to checked document) and `plan.py` (document to plan). `yaml_reader.py` builds the tree,
`shape.py` and `keys/` say which keys there are, and `check.py` and `graph_checks.py` find mistakes across keys.
To add a key, add a field with a docstring to its shape; rules of its own go into a file in `keys/`.
"""
