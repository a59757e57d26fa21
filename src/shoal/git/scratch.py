"""Scratch repositories, for demonstrations."""

from collections.abc import Mapping
from pathlib import Path

from shoal.git.run import git
from shoal.git.snapshot import WHO


async def scratch_repository(folder: Path, files: Mapping[str, str]) -> None:
    """Make a repository of *files* in the empty *folder*, with one commit on `main`."""
    gitdir = folder / ".git"
    for name, content in files.items():
        (folder / name).write_text(content)
    tree = {"GIT_WORK_TREE": str(folder)}
    await git(gitdir, "init", "--quiet", "--initial-branch=main", str(folder))
    await git(gitdir, "add", "--all", "--", str(folder), env=tree)
    await git(gitdir, "commit", "--quiet", "--message=A very small project", env=tree | WHO)
