"""`shoal clean`: remove what no run needs any more."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.document import text, worker_document
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.place import found
from shoal.cli.render.cleaning import cleaning_lines, prospect_lines
from shoal.engine.clean import Broom, Cleaning, clean
from shoal.engine.leftovers import Finding, leftovers


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what there is.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also remove raw files that no branch holds, and opened worktrees.")
    ] = False,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """Remove what no run needs any more.

    What killed runs left is brought in first, and work that no branch holds stays.
    """
    asyncio.run(_looked(repo, force=force, as_json=json) if dry_run else _cleaned(repo, force=force, as_json=json))
    return 0


async def _looked(folder: Path, *, force: bool, as_json: bool) -> None:
    place = await found(folder)
    there = await leftovers(place.repository, place.paths)
    if as_json:
        output.say(text({"found": [_fields(one) for one in there]}))
    else:
        output.say("\n".join(prospect_lines(there, force=force)))


async def _cleaned(folder: Path, *, force: bool, as_json: bool) -> None:
    place = await found(folder)
    broom = Broom(folder=folder, repository=place.repository, paths=place.paths, environ=os.environ, force=force)
    done = await clean(broom)
    if as_json:
        output.say(text(_document(done)))
    else:
        output.say("\n".join(cleaning_lines(done)))


def _document(done: Cleaning) -> dict[str, object]:
    return {
        "brought_in": [worker_document(one) for one in done.brought_in],
        "removed": [_fields(one) for one in done.gone],
        "left": [_fields(one) for one in done.left],
        "freed_bytes": done.freed_bytes,
    }


def _fields(finding: Finding) -> dict[str, object]:
    return {
        "kind": finding.sort.value,
        "path": str(finding.path),
        "bytes": finding.size_bytes,
        "needs_force": finding.needs_force,
    }
