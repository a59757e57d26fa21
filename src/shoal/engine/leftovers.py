"""What lies below `.shoal` without a live run that needs it, and whether anything else holds its work."""

import contextlib
import math
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from shoal import proc
from shoal.git.run import git
from shoal.model.command import Command
from shoal.model.repository import Repository
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.store.fold import RunState, fold
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths
from shoal.store.read import events

DU_SECONDS = 600.0
TRIAL_SECONDS = 60.0  # longer than any probe of the host takes


class Sort(StrEnum):
    """What kind of thing was found."""

    KILLED = "killed run"
    LEFTOVER = "leftover"
    POOL = "warm worktree"
    BASE = "base checkout"
    SETUP = "set-up"
    RAW = "raw files"
    OPENED = "opened worktree"
    LOG = "log"
    RESULT = "patch"
    ARTIFACTS = "artifact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing on disk; what no ref holds, or what a person opened, goes only by force."""

    sort: Sort
    path: Path
    size_bytes: int = 0

    @property
    def needs_force(self) -> bool:
        """Say whether removing it could lose work."""
        return self.sort in (Sort.RAW, Sort.OPENED)

    @property
    def is_record(self) -> bool:
        """Say whether it is what a session left to be read: that goes by its age, and only when asked for."""
        return self.sort in (Sort.LOG, Sort.RESULT, Sort.ARTIFACTS)


async def leftovers(repository: Repository, paths: StatePaths, older_than: float | None = None) -> list[Finding]:
    """Look at everything, at logs and patches only if they are so many seconds old; nothing is changed."""
    # Listed before the ledger is read: what a new run makes from now on is not in the list, and what is in the
    # list was announced in the ledger before it was made.
    entries = [*_children(paths.boxes), *sorted(paths.workspaces.glob("*/*/worker_*"))]
    noted = [] if older_than is None else _records(paths, time.time() - older_than)
    found = [*_killed(paths), *await _sorted_out(repository, paths, entries), *_kept_for_later(paths)]
    sizes = await _sizes(one.path for one in found if one.sort is not Sort.KILLED)
    sized = [replace(one, size_bytes=sizes.get(one.path, 0)) for one in found]
    return [*sized, *await _ended(repository, paths, noted)]


def records(paths: StatePaths) -> list[Finding]:
    """Find the logs and patches of all sessions, of whatever age."""
    return _records(paths, math.inf)


def killed_runs(paths: StatePaths) -> list[RunState]:
    """Find the runs whose owner is dead, the oldest first."""
    names = {path.stem for path in _locks(paths) if not is_locked(path)}
    state = fold(events(paths))
    return [state.runs.get(name) or RunState(run=name) for name in sorted(names)]


def _killed(paths: StatePaths) -> Iterator[Finding]:
    return (Finding(sort=Sort.KILLED, path=paths.run_lock(run.run)) for run in killed_runs(paths))


def _kept_for_later(paths: StatePaths) -> Iterator[Finding]:
    yield from (Finding(sort=Sort.POOL, path=path) for path in _children(paths.pool) if path.is_dir())
    yield from (Finding(sort=Sort.BASE, path=path.parent) for path in sorted(paths.bases.glob("*/ready")))
    yield from (Finding(sort=Sort.SETUP, path=path.parent) for path in sorted(paths.setups.glob("*/ready")))
    yield from (Finding(sort=Sort.OPENED, path=path) for path in _children(paths.root / "open"))


@dataclass(frozen=True, slots=True)
class _Claim:
    """Who a path belongs to."""

    run: str
    result: WorkerResult | None


async def _sorted_out(repository: Repository, paths: StatePaths, entries: Iterable[Path]) -> list[Finding]:
    claims = _claims(paths)
    busy = {path.stem for path in _locks(paths)}  # live, or killed and still to be brought in
    sorts = {
        entry: await _sort(repository, entry, claims.get(entry)) for entry in entries if not _is_of(entry, claims, busy)
    }
    return [Finding(sort=sort, path=entry) for entry, sort in sorts.items() if sort is not None]


