"""Keys of a pipeline file with rules of their own, one file per key.

`shape.py` refers to the shapes here. To add one, write its shape and its checks here and use it in `shape.py`.
"""
