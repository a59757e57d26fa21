"""Everything between an agent without a network and the outside: model calls, allowed hosts, rate limits, budgets.

Start at `gateway.py`, the coordinator's side. `listen_program.py` makes listeners in the networks of sandboxes,
`process.py` is the process that answers there and alone has the keys, `server.py` reads requests, `providers.py` says
which of them may pass, and `upstream.py` passes them on.
"""
