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
from shoal.errors import Broken, first_of
from shoal.git.gitdir import quoted
from shoal.git.run import ENVIRONMENT, FLAGS, TIMEOUT, git
from shoal.model.command import Command
from shoal.model.repository import Repository

MAX_PACK_BYTES = 512 * 2**20
MAX_BLOB_BYTES = 100 * 2**20
UNPACK_BELOW_OBJECTS = 100
UNPACK_BELOW_BYTES = 8 * 2**20
OVER_LIMIT = b"attempting to allocate"
# Names of changed files, which are looked at in memory: some 400,000 of them, or fewer where they are long.
MAX_LISTED_BYTES = 64 * 2**20
# The most that git may ask for at once, so that an object of gigabytes, packed to nothing, does not fill the memory.
MAX_ALLOC_BYTES = 512 * 2**20
GITLINK = "160000"
STATE = re.compile(r'"?\.shoal(?:[/"]|\Z)')
QUARANTINE = "tmp_objdir-shoal-"


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the pack was not taken; nothing of it is in the repository."""

    why: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The tip is whole in the repository's objects; no ref holds it yet."""

    tip: str
    paths: tuple[str, ...]
    """What differs from the base."""

    @property
    def files_changed(self) -> int:
        """Count them."""
        return len(self.paths)


