"""Write a branch into a file that git can fetch from, where there is no other way to its objects."""

from pathlib import Path

from shoal.git.run import git
from shoal.model.repository import Repository


async def write_bundle(repository: Repository, target: Path, *, branch: str, base: str) -> None:
    """Write what *branch* has and *base* has not; raises `Broken` if it has nothing more."""
    await git(repository.git, "bundle", "create", "--quiet", str(target), f"refs/heads/{branch}", f"^{base}")
