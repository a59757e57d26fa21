"""`shoal clean`: remove what no run needs any more."""

import asyncio
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.output import escape, flat
from shoal.cli.render import messages
from shoal.cli.render.columns import columns, count, join_cells, size
from shoal.cli.repository import find_place
from shoal.errors import BadInput
from shoal.model.results import WorkerResult
from shoal.runs.history import RecordsSize, measure_records
from shoal.runs.leftovers import CleanRequest, find_leftovers, find_merged_branches
from shoal.runs.removable import Leftover, LeftoverKind, command_to_unpack, find_target
from shoal.store.documents import text, worker_document

if TYPE_CHECKING:
    from shoal.runs.clean import Cleaning

BROKEN = 3
NOTHING, NOTHING_ELSE = "nothing to clean", "nothing else to clean"


def removable_lines(found: Sequence[Leftover], *, force: bool) -> Iterator[str]:
    """Describe what `clean` would do with each item."""
    if not found:
        yield NOTHING
        return
    killed, gone, left = _split_findings(found, force=force)
    yield from (f"would recover the work of killed run {escape(item.path.stem)}" for item in killed)
    yield from _table("would remove", gone)
    yield from _remaining_lines(left)


def records_line(kept: RecordsSize) -> str:
    """Describe how much space logs and patches use, and how to remove old ones."""
    taken = f"{size(kept.size_bytes)} ({count(kept.count, 'file')})"
    return f"logs and patches take {taken}; `--older-than 30d` removes older ones"


def cleaning_lines(done: "Cleaning") -> Iterator[str]:
    """Describe what was recovered, removed and kept."""
    yield from map(flat, done.notes)
    yield from map(_recovery_line, done.brought_in)
    yield from (f"could not recover {flat(str(failure))}" for failure in done.failures)
    refs = filter(None, done.salvaged.refs.values())
    yield from (f"archived in {escape(ref)}: {escape(command_to_unpack(ref))}" for ref in refs)
    yield from _table("removed", done.gone)
    yield from _remaining_lines(done.left)
    yield from (
        f"cannot be archived: {flat(why)}; `shoal clean --discard {escape(str(path))}` deletes it permanently"
        for path, why in done.salvaged.failures.items()
    )
    if not (done.brought_in or done.gone or done.failures):
        yield NOTHING_ELSE if done.left else NOTHING
    elif done.gone:
        yield f"{size(done.freed_bytes)} freed"


def _split_findings(found: Iterable[Leftover], *, force: bool) -> tuple[list[Leftover], list[Leftover], list[Leftover]]:
    killed = [item for item in found if item.kind is LeftoverKind.KILLED]
    rest = [item for item in found if item.kind is not LeftoverKind.KILLED]
    gone = [item for item in rest if force or not item.needs_force]
    return killed, gone, [item for item in rest if item not in gone]


def _recovery_line(result: WorkerResult) -> str:
    if result.branch is not None:
        kept = f"{escape(result.branch)}, {count(result.files_changed, 'file')}"
    else:
        kept = flat(result.error or "no changes") if result.raw else "no changes"
    return f"recovered {escape(result.session)}: {kept}"


def _remaining_lines(left: Sequence[Leftover]) -> Iterator[str]:
    """List what stays, and how to remove it."""
    opened = [item for item in left if item.kind is LeftoverKind.OPENED]
    raw = [item for item in left if item.kind is LeftoverKind.RAW]
    yield from _table("kept, your worktrees (`git worktree remove`, or --force if unchanged):", opened)
    yield from _table("kept, on no branch (--force archives them on a ref, then removes them):", raw)
    yield from _table("kept, in use:", [item for item in left if not item.needs_force])


def _table(title: str, found: Sequence[Leftover]) -> Iterator[str]:
    if not found:
        return
    yield title if title.endswith(":") else f"{title} {count(len(found), 'item')}:"
    rows = [_row(item) for item in found if not item.is_record]
    yield from (
        f"  {join_cells(row)}" for row in columns([*rows, *_sum_by_folder([item for item in found if item.is_record])])
    )


def _row(item: Leftover) -> tuple[str, str, str]:
    return item.kind.value, size(item.size_bytes), escape(str(item.path))


