"""`shoal agents`: the agent clients that Shoal can drive, and how each stands here."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.json_output import text
from shoal.cli.options import Json
from shoal.cli.output import Paint, escape
from shoal.cli.render.columns import columns, heading, join_cells
from shoal.errors import Unavailable
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.clients import ClientStatus, spelt, standings
from shoal.sessions.host_probe import wall

HEAD = ("agent", "ready", "version", "login", "wall", "works")


def agent_lines(found: Sequence[ClientStatus], wall: str | None, paint: Paint) -> Iterator[str]:
    """Give a row for each client, and below one that is not ready what to run."""
    head, *rows = columns([HEAD, *(_row(one, wall) for one in found)])
    yield heading(head, paint)
    for one, row in zip(found, rows, strict=True):
        row[1] = paint(row[1], "good" if one.is_ready else "dim")
        yield join_cells(row)
        if why := remedy(one):
            yield paint(f"    {why}", "dim" if one.found.path is None else "warn")
    yield ""
    yield "any other: `adapter: acp` with its command, or `adapter: command`; `shoal init` writes an example"


def _row(one: ClientStatus, wall: str | None) -> tuple[str, ...]:
    if one.found.path is None:
        return (
            escape(one.agent),
            "no",
            "-",
            escape(one.found.login or "-"),
            "-",
            ", ".join(one.client.knows),
        )
    held = "not tried" if wall is None else "no" if one.trouble else wall
    login = one.found.login or ("-" if one.client.needs_login else "not needed")
    return (
        escape(one.agent),
        "yes" if one.is_ready else "no",
        spelt(one.found.version) if one.found.version else "?",
        escape(login),
        held,
        ", ".join(one.client.knows),
    )


def remedy(one: ClientStatus) -> str:
    """Say in one line what keeps it from being ready."""
    found, client = one.found, one.client
    if found.path is None:
        return escape(one.trouble) if one.trouble else f"not installed: {client.install}"
    if client.is_too_old(found.version):
        return f"older than {spelt(client.oldest)}: {client.install}"
    if one.trouble:
        return escape(one.trouble)
    if found.login is None and client.needs_login:
        return f"no login: {client.login}"
    return ""


BUBBLEWRAP = "bubblewrap"


def command(
    quick: Annotated[bool, typer.Option("--quick", help="Do not try them behind the wall.")] = False,
    json: Json = False,
) -> int:
    """List the agent clients, and what each of them lacks here.

    Version, login, whether it runs behind the wall, and what works with it. Nothing is started but `--version` of each.
    """
    wall_name, found = asyncio.run(_find_clients(quick=quick))
    if json:
        output.print_out(text({"wall": wall_name, "agents": [_fields(one) for one in found]}))
    else:
        output.print_out("\n".join(agent_lines(found, wall_name, output.paint())))
    return 0


async def _find_clients(*, quick: bool) -> tuple[str | None, list[ClientStatus]]:
    sandbox: Sandbox | None = None
    if not quick:
        try:
            sandbox = await wall(BUBBLEWRAP)
        except Unavailable as error:
            output.print_err(f"shoal: {error}")
    return (sandbox.name if sandbox else None), await standings(sandbox, os.environ)


def _fields(one: ClientStatus) -> dict[str, object]:
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
