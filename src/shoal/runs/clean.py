"""Clean up: recover killed runs, and remove what no live run needs if a ref holds its work."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.git.checkout import repository_locked
from shoal.git.imports import release_abandoned
from shoal.git.refs import unpin_abandoned
from shoal.git.repository import dirt
from shoal.git.snapshot import is_hidden
from shoal.limits.cgroups import is_left_on_disk
from shoal.model.plan import HistoryLimit
from shoal.model.repository import Repository
from shoal.model.results import WorkerResult
from shoal.runs.history import (
    Claim,
    belongs_to,
    find_history,
    forget_runs,
    is_held,
    list_children,
    list_claims,
    list_locks,
    remove_record,
)
from shoal.runs.removable import (
    Leftover,
    LeftoverKind,
    Salvaged,
    Target,
    assert_session_files,
    find_merged,
    find_raw_runs,
    measure_sizes,
    remove_merged,
)
from shoal.runs.request import RunRequest
from shoal.sessions.checkpoints import FOLDER, drop_checkpoints, list_kept
from shoal.sessions.host_probe import TRIAL
from shoal.sessions.open_session import prune
from shoal.store.fold import fold
from shoal.store.killed_runs import record_lost_sessions
from shoal.store.ledger import open_ledger
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, store_at
from shoal.store.reserve import make_reserve, release_if_full
from shoal.store.run_state import RunState
from shoal.store.writer import OnBlocked
from shoal.workspaces import base_checkouts, object_stores
from shoal.workspaces import setup_layers as setup
from shoal.workspaces.mount import list_mounts, unmount
from shoal.workspaces.remove import remove_all
from shoal.workspaces.worktree import forget_worktree

if TYPE_CHECKING:
    from shoal.runs.recovery import Recovery, RecoveryFailure

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
class Cleaning:
    """What was done: sessions recovered or not, things removed, and things left."""

    brought_in: tuple[WorkerResult, ...] = ()
    failures: tuple["RecoveryFailure", ...] = ()
    """What could not be recovered, and is still there."""
    gone: tuple[Leftover, ...] = ()
    left: tuple[Leftover, ...] = ()
    salvaged: Salvaged
    """What of the raw files was archived before it went, and what could not be."""
    notes: tuple[str, ...] = ()
    """What was rebuilt of a ledger that was lost."""

    @property
    def freed_bytes(self) -> int:
        """Add up what was removed."""
        return sum(finding.size_bytes for finding in self.gone)


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


async def clean(broom: CleanRequest) -> Cleaning:
    """Recover killed runs and work that could not be kept before, then remove what may be removed.

    A lost ledger is rebuilt first. All of it works on a full disk, in the space that was reserved.
    """
    notes = await _open_ledger(broom)
    assert_session_files(broom.paths, broom.discard)
    recovery, salvaged = await _recover(broom)
    release_abandoned(broom.repository)
    await unpin_abandoned(broom.repository, broom.paths.runs)
    if broom.paths.bases.is_dir():
        await base_checkouts.sweep_bases(broom.repository, broom.paths.bases)
    await object_stores.sweep_stores(broom.paths.objects)
    seen = [*await find_leftovers(broom.repository, broom.paths, broom.older_than), *await find_merged_branches(broom)]
    found = [leftover for leftover in seen if leftover.kind is not LeftoverKind.KILLED]
    gone = [leftover for leftover in found if _may_go(broom, leftover, salvaged) and await _remove(broom, leftover)]
    if broom.paths.root.is_dir():
        make_reserve(broom.paths.reserve)
    return Cleaning(
        brought_in=recovery.brought_in,
        failures=tuple(failure for failure in recovery.failures if Path(failure.raw).exists()),
        notes=notes,
        gone=tuple(gone),
        left=tuple(leftover for leftover in found if leftover not in gone),
        salvaged=salvaged,
    )


def _may_go(broom: CleanRequest, leftover: Leftover, salvaged: Salvaged) -> bool:
    if leftover.kind is LeftoverKind.RAW:
        return leftover.path in salvaged.refs or leftover.path in broom.discard
    return broom.force or not leftover.needs_force


async def _open_ledger(broom: CleanRequest) -> tuple[str, ...]:
    """Make sure that the ledger can be read and written; return what had to be done for that."""
    if not (broom.paths.ledger.exists() or broom.paths.sessions.is_dir()):
        return ()
    release_if_full(broom.paths.reserve)
    rebuilt: list[str] = []
    logs = [log.stem for log in list_children(broom.paths.sessions) if log.suffix == ".db"]
    async with open_ledger(store_at(broom.paths, rebuilt.append), on_blocked=broom.on_blocked) as ledger:
        recorded = await record_lost_sessions(broom.paths, ledger, logs)
    note = f"sessions that were missing from the ledger were restored from their own logs: {', '.join(recorded)}"
    return (*rebuilt, *((note,) if recorded else ()))


async def _recover(broom: CleanRequest) -> "tuple[Recovery, Salvaged]":
    """Reconcile, in the sandbox of the latest run that left something; if there is none, no sandbox is needed.

    With force, what could not be recovered is archived.
    """
    # what a run needs anyway; a dry run does not pay for it
    from shoal.runs.context import open_run
    from shoal.runs.raw_files import list_raw_files, salvage_all
    from shoal.runs.recovery import Recovery

    runs = [*find_raw_runs(broom.paths), *find_killed_runs(broom.paths)]
    nothing = Salvaged(refs={}, failures={})
    if not runs and not (broom.force and list_children(broom.paths.session_dirs)):
        return Recovery(), nothing
    strategy = "directory" if is_hidden(broom.repository) else "auto"
    request = RunRequest(folder=broom.folder, environ=broom.environ, name="clean", strategy=strategy, is_patient=True)
    request = replace(request, on_blocked=broom.on_blocked)
    sandbox = (runs[-1].wall if runs else "") or request.sandbox
    async with open_run(replace(request, sandbox=sandbox)) as opened:
        if not broom.force:
            return opened.recovery, nothing
        raw = [item.path for item in await find_leftovers(broom.repository, broom.paths) if item.is_raw]
        left = list_raw_files(broom.paths, [path for path in raw if path not in broom.discard])
        return opened.recovery, await salvage_all(opened.context, left)


async def _remove(broom: CleanRequest, finding: Leftover) -> bool:
    """Remove one thing; `False` if it turns out to be in use."""
    match finding.kind:
        case LeftoverKind.LEFTOVER | LeftoverKind.RAW:
            await _workspace_removed(broom, finding.path)
        case LeftoverKind.POOL:
            await _remove_pooled(broom, finding.path)
        case LeftoverKind.BASE:
            await base_checkouts.evict_base(broom.repository, finding.path)
            return not finding.path.exists()
        case LeftoverKind.OBJECTS:
            await object_stores.evict_store(finding.path)
            return not finding.path.exists()
        case LeftoverKind.SETUP:
            await setup.evict_setup(finding.path)
            return not finding.path.exists()
        case LeftoverKind.OPENED:
            return await _remove_opened(broom, finding.path)
        case LeftoverKind.LOG | LeftoverKind.RESULT | LeftoverKind.ARTIFACTS:
            await remove_record(finding)
        case LeftoverKind.CONVERSATION:
            await remove_all(finding.path)
        case LeftoverKind.BRANCH:
            return broom.target is not None and await remove_merged(broom.repository, broom.target, str(finding.path))
        case LeftoverKind.CHECKPOINTS:
            await drop_checkpoints(broom.repository, finding.path.name)
        case LeftoverKind.RUN:
            return bool(await forget_runs(broom.paths, [finding]))
        case LeftoverKind.KILLED:
            return False
    return True


async def _workspace_removed(broom: CleanRequest, path: Path) -> None:
    for place in list_mounts(path):
        unmount(place)
    await forget_worktree(broom.repository, path)
    await remove_all(path)
    prune(path, broom.paths.workspaces if path.is_relative_to(broom.paths.workspaces) else path.parent)


async def _remove_pooled(broom: CleanRequest, path: Path) -> None:
    async with repository_locked(broom.repository.git):
        # Without its note, no run takes it any more.
        path.with_suffix(".json").unlink(missing_ok=True)
    await forget_worktree(broom.repository, path)
    await remove_all(path)


async def _remove_opened(broom: CleanRequest, path: Path) -> bool:
    """Remove a worktree that a person opened, unless it contains changes."""
    if (path / ".git").is_file() and await dirt(replace(broom.repository, top=path)) > 0:
        return False
    await forget_worktree(broom.repository, path)
    await remove_all(path)
    return True
