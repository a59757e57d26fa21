"""What `shoal clean` may remove, and agents' branches whose work is proved to be merged into a branch of the user."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from shoal import proc
from shoal.errors import BadInput
from shoal.git.refs import ABSENT, Move, list_refs, move, value
from shoal.git.run import git
from shoal.model.command import Command
from shoal.model.repository import Repository
from shoal.store.fold import fold
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.store.run_state import RunState


class LeftoverKind(StrEnum):
    """The kind of a leftover."""

    KILLED = "killed run"
    LEFTOVER = "leftover"
    POOL = "warm worktree"
    BASE = "base checkout"
    OBJECTS = "object store"
    SETUP = "set-up"
    RAW = "raw files"
    CHECKPOINTS = "checkpoints"
    OPENED = "opened worktree"
    CONVERSATION = "conversation"
    LOG = "log"
    RESULT = "patch"
    ARTIFACTS = "artifact"
    BRANCH = "merged branch"
    RUN = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing on disk; what no ref holds, or a person opened, is removed only with `--force`."""

    kind: LeftoverKind
    path: Path
    size_bytes: int = 0
    changed_at: float = 0.0
    seq: int = 0
    """The number of the last event of a run."""

    @property
    def needs_force(self) -> bool:
        """Return whether removing it could lose work."""
        return self.kind in (LeftoverKind.RAW, LeftoverKind.OPENED)

    @property
    def is_raw(self) -> bool:
        """Say whether it has work that is on no branch."""
        return self.kind is LeftoverKind.RAW

    @property
    def is_record(self) -> bool:
        """Return whether it is a record of a session: it is removed by age, and only on request."""
        return self.kind in (LeftoverKind.LOG, LeftoverKind.RESULT, LeftoverKind.ARTIFACTS, LeftoverKind.RUN)


AGENTS = "refs/heads/agent/"


@dataclass(frozen=True, slots=True)
class Target:
    """The branch that has the work, and its commit."""

    ref: str
    commit: str


async def find_target(repository: Repository, branch: str | None) -> Target:
    """Find the user's branch by name, or the one that is checked out."""
    head = (await git(repository.git, "symbolic-ref", "--quiet", "HEAD", accept=(0, 1))).stdout.decode().strip()
    ref = f"refs/heads/{branch}" if branch is not None else head
    commit = await value(repository, ref) if ref else None
    if commit is None:
        what = f"there is no branch {branch!r}" if branch is not None else "no branch is checked out"
        raise BadInput(f"{what}; name the branch that has the work with --into BRANCH")
    return Target(ref, commit)


async def find_merged(repository: Repository, target: Target, busy: Container[str]) -> list[str]:
    """List the agents' branches whose work is in *target*; those in *busy* are still needed."""
    refs = await list_refs(repository, AGENTS)
    names = [ref for ref in refs if ref.removeprefix("refs/heads/") not in busy]
    opened = await _list_checked_out(repository)
    return [
        ref.removeprefix("refs/heads/")
        for ref in names
        if ref not in opened and await _has(repository, target, refs[ref])
    ]


async def remove_merged(repository: Repository, target: Target, branch: str) -> bool:
    """Remove a branch if *target* still has its work; one transaction checks both refs and removes it."""
    ref = f"refs/heads/{branch}"
    commit = await value(repository, ref)
    if commit is None or ref in await _list_checked_out(repository) or not await _has(repository, target, commit):
        return False
    return await move(repository, [Move(target.ref, target.commit, target.commit), Move(ref, ABSENT, commit)])


async def _has(repository: Repository, target: Target, commit: str) -> bool:
    """Return whether *target* has all of *commit*: in its history, or because merging it would change nothing."""
    ancestor = await git(repository.git, "merge-base", "--is-ancestor", commit, target.commit, accept=(0, 1, 128))
    if ancestor.ok:
        return True
    merged = await git(repository.git, "merge-tree", "--write-tree", target.commit, commit, accept=(0, 1, 128))
    tree = await git(repository.git, "rev-parse", f"{target.commit}^{{tree}}")
    return merged.ok and merged.stdout.split(b"\n")[0].strip() == tree.stdout.strip()


async def _list_checked_out(repository: Repository) -> set[str]:
    done = await git(repository.git, "worktree", "list", "--porcelain", "-z")
    lines = done.stdout.decode(errors="surrogateescape").split("\0")
    return {line.removeprefix("branch ") for line in lines if line.startswith("branch ")}


ARCHIVE = "files.tar.gz"
"""The file of a salvage ref that has the raw files of a session."""


def command_to_unpack(ref: str) -> str:
    """Say how a person gets the files back."""
    return f"git cat-file blob {ref}:{ARCHIVE} | tar -xz -C FOLDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """What became of raw files: the refs that hold them now, and why others stay; both by their paths."""

    refs: Mapping[Path, str]
    failures: Mapping[Path, str]


def find_raw_runs(paths: StatePaths) -> list[RunState]:
    """Find the runs with sessions whose work is still only in raw files."""
    left = {path.name for path in paths.session_dirs.iterdir()} if paths.session_dirs.is_dir() else set()
    if not left:
        return []
    runs = fold(read_events(paths)).runs.values()
    return [run for run in runs if any(left & set(step.sessions) for step in run.steps.values())]


def assert_session_files(paths: StatePaths, wanted: Iterable[Path]) -> None:
    """Raise `BadInput` for what is no session directory or workspace, there now."""
    for path in wanted:
        parents = (path.parent, *path.parents[2:3])
        if not path.is_dir() or not {paths.session_dirs, paths.workspaces} & set(parents):
            raise BadInput(f"{path} is no session directory or workspace of this repository; `shoal clean` lists them")


DU_SECONDS = 600.0


async def measure_sizes(paths: Iterable[Path]) -> dict[Path, int]:
    """Measure what *paths* take on the disk."""
    # By a process: what an agent left may be nested deeper than we can walk.
    words = [str(path) for path in paths]
    if not words:
        return {}
    argv = ("du", "--summarize", "--block-size=1", "--one-file-system", "--null", "--", *words)
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
    done = await proc.run(Command(argv=argv, cwd=Path("/"), env=env), timeout=DU_SECONDS)
    lines = [line.split("\t", 1) for line in done.stdout.decode(errors="surrogateescape").split("\0")[:-1]]
    return {Path(path): int(size) for size, path in lines}
