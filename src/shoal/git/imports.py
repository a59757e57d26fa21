"""Taking a pack from a box into the user's repository: bounded, strict, checked aside, then a ref at once."""

import asyncio
import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal import proc
from shoal.git.gitdir import quoted
from shoal.git.run import ENVIRONMENT, FLAGS, TIMEOUT, git
from shoal.model.command import Command
from shoal.model.repository import Repository

MAX_PACK_BYTES = 512 * 2**20
MAX_BLOB_BYTES = 100 * 2**20
UNPACK_BELOW_OBJECTS = 100
GITLINK = "160000"


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the pack was not taken; nothing of it is in the repository."""

    why: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The tip is whole in the repository's objects; no ref holds it yet."""

    tip: str
    files_changed: int


async def take(repository: Repository, pack: bytes | Path, *, base: str, tips: tuple[str, ...]) -> Taken | Refused:
    """Check *pack* in a quarantine folder and move its objects into the repository, if it is sound.

    The first of *tips* is the session's result and must descend from *base*; the others are kept beside it.
    """
    for tip in tips:
        if not re.fullmatch(rf"[0-9a-f]{{{repository.digits}}}", tip):
            return Refused(f"its tip is not an object name: {tip[:80]!r}")
    with _quarantine(repository) as aside:
        env = {
            "GIT_OBJECT_DIRECTORY": str(aside),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(repository.lenders[0], ":"),
        }
        if refusal := await _unpacked(repository, pack, env):
            return Refused(refusal)
        async with asyncio.TaskGroup() as group:
            unsound = group.create_task(_unsound(repository, base, tips, env))
            unrelated = group.create_task(_unrelated(repository, base, tips[0], env))
            changed = group.create_task(_files_changed(repository, base, tips[0], env))
        if refusal := unrelated.result() or unsound.result():
            return Refused(refusal)
        _migrate(aside, repository.lenders[0])
    return Taken(tips[0], changed.result())


@contextlib.contextmanager
def _quarantine(repository: Repository) -> Iterator[Path]:
    # On the same file system as the objects, so that each file moves by one rename; git's own prefix, so gc knows it.
    with tempfile.TemporaryDirectory(prefix="tmp_objdir-shoal-", dir=repository.lenders[0]) as folder:
        yield Path(folder)


async def _unpacked(repository: Repository, pack: bytes | Path, env: Mapping[str, str]) -> str | None:
    content = pack if isinstance(pack, bytes) else pack.read_bytes()
    if content[:4] != b"PACK" or len(content) < 32:
        return "what came out of the box is not a pack"
    few = int.from_bytes(content[8:12], "big") < UNPACK_BELOW_OBJECTS
    bound = f"--max-input-size={MAX_PACK_BYTES}"
    args = (
        ("unpack-objects", "-q", "--strict", bound)
        if few
        else ("index-pack", "--stdin", "--fix-thin", "--strict", bound)
    )
    command = Command(
        argv=("git", *FLAGS, *args),
        cwd=Path("/"),
        env={**ENVIRONMENT, "GIT_DIR": str(repository.git), **env},
        stdin=content,
    )
    done = await proc.run(command, timeout=TIMEOUT)
    return None if done.ok else f"git does not take its objects: {_last_line(done.stderr)}"


async def _unsound(repository: Repository, base: str, tips: tuple[str, ...], env: Mapping[str, str]) -> str | None:
    listed = await git(
        repository.git, "rev-list", "--objects", "--no-object-names", *tips, f"^{base}", env=env, accept=(0, 128)
    )
    if not listed.ok:
        return f"its history is not whole: {_last_line(listed.stderr)}"
    objects = await _objects(repository, listed.stdout, env)
    for one in objects:
        if one.kind == "blob" and one.size > MAX_BLOB_BYTES:
            return f"the file {one.name[:10]} has {one.size // 2**20} MiB; at most {MAX_BLOB_BYTES // 2**20} are taken"
    return await _new_gitlink(repository, [one.name for one in objects if one.kind == "commit"], env)


@dataclass(frozen=True, slots=True)
class _Object:
    """One object that the pack brings."""

    name: str
    kind: str
    size: int


async def _objects(repository: Repository, names: bytes, env: Mapping[str, str]) -> list[_Object]:
    asked = "%(objectname) %(objecttype) %(objectsize)"
    done = await git(repository.git, "cat-file", f"--batch-check={asked}", "--buffer", env=env, stdin=names)
    rows = (line.split() for line in done.stdout.decode().splitlines())
    return [_Object(name, kind, int(size)) for name, kind, size in rows]


async def _new_gitlink(repository: Repository, commits: list[str], env: Mapping[str, str]) -> str | None:
    raw = await git(
        repository.git,
        *("diff-tree", "--stdin", "-r", "-m", "--root", "--raw", "--no-renames"),
        env=env,
        stdin="".join(f"{commit}\n" for commit in commits).encode(),
    )
    for line in raw.stdout.decode(errors="replace").splitlines():
        if line.startswith(":") and line.split(" ")[1] == GITLINK:
            return f"it adds or changes a nested repository: {line.split(chr(9), 1)[-1]}"
    return None


async def _unrelated(repository: Repository, base: str, tip: str, env: Mapping[str, str]) -> str | None:
    done = await git(repository.git, "merge-base", "--is-ancestor", base, tip, env=env, accept=(0, 1, 128))
    return None if done.ok else "it does not descend from the base"


async def _files_changed(repository: Repository, base: str, tip: str, env: Mapping[str, str]) -> int:
    done = await git(
        repository.git, "diff-tree", "-r", "-z", "--name-only", "--no-renames", base, tip, env=env, accept=(0, 128)
    )
    return done.stdout.count(b"\0")


def _migrate(aside: Path, objects: Path) -> None:
    """Move loose objects, then packs, each pack before its index, as git itself does."""
    found = sorted(
        (path for path in aside.rglob("*") if path.is_file()), key=lambda path: (path.suffix == ".idx", path)
    )
    for path in found:
        target = objects / path.relative_to(aside)
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            os.rename(path, target)  # noqa: PTH104 - rename, not replace: an object that exists is the same object


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "nothing was said"
