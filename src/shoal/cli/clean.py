"""`shoal clean`: remove what no run needs any more."""

import asyncio
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.document import text, worker_document
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.place import found
from shoal.cli.render.cleaning import cleaning_lines, prospect_lines, records_line
from shoal.engine.clean import Broom, Cleaning, clean
from shoal.engine.leftovers import Finding, leftovers, records
from shoal.errors import BadInput

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
AGE = re.compile(r"(\d{1,9})([smhdw])")


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what there is.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also remove raw files that no branch holds, and opened worktrees.")
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="30d", help="Also remove logs and patches of ended agents that are so old."
        ),
    ] = None,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """Remove what no run needs any more.

    What killed runs left is brought in first, and work that no branch holds stays. Branches always stay.
    """
    broom = asyncio.run(_broom(repo, force=force, older_than=None if older_than is None else age(older_than)))
    asyncio.run(_looked(broom, as_json=json) if dry_run else _cleaned(broom, as_json=json))
    return 0


def age(written: str) -> float:
    """Read `12h`, `30d` or `2w` as seconds."""
    found = AGE.fullmatch(written.strip())
    if found is None:
        raise BadInput(f"--older-than {written!r}: write a number and its unit, like 12h, 30d or 2w")
    return int(found[1]) * UNITS[found[2]]


async def _broom(folder: Path, *, force: bool, older_than: float | None) -> Broom:
    place = await found(folder)
    return Broom(
        folder=folder,
        repository=place.repository,
        paths=place.paths,
        environ=os.environ,
        force=force,
        older_than=older_than,
    )


async def _looked(broom: Broom, *, as_json: bool) -> None:
    there = await leftovers(broom.repository, broom.paths, broom.older_than)
    if as_json:
        output.say(text({"found": [_fields(one) for one in there]}))
        return
    output.say("\n".join(prospect_lines(there, force=broom.force)))
    if broom.older_than is None and (kept := records(broom.paths)):
        output.say(records_line(kept))


async def _cleaned(broom: Broom, *, as_json: bool) -> None:
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
