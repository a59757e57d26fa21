"""Agents with permissions: what they changed, and what was decided on the way."""

from pathlib import Path

from shoal.model.events import PermissionDecided
from shoal.model.permissions import Permissions
from shoal.model.results import WorkerResult
from shoal.store.paths import StatePaths
from shoal.store.reader import read_session
from tests.acting import ran, step
from tests.conftest import git


async def one(
    repo: Path, script: str, permissions: Permissions, *, sandbox: str = "bubblewrap", strategy: str = "auto"
) -> WorkerResult:
    """Run one agent with these permissions."""
    report = await ran(repo, step("work", script, permissions=permissions), sandbox=sandbox, strategy=strategy)
    return report.steps[0].worker_results[0]


def changed(repo: Path, result: WorkerResult) -> list[str]:
    assert result.branch is not None, result
    return git(repo, "diff", "--name-only", "main", result.branch).splitlines()


def decisions(repo: Path, session: str) -> list[tuple[bool, str, str]]:
    """What the session's audit log says: allowed, subject, rule."""
    recorded = read_session(StatePaths.of(repo), session)
    events = [one.event for one in recorded if isinstance(one.event, PermissionDecided)]
    return [(event.allowed, event.subject, event.rule) for event in events]
