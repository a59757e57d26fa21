"""The history of ended runs: what of it is old enough to be removed, and removing it, but no work that no ref holds."""

import contextlib
import math
import os
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shoal.errors import Broken
from shoal.git.run import git
from shoal.model.plan import HistoryLimit
from shoal.model.repository import Repository
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.runs.removable import Leftover, LeftoverKind
from shoal.store.fold import fold
from shoal.store.kind import RunSize
from shoal.store.lock import hold_lock
from shoal.store.notes import notes_at
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, store_at
from shoal.workspaces.remove import remove_all


@dataclass(frozen=True, slots=True)
class RecordsSize:
    """How many logs, patches and artifacts of sessions there are, and how large they are together."""

    count: int
    size_bytes: int


def measure_records(paths: StatePaths) -> RecordsSize:
    """Measure the records of all sessions, of any age; there can be thousands."""
    sizes = [record.size_bytes for record in _scan_records(paths)]
    return RecordsSize(len(sizes), sum(sizes))


@dataclass(frozen=True, slots=True)
class Claim:
    """Whose a path is."""

    run: str
    result: WorkerResult | None


async def find_history(repository: Repository, paths: StatePaths, limit: HistoryLimit) -> list[Leftover]:
    """List the logs, patches, artifacts and runs beyond *limit* that nobody needs; nothing is changed."""
    if limit.age_seconds is None and limit.runs is None:
        return []
    before = -math.inf if limit.age_seconds is None else time.time() - limit.age_seconds
    every = _list_records(paths)  # before the ledger is read, which knows then whose they are
    sizes = store_at(paths).measure_runs()
    old = {size.run: size for place, size in enumerate(sizes) if size.last_at < before or _is_beyond(place, limit)}
    if not old and all(finding.changed_at >= before for finding in every):
        return []  # otherwise the whole history would be read for nothing
    claims = list_claims(paths, old)
    noted = [
        finding for finding in every if finding.changed_at < before or _owner(paths, finding.path, claims, old) in old
    ]
    if any(_owner(paths, finding.path, claims, old) is None for finding in noted):
        claims = list_claims(paths)  # one of a run that began long ago and is not old yet, or of no run any more
    records = await _filter_needed(repository, paths, noted, claims)
    gone = {finding.path for finding in records}
    busy = {path.stem for path in list_locks(paths)}
    runs = [size for size in old.values() if size.run not in busy and _is_over(paths, size.run, gone)]
    return [*records, *(_describe_run(paths, size) for size in runs)]


def _is_beyond(place: int, limit: HistoryLimit) -> bool:
    return limit.runs is not None and place >= limit.runs


def _owner(paths: StatePaths, record: Path, claims: Mapping[Path, Claim], runs: Iterable[str]) -> str | None:
    """Give the run that *record* is of; what a whole step left is named after its run."""
    claim = claims.get(paths.session_dir(record.stem if record.suffix in (".db", ".patch") else record.name))
    return claim.run if claim else next((run for run in runs if record.name.startswith((f"{run}-", f"{run}."))), None)


def _is_over(paths: StatePaths, run: str, gone: Container[Path]) -> bool:
    """Say whether nothing of *run* stays but its events, once what is *gone* is removed, and nobody would resume it."""
    state = fold(read_events(paths, run)).runs.get(run)
    if state is None or not state.status.is_ended or state.status.is_interrupted:
        return False
    sessions = [session for step in state.steps.values() for session in step.sessions.values()]
    places = [
        place
        for session in sessions
        for place in (paths.session_db(session.session), paths.results / f"{session.session}.patch")
    ]
    return all(
        session.status.is_ended and not paths.session_dir(session.session).exists() for session in sessions
    ) and all(place in gone or not place.exists() for place in places)


def _describe_run(paths: StatePaths, size: RunSize) -> Leftover:
    return Leftover(kind=LeftoverKind.RUN, path=paths.ledger / size.run, size_bytes=size.size, seq=size.last_seq)


async def prune_history(repository: Repository, paths: StatePaths, limit: HistoryLimit) -> list[Leftover]:
    """Remove what `find_history` finds, the events of the runs last; return what is gone."""
    found = await find_history(repository, paths, limit)
    for finding in found:
        if finding.kind is not LeftoverKind.RUN:
            await remove_record(finding)
    return [*(item for item in found if item.kind is not LeftoverKind.RUN), *await forget_runs(paths, found)]


async def remove_record(finding: Leftover) -> None:
    """Remove a log, a patch or the artifacts of a session or a step."""
    if finding.kind is LeftoverKind.ARTIFACTS:
        await remove_all(finding.path)
        return
    for suffix in ("", "-wal", "-shm"):
        Path(f"{finding.path}{suffix}").unlink(missing_ok=True)


