"""A branch of the user's and the working trees that are on it: both move on together, or neither is touched."""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal import proc
from shoal.errors import BadInput
from shoal.git.run import git, git_text
from shoal.git.touching import touched
from shoal.model.repository import Repository

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
    """A working tree of the user's, with the gitdir that is its own."""

    tree: Path
    gitdir: Path


async def checkouts(repository: Repository, branch: str) -> list[Checkout]:
    """Find the working trees that are on *branch*, or in a rebase of it."""
    pointers = sorted((repository.git / "worktrees").glob("*/gitdir"))
    linked = [Checkout(Path(_text(pointer)).parent, pointer.parent) for pointer in pointers]
    main = Checkout(repository.home, repository.git)
    found = [one for one in (main, *linked) if one.tree.is_dir() and _is_on(one.gitdir, f"{HEADS}{branch}")]
    if main in found and not _is_of(main):
        found.remove(main)
        if (await git_text(repository.git, "rev-parse", "--is-bare-repository")) != "true":
            raise BadInput(f"{branch} is checked out where Shoal cannot find it; run it in that working tree")
    return found


def _is_of(checkout: Checkout) -> bool:
    """Say whether the working tree is the gitdir's own: a bare repository has none, and some keep it elsewhere."""
    pointer = checkout.tree / ".git"
    place = pointer if pointer.is_dir() else checkout.tree / _text(pointer).removeprefix("gitdir: ")
    return place.resolve() == checkout.gitdir


def _is_on(gitdir: Path, ref: str) -> bool:
    rebased = (gitdir / folder / "head-name" for folder in ("rebase-merge", "rebase-apply"))
    return _text(gitdir / "HEAD") == f"ref: {ref}" or any(_text(place) == ref for place in rebased)


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="surrogateescape").strip()
    except OSError:
        return ""


async def obstacle(repository: Repository, checkout: Checkout, old: str, new: str) -> str | None:
    """Say what keeps the files of *checkout* from going from *old* to *new*, if anything does."""
    for name, what in UNDERWAY.items():
        if (checkout.gitdir / name).exists():
            return f"{what} is under way there"
    if dirty := await _changed(repository, checkout):
        return f"{len(dirty)} {'file has' if len(dirty) == 1 else 'files have'} changes that are not committed"
    return await _filtered(repository, checkout, old, new)


async def is_half_delivered(repository: Repository, checkout: Checkout, old: str, new: str) -> bool:
    """Say whether each file is as it was in *old* or as it is in *new*: then a delivery was cut off, and can go on."""
    if (checkout.gitdir / "index.lock").exists():
        return False
    strange = [await _changed(repository, checkout, tree) for tree in (old, new)]
    return not strange[0] & strange[1]


async def advanced(repository: Repository, checkout: Checkout, old: str, new: str, *, again: bool) -> str | None:
    """Bring index and files from *old* to *new*; say why not, if git refuses, and then nothing is changed.

    *again* goes on with what was cut off: each file is known to be as in one of the two.
    """
    how = ("--reset", "-u", new) if again else ("-m", "-u", old, new)
    done = await _git(repository, checkout, "read-tree", *how, accept=(0, 1, 128))
    if done.ok:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return said[0][:300] if said else "git refuses, and gives no reason"


async def _changed(repository: Repository, checkout: Checkout, tree: str | None = None) -> set[str]:
    """Name the tracked files that have changes: staged or not, or against *tree* alone."""
    listing = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=all")
    if tree is None:
        done = await _git(repository, checkout, *listing)
        return {entry[3:] for entry in _entries(done.stdout)}
    with _index(checkout) as index:
        await _git(repository, checkout, "read-tree", tree, index=index)
        done = await _git(repository, checkout, *listing, index=index)
    return {entry[3:] for entry in _entries(done.stdout) if entry[1] != " "}


async def _filtered(repository: Repository, checkout: Checkout, old: str, new: str) -> str | None:
    """Name a filter that a changed file would go through: it is a program of the user's, for the user to start."""
    paths = (await touched(repository, old, [new]))[new]
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
    """Lend an index of ours beside the user's own."""
    place = checkout.gitdir / f"index-shoal-{secrets.token_hex(4)}"
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
    """Run git in the user's checkout, with their line endings, and without a filter, hook or monitor of theirs."""
    settings = [f"{key}={value}" for key, value in repository.settings.items()]
    flags = [word for one in (*settings, *await _no_filters(repository)) for word in ("-c", one)]
    env = {"GIT_WORK_TREE": str(checkout.tree)} | ({"GIT_INDEX_FILE": str(index)} if index else {})
    return await git(checkout.gitdir, *flags, *args, env=env, stdin=stdin, accept=accept, limit=2**30)


async def _no_filters(repository: Repository) -> list[str]:
    done = await git(repository.git, "config", "--name-only", "--get-regexp", r"^filter\..*", accept=(0, 1))
    keys = sorted(set(done.stdout.decode(errors="surrogateescape").split()))
    # An empty program is no program: git then takes the file as it is.
    return [one for key in keys for one in (f"{key}=", f"{key.rsplit('.', 1)[0]}.required=false")]


def _entries(output: bytes) -> Sequence[str]:
    return output.decode(errors="surrogateescape").split("\0")[:-1]
