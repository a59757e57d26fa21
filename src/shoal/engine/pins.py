"""Refs that hold what agents build on, so that no gc can take its objects away while they borrow them."""

from collections.abc import Mapping
from pathlib import Path

from shoal.errors import Broken
from shoal.git.refs import ABSENT, Move, listed, move, value
from shoal.model.repository import Repository

FOLDER = "refs/shoal/base"
SHORT = 12


async def pin(repository: Repository, run: str, commit: str) -> None:
    """Hold *commit* for as long as *run* lives; to hold it again changes nothing."""
    ref = f"{FOLDER}/{run}+{commit[:SHORT]}"
    if await value(repository, ref) is not None or await move(repository, [Move(ref, commit, ABSENT)]):
        return
    if await value(repository, ref) is None:  # else somebody was quicker
        raise Broken(f"commit {commit} is not in the repository any more, or cannot be held there by {ref}")


async def unpinned(repository: Repository, run: str) -> None:
    """Let go of all that *run* held."""
    await _dropped(repository, {ref: commit for ref, commit in (await _pins(repository)).items() if _run(ref) == run})


async def abandoned(repository: Repository, runs: Path) -> None:
    """Let go of what no run holds: each has its lock in the folder *runs* before its first pin and after its last.

    A cancel can cut off the end of a run between the two.
    """
    pinned = await _pins(repository)
    locked = {path.stem for path in runs.glob("*.lock")}
    await _dropped(repository, {ref: commit for ref, commit in pinned.items() if _run(ref) not in locked})


async def _pins(repository: Repository) -> dict[str, str]:
    return await listed(repository, FOLDER)


async def _dropped(repository: Repository, pins: Mapping[str, str]) -> None:
    if pins:
        await move(repository, [Move(ref, ABSENT, commit) for ref, commit in pins.items()])


def _run(ref: str) -> str:
    return ref.removeprefix(f"{FOLDER}/").split("+")[0]
