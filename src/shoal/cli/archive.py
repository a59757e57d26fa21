"""`shoal export` and `shoal import`: write a run to one file, and read it back."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Json, Repo, Run
from shoal.cli.output import escape
from shoal.cli.render.columns import count, size
from shoal.cli.repository import find_place
from shoal.errors import BadInput
from shoal.runs.archive import default_name, export_run, import_run
from shoal.store.documents import text
from shoal.store.lookup import find_run

Target = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="The archive; default: RUN.shoal.tar.gz here.")
]
Archive = Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `shoal export` wrote.")]


def export_command(run: Run = None, target: Target = None, json: Json = False, repo: Repo = HERE) -> int:
    """Write a run to one archive file.

    It contains events, logs, report, artifacts and branches; `shoal import` adds it to another clone. Secrets are
    masked in it as everywhere.
    """
    place = asyncio.run(find_place(repo))
    found = find_run(place.state(), run)
    path = target or Path(default_name(found.run))
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{path.parent} is not a directory")
    if path.exists():
        raise BadInput(f"{path} exists; remove it, or name another file with -o")
    asyncio.run(export_run(place.repository, place.paths, found, path.absolute()))
    taken = path.stat().st_size
    document = {"run": found.run, "file": str(path), "bytes": taken}
    output.print_out(text(document) if json else f"{escape(found.run)} is in {escape(str(path))} ({size(taken)})")
    return 0


def import_command(file: Archive, json: Json = False, repo: Repo = HERE) -> int:
    """Import a run from an archive file.

    `status`, `logs`, `diff` and `merge` then work on it. Branches whose names are taken go to `refs/shoal/import`. An
    imported run cannot be resumed.
    """
    place = asyncio.run(find_place(repo))
    if not file.is_file():
        raise BadInput(f"there is no file {file}")
    done = asyncio.run(import_run(place.repository, place.paths, file))
    document = {"run": done.run, "sessions": done.sessions, "refs": list(done.refs), "renamed": list(done.renamed)}
    renamed = "".join(f"\n  the name was taken, so it is {escape(ref)}" for ref in done.renamed)
    line = f"{escape(done.run)}: {count(done.sessions, 'session')}, {count(len(done.refs), 'ref')}{renamed}"
    output.print_out(text(document) if json else line)
    return 0
