"""`shoal agents`: the agent clients that Shoal can run, and whether each is ready on this host."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import Json
from shoal.cli.output import Paint, escape
from shoal.cli.render.columns import columns, heading, join_cells
from shoal.errors import Unavailable
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.clients import ClientStatus, check_clients, format_version
from shoal.sessions.host_probe import probe_sandbox
from shoal.store.documents import text

HEAD = ("agent", "ready", "version", "login", "sandbox", "works")


def agent_lines(found: Sequence[ClientStatus], sandbox: str | None, paint: Paint) -> Iterator[str]:
    """Yield a row for each client, and what to run for each that is not ready."""
    head, *rows = columns([HEAD, *(_row(status, sandbox) for status in found)])
    yield heading(head, paint)
    for status, row in zip(found, rows, strict=True):
        row[1] = paint(row[1], "good" if status.is_ready else "dim")
        yield join_cells(row)
        if why := remedy(status) or _network_hint(status):
            yield paint(f"    {why}", "dim" if status.found.path is None else "warn")
    yield ""
    yield "other agents: use `adapter: acp` or `adapter: command`; `shoal init` writes an example"


def _row(status: ClientStatus, sandbox: str | None) -> tuple[str, ...]:
    if status.found.path is None:
        return (
            escape(status.agent),
            "no",
            "-",
            escape(status.found.login or "-"),
            "-",
            ", ".join(status.client.knows),
        )
    held = "not tried" if sandbox is None else "no" if status.trouble else sandbox
    login = status.found.login or ("-" if status.client.needs_login else "not needed")
    return (
        escape(status.agent),
        "yes" if status.is_ready else "no",
        format_version(status.found.version) if status.found.version else "?",
        escape(login),
        held,
        ", ".join(status.client.knows),
    )


def remedy(status: ClientStatus) -> str:
    """Return in one line what a client still needs."""
    found, client = status.found, status.client
    if found.path is None:
        return escape(status.trouble) if status.trouble else f"not installed: {client.install}"
    if client.is_too_old(found.version):
        return f"older than {format_version(client.oldest)}: {client.install}"
    if status.trouble:
        return escape(status.trouble)
    if found.login is None and client.needs_login:
        return f"no login: {client.login}"
    return ""


def _network_hint(status: ClientStatus) -> str:
    """Say what a client that has a login and no key needs: the gateway uses a login only if asked to."""
    login, client = status.found.login, status.client
    if login is None or login.startswith("$") or not (client.needs_login and client.upstreams):
        return ""
    instead = f"`--login {client.held_login}`" if client.held_login else "`--network host`"
    return f"a login without an API key: run it with {instead}, or set a key"


BUBBLEWRAP = "bubblewrap"


def command(
    quick: Annotated[bool, typer.Option("--quick", help="Skip the test in the sandbox.")] = False,
    json: Json = False,
) -> int:
    """List the agent clients, and what each still needs.

    Shows version, login, whether it runs in the sandbox, and which features work. Runs only `--version` of each.
    """
    sandbox_name, found = asyncio.run(_find_clients(quick=quick))
    if json:
        output.print_out(text({"wall": sandbox_name, "agents": [_fields(status) for status in found]}))
    else:
        output.print_out("\n".join(agent_lines(found, sandbox_name, output.paint())))
    return 0


async def _find_clients(*, quick: bool) -> tuple[str | None, list[ClientStatus]]:
    sandbox: Sandbox | None = None
    if not quick:
        try:
            sandbox = await probe_sandbox(BUBBLEWRAP, os.environ)
        except Unavailable as error:
            output.print_err(f"shoal: {error}")
    return (sandbox.name if sandbox else None), await check_clients(sandbox, os.environ)


def _fields(status: ClientStatus) -> dict[str, object]:
    found, client = status.found, status.client
    return {
        "agent": status.agent,
        "ready": status.is_ready,
        "installed": found.path is not None,
        "path": str(found.path) if found.path else None,
        "version": format_version(found.version) if found.version else None,
        "oldest": format_version(client.oldest) if client.oldest else None,
        "login": found.login,
        "trouble": status.trouble,
        "knows": list(client.knows),
        "install": client.install,
        "log_in": client.login,
    }
