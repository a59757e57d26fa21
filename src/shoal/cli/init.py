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
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.output import escape, program
from shoal.errors import BadInput, Broken
from shoal.git.repository import has_commit, inspect
from shoal.model.repository import Repository
from shoal.pipeline.editor_schema.schema import schema
from shoal.pipeline.names import OWN_FILE
from shoal.runs.context import exclude_state
from shoal.sessions.clients import ClientStatus, check_clients
from shoal.store.documents import text
from shoal.store.paths import StatePaths


@dataclass(frozen=True, slots=True, kw_only=True)
class InitResult:
    """The result of `shoal init`: the file, the installed clients, and whether there is a commit."""

    file: Path
    clients: Sequence[ClientStatus]
    has_commit: bool


def start_lines(made: InitResult, program: str) -> Iterator[str]:
    """Describe what was written, which clients are installed, and what to do next."""
    name = made.file.name
    yield f"wrote {escape(str(made.file))}"
    if ready := [status.agent for status in made.clients if status.is_ready]:
        yield f"ready agents: {', '.join(ready)}"
    for status in made.clients:
        if not status.is_ready:
            yield f"{status.agent} is installed, but {escape(remedy(status))}"
    yield ""
    yield f"1. add your agents and steps, then run `{program} validate {name}`"
    yield f"2. `{program} run --dry-run` shows what would happen"
    yield f"3. `{program} run` runs it; the work comes back as branches"
    if not made.has_commit:
        remedied = f"`git add {name}`, then `git commit -m Start`"
        yield f"`{program} run` needs a commit to start from, and there is none yet: {remedied}"


SCHEMA = "schema.json"
BEFORE = "\n# A role:"
"""What follows the agents in the starter file."""


def command(
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing shoal.yaml.")] = False,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """Write a commented shoal.yaml to start from.

    It lists the agents installed on this machine, and runs as it is.
    """
    made = asyncio.run(_start(repo, force=force))
    if json:
        output.print_out(text({"file": str(made.file), "clients": [_fields(status) for status in made.clients]}))
    else:
        output.print_out("\n".join(start_lines(made, program())))
    return 0


async def _start(folder: Path, *, force: bool) -> InitResult:
    found = [status for status in await check_clients(None, os.environ) if status.found.path is not None]
    repository = await inspect(folder, os.environ)
    file = _write_file(repository, starter(found), force=force)
    return InitResult(file=file, clients=found, has_commit=await has_commit(repository))


def starter(found: Sequence[ClientStatus]) -> str:
    """Make the text of the file, with a comment on each installed client."""
    whole = importlib.resources.files("shoal.cli").joinpath("starter.yaml").read_text()
    head, _, rest = whole.partition(BEFORE)
    return f"{head}{''.join(map(_agent, found))}{BEFORE}{rest}"


def _agent(status: ClientStatus) -> str:
    """Describe how to use a client, and what it still needs."""
    lack = "" if status.is_ready else f" (not yet: {remedy(status)})"
    lines = (
        f"{status.agent} is installed: use `agent: {status.agent}` in a step{lack}. To configure it:",
        f"{status.agent}: {{adapter: {status.agent}, timeout: 30m}}",
    )
    return "".join(f"  # {line}\n" for line in lines)


def _write_file(repository: Repository, content: str, *, force: bool) -> Path:
    """Write the file at the top of the repository, and the schema where its first line expects it."""
    file = repository.top / OWN_FILE
    if not force and (file.exists() or file.is_symlink()):
        raise BadInput(f"{file} already exists; check it with `shoal validate`, or overwrite it with --force")
    paths = StatePaths.of(repository.home)
    paths.create()
    exclude_state(repository)
    _replace(paths.root / SCHEMA, text(schema()) + "\n")
    _replace(file, content)
    return file


def _replace(file: Path, content: str) -> None:
    """Replace *file*; a symbolic link is replaced, never followed."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.", delete=False) as new:
            new.write(content)
        Path(new.name).chmod(0o644)
        Path(new.name).replace(file)
    except OSError as error:
        raise Broken(f"{file} could not be written: {error.strerror}") from error


def _fields(status: ClientStatus) -> dict[str, object]:
    return {"name": status.agent, "ready": status.is_ready, "lacks": remedy(status) or None}
