"""What agents of a run say to each other and start: the tools that they call from their sandboxes, and their messages.

`table.py` lists the tools; to add one, write a function and a line there. `hub.py` knows who is there, `server.py`
answers their calls. Who calls is known from the sandbox that a connection comes from.
"""
