"""`shoal mcp`: runs and agents as tools for your own agent client."""

import io
import os
import sys

from shoal.cli.options import HERE, Repo
from shoal.errors import Unavailable


def command(repo: Repo = HERE) -> int:
    """Serve runs, logs, diffs and merges to your own agent client.

    It speaks MCP on stdin and stdout. For example: `claude mcp add shoal -- shoal mcp`, or `codex mcp add shoal --
    shoal mcp`. The client ends it.
    """
    try:
        from shoal.mcp.server import make_server
    except ImportError as missing:
        raise Unavailable("shoal mcp", f"{missing.name} is not installed", "run: pip install 'shoal[mcp]'") from None
    make_server(repo.resolve(), os.environ).run("stdio")
    sys.stdout = io.StringIO()  # the library has closed the real one
    return 0
