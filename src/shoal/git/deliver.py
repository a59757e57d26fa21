"""Move a user's branch together with the working trees that have it checked out, or touch neither."""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal import proc
from shoal.errors import BadInput
from shoal.git.diff import list_touched_files
from shoal.git.refs import aliases
from shoal.git.repository import without_filters
from shoal.git.run import git, git_text
from shoal.model.repository import Repository

MARK = b"held by shoal merge, which goes on with what it began when it is called again\n"
PREFIX = "index-shoal-"


@dataclass(frozen=True, slots=True)
class HeldIndex:
    """A working copy of the index; *keep* replaces the index with it."""

    copy: Path
    keep: Callable[[], object]


@contextlib.contextmanager
def hold_index(gitdir: Path) -> Iterator[HeldIndex | None]:
    """Hold git's lock of the index in *gitdir*; `None` if another git holds it."""
    copy, mark = own_index(gitdir), own_index(gitdir)
    lock, index = gitdir / "index.lock", gitdir / "index"
    mark.write_bytes(MARK)
    try:
        if not _try_lock(mark, lock):
            yield None
            return
        try:
            if index.exists():
                shutil.copy2(index, copy)  # with its time, from which git tells which files to check again
            yield HeldIndex(copy, lambda: copy.replace(index))
        finally:
            lock.unlink(missing_ok=True)
    finally:
        for left in (mark, copy, copy.with_name(f"{copy.name}.lock")):
            left.unlink(missing_ok=True)


def _try_lock(mark: Path, lock: Path) -> bool:
    """Create the lock with its content atomically, where the file system has hard links."""
    try:
        os.link(mark, lock)
    except FileExistsError:
        return False
    except OSError:
        try:
            with lock.open("xb") as file:
                file.write(MARK)
        except FileExistsError:
            return False
    return True


def own_index(gitdir: Path) -> Path:
    """Return the path of our index beside the user's own."""
    return gitdir / f"{PREFIX}{secrets.token_hex(4)}"


def clear_stale_lock(gitdir: Path) -> None:
    """Remove the lock that a killed Shoal left; the caller holds the repository's lock."""
    lock = gitdir / "index.lock"
    with contextlib.suppress(OSError):
        if lock.is_file() and lock.stat().st_size == len(MARK) and lock.read_bytes() == MARK:
            lock.unlink()
    for left in gitdir.glob(f"{PREFIX}*"):
        left.unlink(missing_ok=True)


HEADS = "refs/heads/"
UNDERWAY = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisect",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "index.lock": "another git",
}


@dataclass(frozen=True, slots=True)
class Checkout:
    """A working tree of the user, with its own gitdir."""

    tree: Path
    gitdir: Path


async def checkouts(repository: Repository, branch: str) -> list[Checkout]:
    """Find the working trees that are on *branch*, or in a rebase of it."""
    pointers = sorted((repository.git / "worktrees").glob("*/gitdir"))
    # Since git 2.48 a pointer may be relative to its folder.
    linked = [
        Checkout(Path(os.path.normpath(pointer.parent / _text(pointer))).parent, pointer.parent) for pointer in pointers
    ]
    main = Checkout(repository.home, repository.git)
    names = await aliases(repository, f"{HEADS}{branch}")
    found = [checkout for checkout in (main, *linked) if checkout.tree.is_dir() and _is_on(checkout.gitdir, names)]
    if main in found and not _is_of(main):
        found.remove(main)
        if (await git_text(repository.git, "rev-parse", "--is-bare-repository")) != "true":
            raise BadInput(f"{branch} is checked out where Shoal cannot find it; run it in that working tree")
    return found


def _is_of(checkout: Checkout) -> bool:
    """Return whether the working tree belongs to the gitdir: a bare repository has none, and some keep it elsewhere."""
    pointer = checkout.tree / ".git"
    place = pointer if pointer.is_dir() else checkout.tree / _text(pointer).removeprefix("gitdir: ")
    return place.resolve() == checkout.gitdir


def _is_on(gitdir: Path, refs: Container[str]) -> bool:
    rebased = (gitdir / folder / "head-name" for folder in ("rebase-merge", "rebase-apply"))
    return _text(gitdir / "HEAD").removeprefix("ref: ") in refs or any(_text(place) in refs for place in rebased)


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="surrogateescape").strip()
    except OSError:
        return ""


async def obstacle(repository: Repository, checkout: Checkout, old: str, new: str) -> str | None:
    """Return what prevents *checkout* from moving from *old* to *new*, or `None`."""
    clear_stale_lock(checkout.gitdir)
    for name, what in UNDERWAY.items():
        if (checkout.gitdir / name).exists():
            return f"{what} is under way there"
    if dirty := await _list_changed_files(repository, checkout):
        return f"{len(dirty)} {'file has' if len(dirty) == 1 else 'files have'} changes that are not committed"
    if (lying := await _find_covered(repository, checkout, old, new)) is not None:
        return f"{lying!r}, which git does not track, lies where a new file would go; move it away first"
    return await _find_filter(repository, checkout, old, new)


async def _find_covered(repository: Repository, checkout: Checkout, old: str, new: str) -> str | None:
    """Return what exists where *new* adds a file: git would silently overwrite ignored files."""
    added = _entries((await git(repository.git, *_ADDED, old, new, limit=2**30)).stdout)
    lying = dict.fromkeys(place for path in added if (place := _lying(checkout.tree, path)) is not None)
    if not lying:
        return None
    listed = await git(repository.git, "ls-tree", "-r", "-z", "--name-only", old, limit=2**30)
    tracked = frozenset(_entries(listed.stdout))
    return next((file for place in lying for file in _files(checkout.tree, place) if file not in tracked), None)


