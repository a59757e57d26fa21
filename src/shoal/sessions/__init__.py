"""One agent in its own workspace and sandbox, from start to recorded result.

Start at `session.py`: open the session directory, run the agent, keep its work, record the result. `sandboxed.py` runs
a command in a sandbox, `seal.py` turns the files that an agent left into a commit, and `context.py` is what all
sessions of a run share.
"""
