"""Clean up: recover killed runs, and remove what no live run needs if a ref holds its work."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.git.checkout import repository_locked
from shoal.git.checkpoints import drop_checkpoints
from shoal.git.imports import release_abandoned
from shoal.git.refs import unpin_abandoned
from shoal.git.repository import dirt
from shoal.git.snapshot import is_hidden
from shoal.model.results import WorkerResult
from shoal.runs.history import forget_runs, list_children, remove_record
from shoal.runs.leftovers import CleanRequest, find_killed_runs, find_leftovers, find_merged_branches
from shoal.runs.removable import Leftover, LeftoverKind, Salvaged, assert_session_files, find_raw_runs, remove_merged
from shoal.runs.request import RunRequest
from shoal.sessions.open_session import prune
from shoal.store.killed_runs import record_lost_sessions
from shoal.store.ledger import open_ledger
from shoal.store.reader import store_at
from shoal.store.reserve import make_reserve, release_if_full
from shoal.workspaces import base_checkouts, object_stores
from shoal.workspaces import setup_layers as setup
from shoal.workspaces.mount import list_mounts, unmount
from shoal.workspaces.remove import remove_all
from shoal.workspaces.worktree import forget_worktree

if TYPE_CHECKING:
    from shoal.runs.recovery import Recovery, RecoveryFailure


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
