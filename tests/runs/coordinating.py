"""Coordinators of agents that do what their prompt says, and a look at what they left."""

from pathlib import Path

from shoal import AgentCoordinator
from shoal.model.results import WorkerResult
from tests.conftest import git

SHELL = {"adapter": "command", "command": ["/bin/sh", "-c", 'eval "$(head -n 1)"']}
"""An agent that does what the first line of its prompt says."""

LONG = 60.0


def coordinator(repo: Path, max_concurrent: int = 5, **more: object) -> AgentCoordinator:
    return AgentCoordinator(repo, max_concurrent, agent=SHELL, grace=0.5, **more)  # type: ignore[arg-type]


def statuses(results: list[WorkerResult]) -> list[str]:
    return [result.status.value for result in results]


def works(repo: Path) -> list[str]:
    """What the file `w` holds on each branch of an agent."""
    branches = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent").split()
    return sorted(git(repo, "show", f"{branch}:w") for branch in branches)


async def brought_in(repo: Path) -> None:
    """Start a Shoal once more, which brings in what an earlier one left."""
    async with coordinator(repo):
        pass
