"""`shoal agents`: the agent clients that Shoal can drive, and how each stands here."""

import asyncio
import os
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.document import text
from shoal.cli.options import Json
from shoal.cli.render.agents import agent_lines
from shoal.engine.client_trial import Standing, standings
from shoal.engine.clients import spelt
from shoal.engine.ground import wall
from shoal.errors import Unavailable
from shoal.sandboxes.kind import Sandbox

BUBBLEWRAP = "bubblewrap"


def command(
    quick: Annotated[bool, typer.Option("--quick", help="Do not try them behind the wall.")] = False,
    json: Json = False,
) -> int:
    """List the agent clients, and what each of them lacks here.

    Version, login, whether it runs behind the wall, and what works with it. Nothing is started but `--version` of each.
    """
    wall_name, found = asyncio.run(_found(quick=quick))
    if json:
        output.say(text({"wall": wall_name, "agents": [_fields(one) for one in found]}))
    else:
        output.say("\n".join(agent_lines(found, wall_name, output.paint())))
    return 0


async def _found(*, quick: bool) -> tuple[str | None, list[Standing]]:
    sandbox: Sandbox | None = None
    if not quick:
        try:
            sandbox = await wall(BUBBLEWRAP)
        except Unavailable as error:
            output.tell(f"shoal: {error}")
    return (sandbox.name if sandbox else None), await standings(sandbox, os.environ)


def _fields(one: Standing) -> dict[str, object]:
    found, client = one.found, one.client
    return {
        "agent": one.agent,
        "ready": one.is_ready,
        "installed": found.path is not None,
        "path": str(found.path) if found.path else None,
        "version": spelt(found.version) if found.version else None,
        "oldest": spelt(client.oldest) if client.oldest else None,
        "login": found.login,
        "trouble": one.trouble,
        "knows": list(client.knows),
        "install": client.install,
        "log_in": client.login,
    }
