"""What was cleaned up, or would be, in words."""

from collections.abc import Iterable, Iterator, Sequence

from shoal.cli.plain import plain
from shoal.cli.render.columns import columns, count, joined, size
from shoal.engine.clean import Cleaning
from shoal.engine.leftovers import Finding, Sort
from shoal.model.results import WorkerResult

NOTHING, NOTHING_ELSE = "nothing to clean", "nothing else to clean"


def prospect_lines(found: Sequence[Finding], *, force: bool) -> Iterator[str]:
    """Say what `clean` would do with each thing."""
    if not found:
        yield NOTHING
        return
    killed, gone, left = _parted(found, force=force)
    yield from (f"would bring in what the killed run {plain(one.path.stem)} left" for one in killed)
    yield from _table("would remove", gone)
    yield from _left(left)


def records_line(kept: Sequence[Finding]) -> str:
    """Say what logs and patches take, and how to be rid of the old ones."""
    taken = size(sum(one.size_bytes for one in kept))
    return (
        f"logs and patches take {taken} ({count(len(kept), 'file')}); `--older-than 30d` removes those that are older"
    )


def cleaning_lines(done: Cleaning) -> Iterator[str]:
    """Say what was done."""
    yield from map(_brought_in, done.brought_in)
    yield from _table("removed", done.gone)
    yield from _left(done.left)
    if not (done.brought_in or done.gone):
        yield NOTHING_ELSE if done.left else NOTHING
    elif done.gone:
        yield f"{size(done.freed_bytes)} freed"


def _parted(found: Iterable[Finding], *, force: bool) -> tuple[list[Finding], list[Finding], list[Finding]]:
    killed = [one for one in found if one.sort is Sort.KILLED]
    rest = [one for one in found if one.sort is not Sort.KILLED]
    gone = [one for one in rest if force or not one.needs_force]
    return killed, gone, [one for one in rest if one not in gone]


def _brought_in(result: WorkerResult) -> str:
    if result.branch is not None:
        kept = f"{plain(result.branch)}, {count(result.files_changed, 'file')}"
    else:
        kept = plain(result.error or "it had changed nothing") if result.raw else "it had changed nothing"
    return f"brought in {plain(result.session)}: {kept}"


def _left(left: Sequence[Finding]) -> Iterator[str]:
    """Name what stays, and what would take it away."""
    opened = [one for one in left if one.sort is Sort.OPENED]
    raw = [one for one in left if one.sort is Sort.RAW]
    yield from _table("stays, yours (`git worktree remove`, or --force while it is unchanged):", opened)
    yield from _table("stays, held by no branch (--force removes it for good):", raw)
    yield from _table("stays, in use:", [one for one in left if not one.needs_force])


def _table(title: str, found: Sequence[Finding]) -> Iterator[str]:
    if not found:
        return
    yield title if title.endswith(":") else f"{title} {count(len(found), 'thing')}:"
    rows = [_row(one) for one in found if not one.is_record]
    yield from (f"  {joined(row)}" for row in columns([*rows, *_summed([one for one in found if one.is_record])]))


def _row(one: Finding) -> tuple[str, str, str]:
    return one.sort.value, size(one.size_bytes), plain(str(one.path))


def _summed(records: Sequence[Finding]) -> Iterator[tuple[str, str, str]]:
    """Count logs and patches by their folder: there can be thousands."""
    folders: dict[tuple[Sort, str], list[Finding]] = {}
    for one in records:
        folders.setdefault((one.sort, str(one.path.parent)), []).append(one)
    for (sort, folder), some in folders.items():
        yield f"{sort.value}s", size(sum(one.size_bytes for one in some)), f"{len(some)} in {plain(folder)}"
