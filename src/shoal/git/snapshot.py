"""Present a plain folder as a repository: a hidden repository holds one commit of its files."""

import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from shoal.errors import BadInput, Broken
from shoal.git.commits import Commit
from shoal.git.merge import MOST_BYTES, workbench
from shoal.git.run import git
from shoal.model.repository import Identity, Repository

WHO = {
    "GIT_AUTHOR_NAME": "shoal",
    "GIT_AUTHOR_EMAIL": "shoal@localhost",
    "GIT_COMMITTER_NAME": "shoal",
    "GIT_COMMITTER_EMAIL": "shoal@localhost",
}

CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
# What can make git run something, or read elsewhere.
FOREIGN = ("config.worktree", "commondir", "info", "hooks", "objects/info")


async def snapshot(folder: Path, hidden: Path) -> tuple[Repository, str]:
    """Commit all files of *folder*, even ignored ones, to the repository *hidden*; nothing is written to *folder*."""
    if any(place.is_symlink() for place in (hidden.parent, hidden, hidden / "objects", hidden / "refs")):
        raise BadInput(
            f"{hidden.parent} is or contains a symbolic link, but Shoal keeps its own state there; remove it"
        )
    if not (hidden / "HEAD").exists():
        await git(hidden, "init", "--quiet", "--bare", "--initial-branch=snapshot", str(hidden))
    _write_config(hidden)
    env = {"GIT_WORK_TREE": str(folder), "GIT_LITERAL_PATHSPECS": "0"}
    everything = ("--all", "--force", "--ignore-errors", "--", ".", ":(exclude).shoal")
    await git(hidden, "add", *everything, env=env, accept=(0, 1))
    tree = (await git(hidden, "write-tree")).stdout.decode().strip()
    commit = (await git(hidden, "commit-tree", tree, "-m", "snapshot", env=WHO)).stdout.decode().strip()
    return repository_of_snapshot(folder, hidden), commit


def _write_config(hidden: Path) -> None:
    """Rewrite the configuration: a folder may come from anywhere, with a `.shoal` whose configuration runs filters."""
    for name in FOREIGN:
        place = hidden / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    aside = hidden / f"config-{secrets.token_hex(4)}"
    aside.write_text(CONFIG)
    aside.replace(hidden / "config")


def repository_of_snapshot(folder: Path, hidden: Path) -> Repository:
    """Describe the repository *hidden*, made by `snapshot`, which represents *folder*."""
    return Repository(
        top=folder,
        home=folder,
        git=hidden,
        lenders=(hidden / "objects",),
        object_format="sha1",
        is_shallow=False,
        promisor=None,
        settings={},
        identity=Identity(name="shoal", email="shoal@localhost"),
        branch=None,
    )


def is_hidden(repository: Repository) -> bool:
    """Return whether *repository* is a hidden one that represents a plain folder."""
    return repository.git.parent == repository.home / ".shoal"


CHANGES = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", "--ignore-submodules=all")


async def revert_paths(repository: Repository, base: str, commit: str, is_meant: Callable[[str], bool]) -> str:
    """Make a commit like *commit*, with the paths that are *meant* as on *base*; no ref holds it yet."""
    entries = await _entries(repository, base, commit, is_meant)
    if not entries:
        return commit
    async with workbench(repository) as bench:
        await bench.git("read-tree", commit)
        await bench.git("update-index", "-z", "--index-info", stdin=b"".join(entries))
        tree = (await bench.git("write-tree")).stdout.decode().strip()
        made = bench.commit(Commit(tree=tree, parents=(commit,), message="Some files as they were\n"))
        await bench.publish(made, (commit,))
    return made


async def _entries(repository: Repository, base: str, commit: str, is_meant: Callable[[str], bool]) -> list[bytes]:
    """Return index entries of *base*; deletions come first, because a folder may replace a file."""
    done = await git(repository.git, *CHANGES, base, commit, limit=MOST_BYTES)
    if done.dropped:
        raise Broken("it changes more files than can be looked at")
    words = done.stdout.split(b"\0")[:-1]
    pairs = zip(words[::2], words[1::2], strict=True)
    meant = [(head.split(b" "), path) for head, path in pairs if is_meant(path.decode(errors="surrogateescape"))]
    entries = [b"%s %s\t%s\0" % (facts[0].removeprefix(b":"), facts[2], path) for facts, path in meant]
    return sorted(entries, key=lambda entry: not entry.startswith(b"000000 "))


async def scratch_repository(folder: Path, files: Mapping[str, str]) -> None:
    """Make a repository of *files* in the empty *folder*, with one commit on `main`."""
    gitdir = folder / ".git"
    for name, content in files.items():
        (folder / name).write_text(content)
    tree = {"GIT_WORK_TREE": str(folder)}
    await git(gitdir, "init", "--quiet", "--initial-branch=main", str(folder))
    await git(gitdir, "add", "--all", "--", str(folder), env=tree)
    await git(gitdir, "commit", "--quiet", "--message=A very small project", env=tree | WHO)