def _sum_by_folder(records: Sequence[Leftover]) -> Iterator[tuple[str, str, str]]:
    """Count logs and patches by their folder: there can be thousands."""
    folders: dict[tuple[LeftoverKind, str], list[Leftover]] = {}
    for item in records:
        folders.setdefault((item.kind, str(item.path.parent)), []).append(item)
    for (kind, folder), some in folders.items():
        yield f"{kind.value}s", size(sum(item.size_bytes for item in some)), f"{len(some)} in {escape(folder)}"


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
AGE = re.compile(r"(\d{1,9})([smhdw])")


def command(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="List what would be removed, and remove nothing.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also remove unchanged opened worktrees, and raw files that are on no branch; a ref keeps an archive "
            "of those.",
        ),
    ] = False,
    discard: Annotated[
        list[Path] | None,
        typer.Option(
            "--discard", metavar="PATH", help="Delete these raw files for good, without an archive; repeatable."
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="30d",
            help="Also remove older ended runs, with their logs and patches.",
        ),
    ] = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="Also remove agents' branches whose work is in your branch.")
    ] = False,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="BRANCH", help="With --merged: your branch; default: the checked-out one."),
    ] = None,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """Remove what no run needs any more.

    Work of killed runs is recovered first; if some cannot be recovered, it is listed and the exit code is 3. Work
    that is on no branch is removed only with --force, which archives it on a ref first, and branches only with
    --merged: those whose work your branch has, in its history or as the same changes.
    """
    if into is not None and not merged:
        raise BadInput("--into names the branch for --merged; give both")
    broom = asyncio.run(_clean_request(repo, force=force, older_than=None if older_than is None else age(older_than)))
    broom = replace(broom, discard=tuple(path.resolve() for path in discard or ()))
    if merged:
        broom = replace(broom, target=asyncio.run(find_target(broom.repository, into)))
    return asyncio.run(_preview(broom, as_json=json) if dry_run else _clean(broom, as_json=json))


def age(written: str) -> float:
    """Read `12h`, `30d` or `2w` as seconds."""
    found = AGE.fullmatch(written.strip())
    if found is None:
        raise BadInput(f"--older-than {written!r}: give a number and a unit, like 12h, 30d or 2w")
    return int(found[1]) * UNITS[found[2]]


async def _clean_request(folder: Path, *, force: bool, older_than: float | None) -> CleanRequest:
    place = await find_place(folder)
    return CleanRequest(
        folder=folder,
        repository=place.repository,
        paths=place.paths,
        environ=os.environ,
        force=force,
        older_than=older_than,
        on_blocked=lambda reason: output.print_err(messages.wait_line(reason)),
    )


async def _preview(broom: CleanRequest, *, as_json: bool) -> int:
    there = [*await find_leftovers(broom.repository, broom.paths, broom.older_than), *await find_merged_branches(broom)]
    if as_json:
        output.print_out(text({"found": [_fields(item) for item in there]}))
        return 0
    output.print_out("\n".join(removable_lines(there, force=broom.force)))
    if broom.older_than is None and (kept := measure_records(broom.paths)).count:
        output.print_out(records_line(kept))
    return 0


async def _clean(broom: CleanRequest, *, as_json: bool) -> int:
    from shoal.runs.clean import clean  # what a run needs, too; a preview does not pay for it

    done = await clean(broom)
    if as_json:
        output.print_out(text(_document(done)))
    else:
        output.print_out("\n".join(cleaning_lines(done)))
    return BROKEN if done.failures or done.salvaged.failures else 0


def _document(done: "Cleaning") -> dict[str, object]:
    return {
        "brought_in": [worker_document(result) for result in done.brought_in],
        "not_brought_in": [
            {"run": failure.run, "session": failure.session, "error": failure.why, "raw": failure.raw}
            for failure in done.failures
        ],
        "archived": {str(path): ref for path, ref in done.salvaged.refs.items() if ref},
        "not_archived": {str(path): why for path, why in done.salvaged.failures.items()},
        "removed": [_fields(item) for item in done.gone],
        "left": [_fields(item) for item in done.left],
        "freed_bytes": done.freed_bytes,
        "notes": list(done.notes),
    }


def _fields(finding: Leftover) -> dict[str, object]:
    return {
        "kind": finding.kind.value,
        "path": str(finding.path),
        "bytes": finding.size_bytes,
        "needs_force": finding.needs_force,
    }