def _records(paths: StatePaths, before: float) -> list[Finding]:
    places = ((Sort.LOG, paths.sessions, ".db"), (Sort.RESULT, paths.results, ".patch"))
    named = [(sort, path) for sort, folder, end in places for path in _children(folder) if path.name.endswith(end)]
    named += [(Sort.ARTIFACTS, path) for path in _children(paths.results) if path.is_dir() and not path.is_symlink()]
    found = []
    for sort, path in named:
        with contextlib.suppress(FileNotFoundError):  # another `clean` may be at work
            seen = path.lstat()
            # Counted here and not by `du`: there may be more of them than fit into a command.
            size = (seen.st_blocks + sum(one.lstat().st_blocks for one in _inside(sort, path))) * 512
            found += [Finding(sort=sort, path=path, size_bytes=size)] if seen.st_mtime < before else []
    return found


def _inside(sort: Sort, path: Path) -> list[Path]:
    return _children(path) if sort is Sort.ARTIFACTS else []


async def _ended(repository: Repository, paths: StatePaths, noted: Iterable[Finding]) -> list[Finding]:
    """Leave out what a run still needs, and a patch whose work no ref holds."""
    claims = _claims(paths)
    busy = {path.stem for path in _locks(paths)}
    ended = [one for one in noted if not _is_of(paths.box(one.path.stem), claims, busy)]
    # What a whole step left is named after its run.
    ended = [one for one in ended if not any(one.path.name.startswith(f"{run}-") for run in busy)]
    return [one for one in ended if one.sort is not Sort.RESULT or await _has_ref(repository, paths, one, claims)]


async def _has_ref(repository: Repository, paths: StatePaths, finding: Finding, claims: Mapping[Path, _Claim]) -> bool:
    claim = claims.get(paths.box(finding.path.stem))
    return claim is not None and await _is_held(repository, claim.result)


def _is_of(entry: Path, claims: Mapping[Path, _Claim], runs: Container[str]) -> bool:
    return entry in claims and claims[entry].run in runs


async def _sort(repository: Repository, entry: Path, claim: _Claim | None) -> Sort | None:
    """Say what *entry* is; `None` for a probe of the host that may be going on."""
    if claim is not None:
        return Sort.LEFTOVER if await _is_held(repository, claim.result) else Sort.RAW
    if not entry.name.startswith("trial-"):
        return Sort.RAW  # the ledger does not know it: it was lost, or is another's
    return Sort.LEFTOVER if time.time() - entry.lstat().st_mtime > TRIAL_SECONDS else None


def _claims(paths: StatePaths) -> dict[Path, _Claim]:
    claims: dict[Path, _Claim] = {}
    for run in fold(events(paths)).runs.values():
        for session in (one for step in run.steps.values() for one in step.sessions.values()):
            claims[paths.box(session.session)] = claims[Path(session.workspace)] = _Claim(run.run, session.result)
    return claims


async def _is_held(repository: Repository, result: WorkerResult | None) -> bool:
    """Say whether a ref holds the work, or there was none; whatever is not sure is not held."""
    if result is None or result.raw is not None:
        return False
    if result.commit is None:
        return result.status is Status.NO_CHANGES
    refs = ("for-each-ref", "--count=1", f"--contains={result.commit}")
    done = await git(repository.git, *refs, accept=(0, 128, 129))
    return done.ok and bool(done.stdout.strip())


def _locks(paths: StatePaths) -> list[Path]:
    return sorted(paths.runs.glob("*.lock"))


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


async def _sizes(paths: Iterable[Path]) -> dict[Path, int]:
    # By a process: what an agent left may be nested deeper than we can walk.
    words = [str(path) for path in paths]
    if not words:
        return {}
    argv = ("du", "--summarize", "--block-size=1", "--one-file-system", "--null", "--", *words)
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
    done = await proc.run(Command(argv=argv, cwd=Path("/"), env=env), timeout=DU_SECONDS)
    lines = [line.split("\t", 1) for line in done.stdout.decode(errors="surrogateescape").split("\0")[:-1]]
    return {Path(path): int(size) for size, path in lines}
