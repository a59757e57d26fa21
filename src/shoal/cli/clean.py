"""`shoal clean`: remove what no run needs any more."""

import asyncio
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.json_output import text, worker_document
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.output import escape, flat
from shoal.cli.render.columns import columns, count, join_cells, size
from shoal.cli.repository import find_place
from shoal.errors import BadInput
from shoal.model.results import WorkerResult
from shoal.runs.clean import Broom, Cleaning, Leftover, Sort, clean, leftovers, records

BROKEN = 3
NOTHING, NOTHING_ELSE = "nothing to clean", "nothing else to clean"


def prospect_lines(found: Sequence[Leftover], *, force: bool) -> Iterator[str]:
    """Say what `clean` would do with each thing."""
    if not found:
        yield NOTHING
        return
    killed, gone, left = _split_findings(found, force=force)
    yield from (f"would bring in what the killed run {escape(one.path.stem)} left" for one in killed)
    yield from _table("would remove", gone)
    yield from _remaining_lines(left)


def records_line(kept: Sequence[Leftover]) -> str:
    """Say what logs and patches take, and how to be rid of the old ones."""
    taken = size(sum(one.size_bytes for one in kept))
    return (
        f"logs and patches take {taken} ({count(len(kept), 'file')}); `--older-than 30d` removes those that are older"
    )


def cleaning_lines(done: Cleaning) -> Iterator[str]:
    """Say what was done."""
    yield from map(_recovered_line, done.brought_in)
    yield from (f"could not bring in {flat(str(failure))}" for failure in done.failures)
    yield from _table("removed", done.gone)
    yield from _remaining_lines(done.left)
    if not (done.brought_in or done.gone or done.failures):
        yield NOTHING_ELSE if done.left else NOTHING
    elif done.gone:
        yield f"{size(done.freed_bytes)} freed"


def _split_findings(found: Iterable[Leftover], *, force: bool) -> tuple[list[Leftover], list[Leftover], list[Leftover]]:
    killed = [one for one in found if one.sort is Sort.KILLED]
    rest = [one for one in found if one.sort is not Sort.KILLED]
    gone = [one for one in rest if force or not one.needs_force]
    return killed, gone, [one for one in rest if one not in gone]


def _recovered_line(result: WorkerResult) -> str:
    if result.branch is not None:
        kept = f"{escape(result.branch)}, {count(result.files_changed, 'file')}"
    else:
        kept = flat(result.error or "it had changed nothing") if result.raw else "it had changed nothing"
    return f"brought in {escape(result.session)}: {kept}"


def _remaining_lines(left: Sequence[Leftover]) -> Iterator[str]:
    """Name what stays, and what would take it away."""
    opened = [one for one in left if one.sort is Sort.OPENED]
    raw = [one for one in left if one.sort is Sort.RAW]
    yield from _table("stays, yours (`git worktree remove`, or --force while it is unchanged):", opened)
    yield from _table("stays, held by no branch (--force removes it for good):", raw)
    yield from _table("stays, in use:", [one for one in left if not one.needs_force])


def _table(title: str, found: Sequence[Leftover]) -> Iterator[str]:
    if not found:
        return
    yield title if title.endswith(":") else f"{title} {count(len(found), 'thing')}:"
    rows = [_row(one) for one in found if not one.is_record]
    yield from (
        f"  {join_cells(row)}" for row in columns([*rows, *_sum_by_folder([one for one in found if one.is_record])])
    )


def _row(one: Leftover) -> tuple[str, str, str]:
    return one.sort.value, size(one.size_bytes), escape(str(one.path))


def _sum_by_folder(records: Sequence[Leftover]) -> Iterator[tuple[str, str, str]]:
    """Count logs and patches by their folder: there can be thousands."""
    folders: dict[tuple[Sort, str], list[Leftover]] = {}
    for one in records:
        folders.setdefault((one.sort, str(one.path.parent)), []).append(one)
    for (sort, folder), some in folders.items():
        yield f"{sort.value}s", size(sum(one.size_bytes for one in some)), f"{len(some)} in {escape(folder)}"


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

    What killed runs left is brought in first, and work that no branch holds stays. Branches always stay. Where work
    cannot be brought in, it is named, and the exit code is 3.
    """
    broom = asyncio.run(_broom(repo, force=force, older_than=None if older_than is None else age(older_than)))
    return asyncio.run(_preview(broom, as_json=json) if dry_run else _clean(broom, as_json=json))


def age(written: str) -> float:
    """Read `12h`, `30d` or `2w` as seconds."""
    found = AGE.fullmatch(written.strip())
    if found is None:
        raise BadInput(f"--older-than {written!r}: write a number and its unit, like 12h, 30d or 2w")
    return int(found[1]) * UNITS[found[2]]


async def _broom(folder: Path, *, force: bool, older_than: float | None) -> Broom:
    place = await find_place(folder)
    return Broom(
        folder=folder,
        repository=place.repository,
        paths=place.paths,
        environ=os.environ,
        force=force,
        older_than=older_than,
    )


async def _preview(broom: Broom, *, as_json: bool) -> int:
    there = await leftovers(broom.repository, broom.paths, broom.older_than)
    if as_json:
        output.print_out(text({"found": [_fields(one) for one in there]}))
        return 0
    output.print_out("\n".join(prospect_lines(there, force=broom.force)))
    if broom.older_than is None and (kept := records(broom.paths)):
        output.print_out(records_line(kept))
    return 0


async def _clean(broom: Broom, *, as_json: bool) -> int:
    done = await clean(broom)
    if as_json:
        output.print_out(text(_document(done)))
    else:
        output.print_out("\n".join(cleaning_lines(done)))
    return BROKEN if done.failures else 0


def _document(done: Cleaning) -> dict[str, object]:
    return {
        "brought_in": [worker_document(one) for one in done.brought_in],
        "not_brought_in": [
            {"run": failure.run, "session": failure.session, "error": failure.why, "raw": failure.raw}
            for failure in done.failures
        ],
        "removed": [_fields(one) for one in done.gone],
        "left": [_fields(one) for one in done.left],
        "freed_bytes": done.freed_bytes,
    }


def _fields(finding: Leftover) -> dict[str, object]:
    return {
        "kind": finding.sort.value,
        "path": str(finding.path),
        "bytes": finding.size_bytes,
        "needs_force": finding.needs_force,
    }
