"""What runs have left on disk, and whether it may go; a preview imports only this."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.git.checkpoints import FOLDER, list_kept
from shoal.limits.cgroups import is_left_on_disk
from shoal.model.plan import HistoryLimit
from shoal.model.repository import Repository
from shoal.runs.history import Claim, belongs_to, find_history, is_held, list_children, list_claims, list_locks
from shoal.runs.removable import Leftover, LeftoverKind, Target, find_merged, measure_sizes
from shoal.store.fold import fold
from shoal.store.lock import is_locked
from shoal.store.paths import TRIAL, StatePaths
from shoal.store.reader import read_events
from shoal.store.run_state import RunState
from shoal.store.writer import OnBlocked

TRIAL_SECONDS = 60.0  # longer than any trial of the host takes


async def find_leftovers(repository: Repository, paths: StatePaths, older_than: float | None = None) -> list[Leftover]:
    """List everything; logs and patches only if they are *older_than* seconds old; nothing is changed."""
    # Listed before the ledger is read: what a new run makes from now on is not in the list, and everything in the list
    # was announced in the ledger before it was made.
    entries = [*list_children(paths.session_dirs), *sorted(paths.workspaces.glob("*/*/worker_*"))]
    limit = HistoryLimit(age_seconds=older_than)
    found = [*_list_killed(paths), *await _classify(repository, paths, entries), *_list_caches(paths)]
    found += await _list_checkpoints(repository, paths)
    sizes = await measure_sizes(
        finding.path for finding in found if finding.kind not in (LeftoverKind.KILLED, LeftoverKind.CHECKPOINTS)
    )
    sized = [replace(finding, size_bytes=sizes.get(finding.path, 0)) for finding in found]
    return [*sized, *await find_history(repository, paths, limit)]


def find_killed_runs(paths: StatePaths) -> list[RunState]:
    """List the runs whose owner is dead, the oldest first."""
    names = {path.stem for path in list_locks(paths) if not is_locked(path)}
    return [fold(read_events(paths, name)).runs.get(name) or RunState(run=name) for name in sorted(names)]


def _list_killed(paths: StatePaths) -> Iterator[Leftover]:
    return (Leftover(kind=LeftoverKind.KILLED, path=paths.run_lock(run.run)) for run in find_killed_runs(paths))


def _list_caches(paths: StatePaths) -> Iterator[Leftover]:
    yield from (Leftover(kind=LeftoverKind.POOL, path=path) for path in list_children(paths.pool) if path.is_dir())
    yield from (Leftover(kind=LeftoverKind.BASE, path=path.parent) for path in sorted(paths.bases.glob("*/ready")))
    yield from (Leftover(kind=LeftoverKind.OBJECTS, path=path.parent) for path in sorted(paths.objects.glob("*/ready")))
    yield from (Leftover(kind=LeftoverKind.SETUP, path=path.parent) for path in sorted(paths.setups.glob("*/ready")))
    kept = [path for path in list_children(paths.conversations) if not is_locked(paths.run_lock(path.name))]
    yield from (Leftover(kind=LeftoverKind.CONVERSATION, path=path) for path in kept)
    yield from (Leftover(kind=LeftoverKind.OPENED, path=path) for path in list_children(paths.root / "open"))


async def _list_checkpoints(repository: Repository, paths: StatePaths) -> list[Leftover]:
    """List the sessions with checkpoints that no run needs; they stay where the raw files of their session do."""
    sessions = {checkpoint.session for checkpoint in await list_kept(repository)}
    if not sessions:  # else the whole history would be read for nothing
        return []
    claims, busy = list_claims(paths), {path.stem for path in list_locks(paths)}
    session_dirs = {name: paths.session_dir(name) for name in sorted(sessions)}
    free = [
        name
        for name, session_dir in session_dirs.items()
        if not session_dir.exists() and not belongs_to(session_dir, claims, busy)
    ]
    return [Leftover(kind=LeftoverKind.CHECKPOINTS, path=Path(FOLDER, name)) for name in free]


async def _classify(repository: Repository, paths: StatePaths, entries: Iterable[Path]) -> list[Leftover]:
    entries = list(entries)
    claims = list_claims(paths) if entries else {}  # otherwise the whole history would be read for nothing
    busy = {path.stem for path in list_locks(paths)}  # live, or killed and not yet recovered
    kinds = {
        entry: await _sort(repository, entry, claims.get(entry))
        for entry in entries
        if not belongs_to(entry, claims, busy)
    }
    return [Leftover(kind=kind, path=entry) for entry, kind in kinds.items() if kind is not None]


async def _sort(repository: Repository, entry: Path, claim: Claim | None) -> LeftoverKind | None:
    """Return what *entry* is; `None` for a trial of the host that may still be running."""
    if claim is not None:
        return LeftoverKind.LEFTOVER if await is_held(repository, claim.result) else LeftoverKind.RAW
    if not entry.name.startswith(TRIAL):
        return LeftoverKind.RAW  # the ledger does not know it: it was lost, or is another's
    is_left = is_left_on_disk(entry.name.removeprefix(TRIAL))
    return LeftoverKind.LEFTOVER if is_left or time.time() - entry.lstat().st_mtime > TRIAL_SECONDS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRequest:
    """Where to clean, and whether work that no ref holds may be removed."""

    folder: Path
    repository: Repository
    paths: StatePaths
    environ: Mapping[str, str] = field(repr=False)
    force: bool = False
    discard: tuple[Path, ...] = ()
    """Raw files that go without an archive."""
    older_than: float | None = None
    """How many seconds old a log or a patch must be to be removed; `None` keeps them all."""
    target: Target | None = None
    """The user's branch: agents' branches that are merged into it are removed, too."""
    on_blocked: OnBlocked = field(default=lambda reason: None, repr=False)
    """Called as in a `RunRequest`."""


async def find_merged_branches(broom: CleanRequest) -> list[Leftover]:
    """Find the agents' branches that are merged into the user's branch, except those of runs that may continue."""
    if broom.target is None:
        return []
    locked = {path.stem for path in list_locks(broom.paths)}
    runs = fold(read_events(broom.paths)).runs.values()
    open_runs = [run for run in runs if run.run in locked or run.status.is_interrupted or not run.status.is_ended]
    steps = [step for run in open_runs for step in run.steps.values()]
    busy = {session.branch for step in steps for session in step.sessions.values()}
    found = await find_merged(broom.repository, broom.target, busy)
    return [Leftover(kind=LeftoverKind.BRANCH, path=Path(branch)) for branch in found]
