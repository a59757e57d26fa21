"""The side of a node: what `shoal node --stdio` does for a coordinator on another machine.

Start at `process.py`; `mirror.py` keeps the repository, `node_session.py` runs a session as this machine would run its
own, and `model_gateway.py` lets its agent ask its models through the coordinator.
"""