async def forget_runs(paths: StatePaths, found: Sequence[Leftover]) -> list[Leftover]:
    """Remove the events of those runs in *found* that nobody has gone on with meanwhile; return these."""
    gone = []
    with contextlib.closing(store_at(paths).ledger()) as ledger:
        for finding in found:
            if finding.kind is LeftoverKind.RUN:
                run = finding.path.name
                with contextlib.suppress(Broken):  # somebody owns it now
                    async with hold_lock(paths.run_lock(run), timeout=0) as held:
                        if ledger.forget(run, finding.seq):
                            gone.append(finding)
                            notes_at(paths).forget_run(run)
                        held.remove()
    return gone


def _list_records(paths: StatePaths) -> list[Leftover]:
    return [
        Leftover(
            kind=record.kind, path=Path(record.path), size_bytes=record.size_bytes, changed_at=record.seen.st_mtime
        )
        for record in _scan_records(paths)
    ]


class _Record(NamedTuple):
    """A record as it was found; not yet a path, because making thousands of these takes longer than all the rest."""

    kind: LeftoverKind
    path: str
    seen: os.stat_result
    size_bytes: int


def _scan_records(paths: StatePaths) -> Iterator[_Record]:
    for entry in _scan(paths.sessions):
        if entry.name.endswith(".db"):
            yield from _measure(LeftoverKind.LOG, entry)
    results = _scan(paths.results)
    for entry in results:
        if entry.name.endswith(".patch"):
            yield from _measure(LeftoverKind.RESULT, entry)
    for entry in results:
        if entry.is_dir(follow_symlinks=False):
            yield from _measure(LeftoverKind.ARTIFACTS, entry)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _measure(kind: LeftoverKind, entry: os.DirEntry[str]) -> Iterator[_Record]:
    """Measure a record; give nothing if another `clean` has just removed it."""
    with contextlib.suppress(FileNotFoundError):
        seen = entry.stat(follow_symlinks=False)
        inside = _scan(Path(entry.path)) if kind is LeftoverKind.ARTIFACTS else ()
        # Counted here and not with `du`: there may be more of them than fit into a command.
        blocks = seen.st_blocks + sum(below.stat(follow_symlinks=False).st_blocks for below in inside)
        yield _Record(kind, entry.path, seen, blocks * 512)


async def _filter_needed(
    repository: Repository, paths: StatePaths, noted: Iterable[Leftover], claims: Mapping[Path, Claim]
) -> list[Leftover]:
    """Leave out what a run still needs, and a patch whose work no ref holds."""
    busy = {path.stem for path in list_locks(paths)}
    ended = [finding for finding in noted if not belongs_to(paths.session_dir(finding.path.stem), claims, busy)]
    # The artifacts of a whole step are named after its run.
    names = tuple(f"{run}{mark}" for run in busy for mark in "-.")
    ended = [finding for finding in ended if not finding.path.name.startswith(names)]
    return [
        finding
        for finding in ended
        if finding.kind is not LeftoverKind.RESULT or await _has_ref(repository, paths, finding, claims)
    ]


async def _has_ref(repository: Repository, paths: StatePaths, finding: Leftover, claims: Mapping[Path, Claim]) -> bool:
    claim = claims.get(paths.session_dir(finding.path.stem))
    return claim is not None and await is_held(repository, claim.result)


def belongs_to(entry: Path, claims: Mapping[Path, Claim], runs: Container[str]) -> bool:
    """Say whether *entry* is of one of *runs*."""
    return entry in claims and claims[entry].run in runs


def list_claims(paths: StatePaths, runs: Iterable[str] | None = None) -> dict[Path, Claim]:
    """Read whose each session directory and each workspace is, of *runs* or of all."""
    claims: dict[Path, Claim] = {}
    events = read_events(paths) if runs is None else (event for run in runs for event in read_events(paths, run))
    for run in fold(events).runs.values():
        for session in (session for step in run.steps.values() for session in step.sessions.values()):
            # below this repository, which may have been moved since
            workspace = paths.workspaces.joinpath(*Path(session.workspace).parts[-3:])
            claims[paths.session_dir(session.session)] = claims[workspace] = Claim(run.run, session.result)
    return claims


async def is_held(repository: Repository, result: WorkerResult | None) -> bool:
    """Return whether a ref holds the work, or there was none; in doubt, it is not held."""
    if result is None or result.raw is not None:
        return False
    if result.commit is None:
        return result.status is Status.NO_CHANGES
    refs = ("for-each-ref", "--count=1", f"--contains={result.commit}")
    done = await git(repository.git, *refs, accept=(0, 128, 129))
    return done.ok and bool(done.stdout.strip())


def list_locks(paths: StatePaths) -> list[Path]:
    """List the locks of runs that live, or were killed and are not yet recovered."""
    return sorted(paths.runs.glob("*.lock"))


def list_children(folder: Path) -> list[Path]:
    """List what is in *folder*, if it is there."""
    # by name: to compare paths takes longer than to look at the files, and of logs there may be thousands
    return [folder / name for name in sorted(os.listdir(folder))] if folder.is_dir() else []
