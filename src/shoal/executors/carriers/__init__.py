"""Carriers of the node protocol: each opens one stream of bytes to `shoal node --stdio` on a node.

Start at `kind.py`. To add a carrier, write a file with a function `open_carrier`, and add its line to `registry.py`.
"""