def _lying(tree: Path, path: str) -> str | None:
    """Return what exists at *path*, or a file in place of a folder that *path* needs."""
    parts = path.split("/")
    for end in range(1, len(parts) + 1):
        place = "/".join(parts[:end])
        try:
            mode = os.lstat(tree / place).st_mode
        except OSError:
            return None
        if end == len(parts) or not stat.S_ISDIR(mode):
            return place
    return None


def _files(tree: Path, place: str) -> Iterator[str]:
    """Yield everything at *place* and below that is not a folder."""
    if (tree / place).is_symlink() or not (tree / place).is_dir():
        yield place
        return
    for name in sorted(os.listdir(tree / place)):
        yield from _files(tree, f"{place}/{name}")


async def is_half_delivered(repository: Repository, checkout: Checkout, old: str, new: str) -> bool:
    """Return whether each file is as in *old* or as in *new*: then an interrupted delivery can continue."""
    if (checkout.gitdir / "index.lock").exists():
        return False
    strange = await _list_changed_files(repository, checkout, old) | await _alone(repository, checkout, old, new)
    strange &= await _list_changed_files(repository, checkout, new) | await _alone(repository, checkout, new, old)
    return all([await _is_begun(repository, checkout, new, path) for path in strange])


async def _alone(repository: Repository, checkout: Checkout, mine: str, other: str) -> set[str]:
    """Return the existing files that *other* has and *mine* does not."""
    done = await git(repository.git, *_ADDED, mine, other, limit=2**30)
    return {path for path in _entries(done.stdout) if os.path.lexists(checkout.tree / path)}


_ADDED = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", "--diff-filter=A", "--ignore-submodules=all")


async def _is_begun(repository: Repository, checkout: Checkout, new: str, path: str) -> bool:
    """Return whether the file is a prefix of its new content: then git was killed while writing it."""
    try:
        file = os.open(checkout.tree / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode) or os.fstat(file).st_size > MAX_BEGUN_BYTES:
            return False
        begun = opened.read(MAX_BEGUN_BYTES)
    whole = await git(repository.git, "cat-file", "blob", f"{new}:{path}", accept=(0, 128), limit=2 * MAX_BEGUN_BYTES)
    return whole.ok and whole.stdout.startswith(begun)


MAX_BEGUN_BYTES = 64 * 2**20


async def advance_checkout(
    repository: Repository, checkout: Checkout, old: str, new: str, *, again: bool
) -> str | None:
    """Move index and files from *old* to *new*; if git refuses, change nothing and return why.

    *again* continues an interrupted delivery: each file is known to match one of the two.
    """
    how = ("--reset", "-u", new) if again else ("-m", "-u", old, new)
    with hold_index(checkout.gitdir) as held:
        if held is None:
            return f"{UNDERWAY['index.lock']} is under way there"
        # Copied or restored files have other times than the index records, and git refuses to overwrite those.
        await _git(repository, checkout, "update-index", "-q", "--refresh", index=held.copy, accept=(0, 1))
        done = await _git(repository, checkout, "read-tree", *how, index=held.copy, accept=(0, 1, 128))
        if done.ok:
            held.keep()
            return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[0][:300] if lines else "git refuses, and gives no reason"


async def _list_changed_files(repository: Repository, checkout: Checkout, tree: str | None = None) -> set[str]:
    """Return the tracked files with changes, staged or not, or those that differ from *tree*."""
    listing = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=all")
    if tree is None:
        done = await _git(repository, checkout, *listing)
        return {entry[3:] for entry in _entries(done.stdout)}
    with _index(checkout) as index:
        await _git(repository, checkout, "read-tree", tree, index=index)
        done = await _git(repository, checkout, *listing, index=index)
    return {entry[3:] for entry in _entries(done.stdout) if entry[1] != " "}


async def _find_filter(repository: Repository, checkout: Checkout, old: str, new: str) -> str | None:
    """Return a filter that a changed file would go through: only the user starts that program."""
    paths = (await list_touched_files(repository, old, [new]))[new]
    with _index(checkout) as index:
        await _git(repository, checkout, "read-tree", new, index=index)
        asked = "".join(f"{path}\0" for path in paths).encode(errors="surrogateescape")
        how = ("check-attr", "--cached", "-z", "--stdin", "filter")
        done = await _git(repository, checkout, *how, index=index, stdin=asked)
    words = _entries(done.stdout)
    found = [(path, name) for path, name in zip(words[::3], words[2::3], strict=True) if name not in NO_FILTER]
    if not found:
        return None
    return f"{len(found)} of the changed files go through the filter {found[0][1]!r}, which only you should start"


NO_FILTER = ("unspecified", "unset")


@contextlib.contextmanager
def _index(checkout: Checkout) -> Iterator[Path]:
    """Provide a temporary index beside the user's own."""
    place = own_index(checkout.gitdir)
    try:
        yield place
    finally:
        for left in (place, place.with_name(f"{place.name}.lock")):
            left.unlink(missing_ok=True)


async def _git(
    repository: Repository,
    checkout: Checkout,
    *args: str,
    index: Path | None = None,
    stdin: bytes = b"",
    accept: tuple[int, ...] = (0,),
) -> proc.Completed:
    """Run git in the user's checkout, with their line endings, but without their filters, hooks or monitors."""
    settings = [f"{key}={value}" for key, value in repository.settings.items()]
    flags = (*(word for setting in settings for word in ("-c", setting)), *await without_filters(repository))
    env = {"GIT_WORK_TREE": str(checkout.tree)} | ({"GIT_INDEX_FILE": str(index)} if index else {})
    return await git(checkout.gitdir, *flags, *args, env=env, stdin=stdin, accept=accept, limit=2**30)


def _entries(output: bytes) -> Sequence[str]:
    return output.decode(errors="surrogateescape").split("\0")[:-1]
