"""The page of `shoal agents`."""

from collections.abc import Iterator, Sequence

from shoal.cli.output import Paint
from shoal.cli.plain import plain
from shoal.cli.render.columns import columns, heading, joined
from shoal.engine.client_trial import Standing
from shoal.engine.clients import spelt

HEAD = ("agent", "ready", "version", "login", "wall", "works")


def agent_lines(found: Sequence[Standing], wall: str | None, paint: Paint) -> Iterator[str]:
    """Give a row for each client, and below one that is not ready what to run."""
    head, *rows = columns([HEAD, *(_row(one, wall) for one in found)])
    yield heading(head, paint)
    for one, row in zip(found, rows, strict=True):
        row[1] = paint(row[1], "good" if one.is_ready else "dim")
        yield joined(row)
        if why := remedy(one):
            yield paint(f"    {why}", "dim" if one.found.path is None else "warn")
    yield ""
    yield "any other: `adapter: acp` with its command, or `adapter: command`; see docs/agents.md"


def _row(one: Standing, wall: str | None) -> tuple[str, ...]:
    if one.found.path is None:
        return plain(one.agent), "no", "-", plain(one.found.login or "-"), "-", ", ".join(one.client.knows)
    held = "not tried" if wall is None else "no" if one.trouble else wall
    login = one.found.login or ("-" if one.client.needs_login else "not needed")
    return (
        plain(one.agent),
        "yes" if one.is_ready else "no",
        spelt(one.found.version) if one.found.version else "?",
        plain(login),
        held,
        ", ".join(one.client.knows),
    )


def remedy(one: Standing) -> str:
    """Say in one line what keeps it from being ready."""
    found, client = one.found, one.client
    if found.path is None:
        return plain(one.trouble) if one.trouble else f"not installed: {client.install}"
    if client.is_too_old(found.version):
        return f"older than {spelt(client.oldest)}: {client.install}"
    if one.trouble:
        return plain(one.trouble)
    if found.login is None and client.needs_login:
        return f"no login: {client.login}"
    return ""