async def take(repository: Repository, pack: Path, *, base: str, tips: tuple[str, ...]) -> Taken | Refused:
    """Check *pack* in a quarantine folder and move its objects into the repository, if it is sound.

    The first of *tips* is the session's result and must descend from *base*; the others are kept beside it.
    """
    for tip in tips:
        if not re.fullmatch(rf"[0-9a-f]{{{repository.digits}}}", tip):
            return Refused(f"its tip is not an object name: {tip[:80]!r}")
    with _quarantine(repository) as aside:
        alone = {"GIT_OBJECT_DIRECTORY": str(aside), "GIT_ALLOC_LIMIT": str(MAX_ALLOC_BYTES)}
        env = {**alone, "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(repository.lenders[0], ":")}
        if refusal := await _unpacked(repository, pack, env):
            return Refused(refusal)
        try:
            async with asyncio.TaskGroup() as group:
                whole = group.create_task(_not_whole(repository, base, tips, env))
                related = group.create_task(_unrelated(repository, base, tips[0], env))
                brought = group.create_task(_objects(repository, alone))
                change = group.create_task(_changed(repository, base, tips[0], env))
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        refusal = whole.result() or related.result() or _too_large(brought.result()) or change.result().refusal
        commits = [one.name for one in brought.result() if one.kind == "commit"]
        if not refusal and len(commits) > 1:
            refusal = await _barred(repository, commits, env)
        if refusal:
            return Refused(refusal)
        _migrate(aside, repository.lenders[0])
    return Taken(tips[0], change.result().paths)


@contextlib.contextmanager
def _quarantine(repository: Repository) -> Iterator[Path]:
    # On the same file system as the objects, so that each file moves by one rename; git's own prefix, so gc knows it.
    prefix = f"{QUARANTINE}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=repository.lenders[0]) as folder:
        yield Path(folder)


def quarantines_left(repository: Repository) -> list[Path]:
    """Name the quarantines whose process is gone."""
    found = repository.lenders[0].glob(f"{QUARANTINE}*")
    return [path for path in found if not Path("/proc", path.name.removeprefix(QUARANTINE).split("-")[0]).exists()]


async def _unpacked(repository: Repository, pack: Path, env: Mapping[str, str]) -> str | None:
    with pack.open("rb") as file:
        start = file.read(32)
    if start[:4] != b"PACK" or len(start) < 32:
        return "what came out of the box is not a pack"
    few = int.from_bytes(start[8:12], "big") < UNPACK_BELOW_OBJECTS
    # Unpacking keeps every commit and tree in memory until the last is checked: only small ones, then.
    small = {**env, "GIT_ALLOC_LIMIT": str(UNPACK_BELOW_BYTES)}
    done = await _fed(repository, pack, ("unpack-objects", "-q"), small) if few else None
    if done is None or OVER_LIMIT in done.stderr:
        done = await _fed(repository, pack, ("index-pack", "--stdin", "--fix-thin"), env)
    return None if done.ok else f"git does not take its objects: {_first_error(done.stderr)}"


async def _fed(repository: Repository, pack: Path, verb: tuple[str, ...], env: Mapping[str, str]) -> proc.Completed:
    command = Command(
        argv=("git", *FLAGS, *verb, "--strict", f"--max-input-size={MAX_PACK_BYTES}"),
        cwd=Path("/"),
        env={**ENVIRONMENT, "GIT_DIR": str(repository.git), **env},
        stdin=pack,
    )
    return await proc.run(command, timeout=TIMEOUT)


async def _not_whole(repository: Repository, base: str, tips: tuple[str, ...], env: Mapping[str, str]) -> str | None:
    done = await git(repository.git, "rev-list", "--objects", "--quiet", *tips, f"^{base}", env=env, accept=(0, 128))
    return None if done.ok else f"its history is not whole: {_last_line(done.stderr)}"


async def _unrelated(repository: Repository, base: str, tip: str, env: Mapping[str, str]) -> str | None:
    done = await git(repository.git, "merge-base", "--is-ancestor", base, tip, env=env, accept=(0, 1, 128))
    return None if done.ok else "it does not descend from the base"


@dataclass(frozen=True, slots=True)
class _Object:
    """One object that the pack brought."""

    name: str
    kind: str
    size: int


async def _objects(repository: Repository, env: Mapping[str, str]) -> list[_Object]:
    asked = "--batch-check=%(objectname) %(objecttype) %(objectsize)"
    done = await git(repository.git, "cat-file", "--batch-all-objects", "--unordered", "--buffer", asked, env=env)
    if done.dropped:
        raise Broken("a pack brought more objects than can be looked at")
    rows = (line.split() for line in done.stdout.decode().splitlines())
    return [_Object(name, kind, int(size)) for name, kind, size in rows]


def _too_large(objects: list[_Object]) -> str | None:
    for one in objects:
        if one.kind == "blob" and one.size > MAX_BLOB_BYTES:
            return f"the file {one.name[:10]} has {one.size // 2**20} MiB; at most {MAX_BLOB_BYTES // 2**20} are taken"
    return None


@dataclass(frozen=True, slots=True)
class _Change:
    """Which files differ between base and tip, and whether one of them may not."""

    paths: tuple[str, ...]
    refusal: str | None


async def _changed(repository: Repository, base: str, tip: str, env: Mapping[str, str]) -> _Change:
    options = ("-r", "-z", "--raw", "--no-renames")
    done = await git(repository.git, "diff-tree", *options, base, tip, env=env, accept=(0, 128), limit=MAX_LISTED_BYTES)
    if done.dropped:
        return _Change((), "it changes more files than can be looked at")
    words = done.stdout.decode(errors="surrogateescape").split("\0")[:-1]
    pairs = list(zip(words[::2], words[1::2], strict=False))
    return _Change(tuple(path for _, path in pairs), _barred_in([f"{facts}\t{path}" for facts, path in pairs]))


async def _barred(repository: Repository, commits: list[str], env: Mapping[str, str]) -> str | None:
    """Look at each commit by itself: what one added, a later one may have taken away again."""
    raw = await git(
        repository.git,
        *("diff-tree", "--stdin", "-r", "-m", "--root", "--raw", "--no-renames"),
        env=env,
        stdin="".join(f"{commit}\n" for commit in commits).encode(),
    )
    return "too much changes in it" if raw.dropped else _barred_in(raw.stdout.decode(errors="replace").splitlines())


def _barred_in(lines: list[str]) -> str | None:
    for line in lines:
        facts, _, path = line.partition("\t")
        if facts.startswith(":") and facts.split(" ")[1] == GITLINK:
            return f"it adds or changes a nested repository: {path}"
        # git takes ignored files for expendable: a checkout of it would put an agent's ledger in the place of ours.
        if facts.startswith(":") and STATE.match(path):
            return f"it changes what is Shoal's own: {path}"
    return None


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


def _first_error(stderr: bytes) -> str:
    """Give the line that says which object is bad and why; git's last line only says that one is."""
    lines = stderr.decode(errors="replace").splitlines()
    return next((line[:300] for line in lines if line.startswith("error")), _last_line(stderr))


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "nothing was said"
