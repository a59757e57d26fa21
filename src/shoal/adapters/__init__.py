"""Kinds of agent, one file each: an adapter turns a task into a command and reads its output, and runs nothing.

Start with `kind.py` (the protocol) and `registry.py` (the table of names). To add a kind in another package, write one
file and one entry point in the group `shoal.adapters`. To add one here, write its file, its line in
`registry.ADAPTERS` and, for a client, its name in `model.agent.CLIENTS`.
"""
