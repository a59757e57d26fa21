"""`shoal mcp`: runs, agents and their work as tools for a person's own client.

Start at `server.py`, the tools and resources. `commands.py` runs the command behind each tool, and `answers.py` bounds
what a client gets. To add a tool, write a function in `server.py` and its line in `TOOLS`.
"""
