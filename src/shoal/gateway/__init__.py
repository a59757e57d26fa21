"""Everything between an agent without a network and the outside: model calls, allowed hosts, rate limits, budgets.

Start at `gateway.py`, the coordinator's side. `listen_program.py` makes listeners in the networks of sandboxes,
`process.py` is the process that answers there and alone has the keys, `server.py` reads requests, `providers.py` says
which of them may pass, and `upstream_connection.py` passes them on. `find_upstreams.py` finds the models that the
user's file names or the environment has a key for.

To add a wire format, write its `Provider` in `providers.py` and, in `meters.py`, the function that reads its usage; add
its name to `model.gateway.FORMATS`. To add a provider that speaks a known format, add its name to
`model.gateway.USUAL_FORMATS` and its address to `USUAL` in `find_upstreams.py`.
"""
