"""A base that builds on another: only the files that differ are checked out, in a layer over the other's tree."""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.git.gitdir import write_gitdir
from shoal.git.lock import repository_locked
from shoal.git.run import git
from shoal.model.repository import Base, Repository
from shoal.workspaces.base import held_base, noted_base, settings_digest, write_note
from shoal.workspaces.remove import removed

WHITEOUT = os.makedev(0, 0)
"""How overlayfs marks what a layer takes away; any user may make one since Linux 5.8."""


@dataclass(frozen=True, slots=True)
class _Difference:
    """What a commit has otherwise than the base, and what it has no more."""

    changed: tuple[bytes, ...]
    gone: tuple[bytes, ...]


@contextlib.asynccontextmanager
async def delta_ready(repository: Repository, commit: str, over: Base, bases: Path) -> AsyncIterator[Base]:
    """Hold a layer that turns *over*, a whole checkout, into *commit*; made now if it is not there."""
    folder = bases / f"{commit}-{settings_digest(repository)}-over-{over.commit[:12]}"
    async with repository_locked(repository.git):
        if not (folder / "ready").exists():
            await _made(repository, commit, over, folder)
        hold = held_base(folder)
    try:
        os.utime(folder / "ready")
        note = noted_base(folder)
        tree, index = folder / "tree", folder / "index"
        yield Base(
            commit=commit,
            tree=tree,
            below=over.trees,
            over=over,
            index=index,
            files=note["files"],
            bytes=over.bytes + note["bytes"],
        )
    finally:
        os.close(hold)


async def _made(repository: Repository, commit: str, over: Base, folder: Path) -> None:
    """Build aside and rename into place, so that a layer is whole or absent."""
    aside = folder.with_name(f"making-{secrets.token_hex(4)}")
    tree, index, shadow = aside / "tree", aside / "index", aside / "git"
    tree.mkdir(parents=True)
    shutil.copyfile(over.index, index)
    write_gitdir(shadow, repository, head=commit, refs={}, index=None, loose_stat=False)
    env = {"GIT_WORK_TREE": str(tree), "GIT_INDEX_FILE": str(index)}
    difference = await _difference(shadow, over.commit, commit)
    # Of one tree: entries that stay as they are keep their stat data, which is that of the layer below.
    await git(shadow, "read-tree", "-m", commit, env=env)
    names = (await git(shadow, "ls-files", "-z", env=env, limit=2**30)).stdout.split(b"\0")[:-1]
    changed = b"".join(name + b"\0" for name in difference.changed)
    await git(shadow, "checkout-index", "-u", "-z", "--stdin", env=env, stdin=changed)
    _whiten(tree, difference.gone, set(_folders(names)))
    write_note(aside, tree, files=len(names))
    await removed(folder, shadow)
    aside.rename(folder)


async def _difference(shadow: Path, base: str, commit: str) -> _Difference:
    wanted = ("-r", "-z", "--name-status", "--no-renames", "--ignore-submodules=all")
    done = await git(shadow, "diff-tree", *wanted, base, commit, limit=2**30)
    words = done.stdout.split(b"\0")[:-1]
    pairs = list(zip(words[::2], words[1::2], strict=True))
    changed = tuple(path for kind, path in pairs if kind != b"D")
    return _Difference(changed, tuple(path for kind, path in pairs if kind == b"D"))


def _whiten(tree: Path, gone: tuple[bytes, ...], folders: set[bytes]) -> None:
    """Hide what is gone: a folder as a whole where the commit has nothing in it any more."""
    for top in {_topmost(path, folders) for path in gone}:
        place = os.fsencode(tree) + b"/" + top
        if os.path.lexists(place):
            continue  # a file where a folder was hides it already
        os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120 - names are bytes
        if not stat.S_ISLNK(os.lstat(os.path.dirname(place)).st_mode):  # noqa: PTH120
            os.mknod(place, stat.S_IFCHR | 0o600, WHITEOUT)


def _topmost(path: bytes, folders: set[bytes]) -> bytes:
    while (above := os.path.dirname(path)) and above not in folders:  # noqa: PTH120
        path = above
    return path


def _folders(names: list[bytes]) -> Iterator[bytes]:
    seen: set[bytes] = set()
    for name in names:
        above = os.path.dirname(name)  # noqa: PTH120
        while above and above not in seen:
            seen.add(above)
            yield above
            above = os.path.dirname(above)  # noqa: PTH120
