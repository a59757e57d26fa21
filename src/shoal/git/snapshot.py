"""A folder that is no repository, as one: a hidden repository of ours holds one commit of its files."""

import secrets
import shutil
from pathlib import Path

from shoal.errors import BadInput
from shoal.git.run import git
from shoal.model.repository import Identity, Repository

WHO = {
    "GIT_AUTHOR_NAME": "shoal",
    "GIT_AUTHOR_EMAIL": "shoal@localhost",
    "GIT_COMMITTER_NAME": "shoal",
    "GIT_COMMITTER_EMAIL": "shoal@localhost",
}

CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
# What can make git run something, or look elsewhere.
FOREIGN = ("config.worktree", "commondir", "info", "hooks", "objects/info")


async def snapshot(folder: Path, hidden: Path) -> tuple[Repository, str]:
    """Commit all files of *folder*, ignored ones too, to the repository *hidden*; nothing is written in the folder."""
    if any(place.is_symlink() for place in (hidden.parent, hidden, hidden / "objects", hidden / "refs")):
        raise BadInput(f"{hidden.parent} is or holds a link, and Shoal keeps its own state there; remove it")
    if not (hidden / "HEAD").exists():
        await git(hidden, "init", "--quiet", "--bare", "--initial-branch=snapshot", str(hidden))
    _made_ours(hidden)
    env = {"GIT_WORK_TREE": str(folder), "GIT_LITERAL_PATHSPECS": "0"}
    everything = ("--all", "--force", "--ignore-errors", "--", ".", ":(exclude).shoal")
    await git(hidden, "add", *everything, env=env, accept=(0, 1))
    tree = (await git(hidden, "write-tree")).stdout.decode().strip()
    commit = (await git(hidden, "commit-tree", tree, "-m", "snapshot", env=WHO)).stdout.decode().strip()
    return hidden_repository(folder, hidden), commit


def _made_ours(hidden: Path) -> None:
    """Write the configuration anew: a folder may come from anywhere, with a `.shoal` in it that runs filters."""
    for name in FOREIGN:
        place = hidden / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    aside = hidden / f"config-{secrets.token_hex(4)}"
    aside.write_text(CONFIG)
    aside.replace(hidden / "config")


def hidden_repository(folder: Path, hidden: Path) -> Repository:
    """Describe the repository *hidden*, made by `snapshot`, that stands for *folder*."""
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
    """Say whether *repository* is one of ours that stands for a plain folder."""
    return repository.git.parent == repository.home / ".shoal"
