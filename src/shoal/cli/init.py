"""`shoal init`: a file to start from."""

import asyncio
import importlib.resources
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.agents import remedy
from shoal.cli.json_output import text
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.output import escape, program
from shoal.errors import BadInput, Broken
from shoal.git.repository import has_commit, inspect
from shoal.model.repository import Repository
from shoal.pipeline.editor_schema.schema import schema
from shoal.pipeline.names import OWN_FILE
from shoal.runs.context import exclude_state
from shoal.sessions.clients import ClientStatus, standings
from shoal.store.paths import StatePaths


@dataclass(frozen=True, slots=True, kw_only=True)
class InitResult:
    """What `shoal init` came to: the file, the clients that are installed, and whether there is a commit."""

    file: Path
    clients: Sequence[ClientStatus]
    has_commit: bool


def start_lines(made: InitResult, program: str) -> Iterator[str]:
    """Say what was written, which clients are here, and what to type next."""
    name = made.file.name
    yield f"wrote {escape(str(made.file))}"
    if ready := [one.agent for one in made.clients if one.is_ready]:
        yield f"agents that are ready: {', '.join(ready)}"
    for one in made.clients:
        if not one.is_ready:
            yield f"{one.agent} is installed, but {escape(remedy(one))}"
    yield ""
    yield f"1. put your agents and steps into it, then `{program} validate {name}`"
    yield f"2. `{program} run --dry-run` shows what would happen"
    yield f"3. `{program} run` does it; the work comes back as branches"
    if not made.has_commit:
        remedied = f"`git add {name}`, then `git commit -m Start`"
        yield f"`{program} run` starts from a commit, and there is none yet: {remedied}"


SCHEMA = "schema.json"
BEFORE = "\n# A role:"
"""What follows the agents in the starter."""


def command(
    force: Annotated[bool, typer.Option("--force", help="Write over a shoal.yaml that is there.")] = False,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """Write a commented shoal.yaml to start from.

    It names the agents that are installed here, and runs as it is.
    """
    made = asyncio.run(_start(repo, force=force))
    if json:
        output.print_out(text({"file": str(made.file), "clients": [_fields(one) for one in made.clients]}))
    else:
        output.print_out("\n".join(start_lines(made, program())))
    return 0


async def _start(folder: Path, *, force: bool) -> InitResult:
    found = [one for one in await standings(None, os.environ) if one.found.path is not None]
    repository = await inspect(folder, os.environ)
    file = _write_file(repository, starter(found), force=force)
    return InitResult(file=file, clients=found, has_commit=await has_commit(repository))


def starter(found: Sequence[ClientStatus]) -> str:
    """Make the text of the file, with a word on each client that is installed: they need no description."""
    whole = importlib.resources.files("shoal.cli").joinpath("starter.yaml").read_text()
    head, _, rest = whole.partition(BEFORE)
    return f"{head}{''.join(map(_agent, found))}{BEFORE}{rest}"


def _agent(one: ClientStatus) -> str:
    """Say how a client is used, and what it lacks."""
    lack = "" if one.is_ready else f" (not yet: {remedy(one)})"
    lines = (
        f"{one.agent} is installed: say `agent: {one.agent}` in a step{lack}. To say more about it:",
        f"{one.agent}: {{adapter: {one.agent}, timeout: 30m}}",
    )
    return "".join(f"  # {line}\n" for line in lines)


def _write_file(repository: Repository, content: str, *, force: bool) -> Path:
    """Write the file to the top of the repository, and the schema where its first line says that it lies."""
    file = repository.top / OWN_FILE
    if not force and (file.exists() or file.is_symlink()):
        raise BadInput(f"{file} is there already; `shoal validate` checks it, and --force writes over it")
    paths = StatePaths.of(repository.home)
    paths.create()
    exclude_state(repository)
    _replace(paths.root / SCHEMA, text(schema()) + "\n")
    _replace(file, content)
    return file


def _replace(file: Path, content: str) -> None:
    """Write *file* anew; a link in its place is replaced, never followed."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.", delete=False) as new:
            new.write(content)
        Path(new.name).chmod(0o644)
        Path(new.name).replace(file)
    except OSError as error:
        raise Broken(f"{file} cannot be written: {error.strerror}") from error


def _fields(one: ClientStatus) -> dict[str, object]:
    return {"name": one.agent, "ready": one.is_ready, "lacks": remedy(one) or None}
