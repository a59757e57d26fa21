"""Cleaning up: killed runs are brought in, and what no live run needs is removed, if a ref holds its work."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.engine.leftovers import Finding, Sort, killed_runs, leftovers
from shoal.engine.prepare import Ask, prepared
from shoal.engine.quarters import prune
from shoal.engine.sweep import sweep
from shoal.git.lock import repository_locked
from shoal.git.repository import dirt
from shoal.git.snapshot import is_hidden
from shoal.model.repository import Repository
from shoal.model.results import WorkerResult
from shoal.store.paths import StatePaths
from shoal.workspaces import base as bases
from shoal.workspaces import setup
from shoal.workspaces.mount import mounted_below, unmount
from shoal.workspaces.remove import removed
from shoal.workspaces.worktree import forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """What was done: sessions of killed runs *brought_in*, things *gone*, and things *left* where they are."""

    brought_in: tuple[WorkerResult, ...] = ()
    gone: tuple[Finding, ...] = ()
    left: tuple[Finding, ...] = ()

    @property
    def freed_bytes(self) -> int:
        """Add up what was removed."""
        return sum(one.size_bytes for one in self.gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broom:
    """Where to clean, and whether what no ref holds may go too."""

    folder: Path
    repository: Repository
    paths: StatePaths
    environ: Mapping[str, str] = field(repr=False)
    force: bool = False
    older_than: float | None = None
    """How many seconds old a log or a patch must be to go too; `None` leaves them all."""


async def clean(broom: Broom) -> Cleaning:
    """Bring in the killed runs, then remove what may go."""
    lost = await _brought_in(broom)
    if broom.paths.bases.is_dir():
        await bases.swept(broom.repository, broom.paths.bases)
    seen = await leftovers(broom.repository, broom.paths, broom.older_than)
    found = [one for one in seen if one.sort is not Sort.KILLED]
    gone = [one for one in found if (broom.force or not one.needs_force) and await _removed(broom, one)]
    return Cleaning(brought_in=lost, gone=tuple(gone), left=tuple(one for one in found if one not in gone))


async def _brought_in(broom: Broom) -> tuple[WorkerResult, ...]:
    """Sweep, behind the wall that the latest killed run had; without a killed run no wall is needed."""
    killed = killed_runs(broom.paths)
    if not killed:
        return ()
    strategy = "directory" if is_hidden(broom.repository) else "auto"
    ask = Ask(folder=broom.folder, environ=broom.environ, name="clean", strategy=strategy)
    async with prepared(replace(ask, sandbox=killed[-1].wall or ask.sandbox)) as site:
        return tuple(await sweep(site))


async def _removed(broom: Broom, finding: Finding) -> bool:
    """Remove one thing; `False` when it turns out to be in use."""
    match finding.sort:
        case Sort.LEFTOVER | Sort.RAW:
            await _workspace_removed(broom, finding.path)
        case Sort.POOL:
            await _pooled_removed(broom, finding.path)
        case Sort.BASE:
            await bases.evicted(broom.repository, finding.path)
            return not finding.path.exists()
        case Sort.SETUP:
            await setup.evicted(finding.path)
            return not finding.path.exists()
        case Sort.OPENED:
            return await _opened_removed(broom, finding.path)
        case Sort.LOG | Sort.RESULT:
            _record_removed(finding.path)
        case Sort.ARTIFACTS:
            await removed(finding.path)
        case Sort.KILLED:
            return False
    return True


async def _workspace_removed(broom: Broom, path: Path) -> None:
    for place in mounted_below(path):
        unmount(place)
    await forgotten(broom.repository, path)
    await removed(path)
    prune(path, broom.paths.workspaces if path.is_relative_to(broom.paths.workspaces) else path.parent)


def _record_removed(path: Path) -> None:
    for one in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        one.unlink(missing_ok=True)


async def _pooled_removed(broom: Broom, path: Path) -> None:
    async with repository_locked(broom.repository.git):
        # Without its note no run takes it any more.
        path.with_suffix(".json").unlink(missing_ok=True)
    await forgotten(broom.repository, path)
    await removed(path)


async def _opened_removed(broom: Broom, path: Path) -> bool:
    """Take away a worktree that a person opened, unless there is work of theirs in it."""
    if (path / ".git").is_file() and await dirt(replace(broom.repository, top=path)) > 0:
        return False
    await forgotten(broom.repository, path)
    await removed(path)
    return True
