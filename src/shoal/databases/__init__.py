"""`database_strategy: shared`: one PostgreSQL server for all agents of a run, and a role and a schema for each.

Start at `shared.py`: `open_shared_database` holds the server, or the user's own, for as long as a run lasts.
`own_server.py` starts one, `admin.py` creates and drops what sessions get, and `door.py` is the only way from a
sandbox to it. `intents.py` notes what a killed run leaves.
"""
