"""`shoal init`: a file to start from."""

import asyncio
import importlib.resources
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.document import text
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.program import program
from shoal.cli.render.agents import remedy
from shoal.cli.render.init import Started, started_lines
from shoal.engine.client_trial import Standing, standings
from shoal.engine.prepare import exclude_state
from shoal.errors import BadInput, Broken
from shoal.git.repository import has_commit, inspect
from shoal.model.repository import Repository
from shoal.pipeline.own_file import OWN_FILE
from shoal.pipeline.schema import schema
from shoal.store.paths import StatePaths

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
    made = asyncio.run(_started(repo, force=force))
    if json:
        output.say(text({"file": str(made.file), "clients": [_fields(one) for one in made.clients]}))
    else:
        output.say("\n".join(started_lines(made, program())))
    return 0


async def _started(folder: Path, *, force: bool) -> Started:
    found = [one for one in await standings(None, os.environ) if one.found.path is not None]
    repository = await inspect(folder, os.environ)
    file = _written(repository, starter(found), force=force)
    return Started(file=file, clients=found, has_commit=await has_commit(repository))


def starter(found: Sequence[Standing]) -> str:
    """Make the text of the file, with a word on each client that is installed: they need no description."""
    whole = importlib.resources.files("shoal.cli").joinpath("starter.yaml").read_text()
    head, _, rest = whole.partition(BEFORE)
    return f"{head}{''.join(map(_agent, found))}{BEFORE}{rest}"


def _agent(one: Standing) -> str:
    """Say how a client is used, and what it lacks."""
    lack = "" if one.is_ready else f" (not yet: {remedy(one)})"
    lines = (
        f"{one.agent} is installed: say `agent: {one.agent}` in a step{lack}. To say more about it:",
        f"{one.agent}: {{adapter: {one.agent}, timeout: 30m}}",
    )
    return "".join(f"  # {line}\n" for line in lines)


def _written(repository: Repository, content: str, *, force: bool) -> Path:
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


def _fields(one: Standing) -> dict[str, object]:
    return {"name": one.agent, "ready": one.is_ready, "lacks": remedy(one) or None}
