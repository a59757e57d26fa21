"""`shoal mcp`: runs and agents as tools for your own agent client."""

import asyncio
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Repo
from shoal.cli.output import escape
from shoal.errors import BadInput, Unavailable

if TYPE_CHECKING:
    from shoal.mcp.server import Server

Action = Annotated[
    Literal["serve", "install", "uninstall"],
    typer.Argument(help="`install` and `uninstall` change the settings of clients.", show_default=False),
]
Clients = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CLIENT", help="claude, codex, gemini, goose, opencode, copilot or cursor.", show_default=False
    ),
]
Http = Annotated[bool, typer.Option("--http", help="Serve on a port of this machine, to who has the token.")]
Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port for --http; 0 takes any free one.")]
Print = Annotated[bool, typer.Option("--print", help="With install: only show what would be written.")]


def command(
    action: Action = "serve",
    clients: Clients = None,
    http: Http = False,
    port: Port = 0,
    print_only: Print = False,
    repo: Repo = HERE,
) -> int:
    """Serve runs, logs, diffs and merges to your own agent client.

    It speaks MCP on stdin and stdout, and the client starts and ends it. To tell your client about it: `shoal mcp
    install claude`.
    """
    if action != "serve":
        from shoal.cli.mcp_install import change_clients

        if http or port:
            raise BadInput(f"`shoal mcp {action}` takes no --http: it adds a server that the client itself starts")
        pinned = None if repo == HERE else repo.resolve()
        return change_clients(clients or (), pinned, is_added=action == "install", print_only=print_only)
    if clients or print_only:
        raise BadInput("name a client, and --print, after `shoal mcp install`")
    if port and not http:
        raise BadInput("--port is for --http")
    try:
        from shoal.mcp.server import make_server
    except ImportError as missing:
        raise Unavailable("shoal mcp", f"{missing.name} is not installed", "run: pip install 'shoal[mcp]'") from None
    server = make_server(repo.resolve(), os.environ)
    if http:
        return asyncio.run(_serve_http(server, repo, port))
    server.run("stdio")
    sys.stdout = io.StringIO()  # the library has closed the real one
    return 0


async def _serve_http(server: "Server", repo: Path, port: int) -> int:
    from shoal.cli.repository import find_place
    from shoal.mcp.http import listen, serve_http
    from shoal.store.tokens import keep_token

    place = await find_place(repo)
    file, token = keep_token(place.paths)
    with listen(port, token) as listening:
        output.print_out(f"shoal mcp of {escape(str(place.paths.root.parent))}: {listening.address}")
        output.print_out(f"clients need `Authorization: Bearer` and the token in {escape(str(file))}; Ctrl-C ends it")
        await serve_http(server, listening)
    return 0
