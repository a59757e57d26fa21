"""Packs of exactly the objects that a commit reaches: all that a sandbox may read of a repository."""

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path

from shoal import proc
from shoal.errors import BadRepository, Broken
from shoal.git.gitdir import quote_path
from shoal.git.run import ENVIRONMENT, FLAGS, git
from shoal.model.command import Command
from shoal.model.repository import Repository

GATHER_SECONDS = 4 * 3600.0  # git counts some 100,000 objects a second
NEAR_COMMITS = 1_000
CUTS = (100, 1_000, 10_000)
MAX_LIST_BYTES = 2**31
_NO_GRAFTS = {"GIT_GRAFT_FILE": "/nonexistent"}


async def pack_closure(
    repository: Repository, commit: str, objects: Path, *, since: str | None = None, is_quick: bool = False
) -> None:
    """Write a pack into the folder *objects* with what *commit* reaches and *since*, an ancestor of it, does not.

    *is_quick* reuses existing deltas and does not search for others.
    """
    asked = (commit, *((f"^{since}",) if since else ()))
    # A repository's own configuration may split packs, or recompress them.
    verb = ("-c", "pack.packSizeLimit=0", "pack-objects", "-q", "--non-empty", *(("--window=0",) if is_quick else ()))
    target = str(objects / "pack" / "pack")
    if repository.promisor is None:
        await _gather(repository, objects, (*verb, "--revs", target), "".join(f"{word}\n" for word in asked).encode())
        return
    # What a partial clone has not fetched stays missing: `pack-objects --revs` cannot skip a missing tree.
    listed = objects / "listed"
    options = ("--objects", "--no-object-names", "--missing=allow-any")
    with listed.open("xb") as file:
        command = _command(repository, objects, ("rev-list", *options, *asked))
        done = await proc.run_into(command, file, timeout=GATHER_SECONDS, limit=MAX_LIST_BYTES)
    if not done.ok or done.dropped:
        raise _copy_error(repository, done)
    await _gather(repository, objects, (*verb, target), listed)
    listed.unlink()
    for pack in (objects / "pack").glob("*.pack"):
        pack.with_suffix(".promisor").touch()


async def _gather(repository: Repository, objects: Path, words: tuple[str, ...], stdin: bytes | Path) -> None:
    done = await proc.run(_command(repository, objects, words, stdin), timeout=GATHER_SECONDS)
    if not done.ok:
        raise _copy_error(repository, done)


def _command(repository: Repository, objects: Path, words: tuple[str, ...], stdin: bytes | Path = b"") -> Command:
    env = {
        # Git writes a pack among its own objects first and renames it: nothing may appear in the user's.
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": quote_path(repository.lenders[0], ":"),
        # Grafts are only the user's: a sandbox sees the history that the commits name.
        **_NO_GRAFTS,
    }
    return Command(
        argv=("git", *FLAGS, *words),
        cwd=Path("/"),
        env={**ENVIRONMENT, "GIT_DIR": str(repository.git), **env},
        stdin=stdin,
    )


def _copy_error(repository: Repository, done: proc.Completed) -> Broken:
    return Broken(f"the history of {repository.top} cannot be copied for agents to read: {_why(done)}")


def _why(done: proc.Completed) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    fatal = (line for line in lines if line.startswith("fatal:"))
    return next(fatal, lines[-1] if lines else "git gave no reason")[:300]


async def nearest_ancestor(repository: Repository, commit: str, known: Collection[str]) -> str | None:
    """Find the latest commit of *known* that is an ancestor of *commit*."""
    for most in (("-n", str(NEAR_COMMITS)), ()):
        done = await git(repository.git, "rev-list", *most, commit, env=_NO_GRAFTS, accept=(0, 128), limit=2**30)
        listed = done.stdout.decode().split()
        found = next((name for name in listed if name in known), None)
        if found is not None or not known or len(listed) < NEAR_COMMITS:
            return found
    return None


async def forks(repository: Repository, commit: str) -> tuple[str, ...]:
    """Return the ancestors from which other branches may fork, oldest first: each gets its own pack."""
    wanted = ("--first-parent", "-n", str(CUTS[-1] + 1))
    done = await git(repository.git, "rev-list", *wanted, commit, env=_NO_GRAFTS, accept=(0, 128))
    if not done.ok:
        raise BadRepository(repository.top, f"the history of {commit[:10]} is not whole: {_why(done)}; see `git fsck`")
    line = done.stdout.decode().split()
    return tuple(line[cut] for cut in reversed(CUTS) if cut < len(line))


async def count_commits(repository: Repository, commit: str) -> int:
    """Count the commits that *commit* reaches; 0 if git cannot."""
    done = await git(repository.git, "rev-list", "--count", commit, accept=(0, 128))
    return int(done.stdout or 0)


async def is_whole(repository: Repository, commit: str, objects: Path) -> bool:
    """Return whether *objects* has every file of *commit*."""
    env = {"GIT_OBJECT_DIRECTORY": str(objects)}
    wanted = ("--objects", "--no-object-names", "--missing=print", f"{commit}^{{tree}}")
    done = await git(repository.git, "rev-list", *wanted, env=env, accept=(0, 128), limit=2**30)
    return done.ok and b"?" not in done.stdout


def boundary(repository: Repository) -> str:
    """Return the shallow boundary, which `git fetch --unshallow` changes; empty for a full history."""
    if not repository.is_shallow:
        return ""
    return hashlib.sha256((repository.git / "shallow").read_bytes()).hexdigest()[:8]


OnGather = Callable[[int], None]
"""Called with the number of commits whose objects are being copied, when that takes long."""
