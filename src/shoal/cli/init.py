"""`shoal init`: a file to start from."""

import asyncio
import importlib.resources
import json as writer
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.clients import Client, installed
from shoal.cli.document import text
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.planning import OWN_FILE
from shoal.cli.program import program
from shoal.cli.render.init import started_lines
from shoal.engine.prepare import exclude_state
from shoal.errors import BadInput, Broken
from shoal.git.repository import inspect
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
    found = installed(os.environ)
    file = asyncio.run(_written(repo, starter(found, os.environ), force=force))
    if json:
        output.say(text({"file": str(file), "clients": [_fields(one) for one in found]}))
    else:
        output.say("\n".join(started_lines(file, found, os.environ, program())))
    return 0


def starter(found: Sequence[Client], environ: Mapping[str, str]) -> str:
    """Make the text of the file, with an agent for each client that can run and a comment for each that cannot."""
    whole = importlib.resources.files("shoal.cli").joinpath("starter.yaml").read_text()
    head, _, rest = whole.partition(BEFORE)
    known = "".join(_agent(client, environ) for client in found if client.command)
    others = [client.name for client in found if not client.command]
    later = f"  # Found here too: {', '.join(others)}; adapters for them come later.\n" if others else ""
    return f"{head}{known}{later}{BEFORE}{rest}"


def _agent(client: Client, environ: Mapping[str, str]) -> str:
    """Write one agent, as a comment where something that it needs is not set."""
    env = {**{key: {"from": key} for key in client.keys}, **client.settings}
    lines = [
        f"{client.name}:",
        "  adapter: command",
        f"  command: {writer.dumps(client.command)}",
        "  network: host # it has to reach its model",
        f"  env: {writer.dumps(env)}",
    ]
    if client.can_run(environ):
        return "".join(f"  {line}\n" for line in lines)
    unset = ", ".join(key for key in client.keys if not environ.get(key))
    return "".join(f"  # {line}\n" for line in (f"To use {client.name}, set {unset}, and take these # away:", *lines))


async def _written(folder: Path, content: str, *, force: bool) -> Path:
    """Write the file to the top of the repository, and the schema where its first line says that it lies."""
    repository = await inspect(folder, os.environ)
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


def _fields(client: Client) -> dict[str, object]:
    return {"name": client.name, "can_run": client.can_run(os.environ), "needs": list(client.keys)}
