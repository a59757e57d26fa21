"""A program merges with the names of seed 002, during its run and afterwards."""

from pathlib import Path

import pytest

from shoal import AgentCoordinator, IsolatedAgentSession
from shoal.errors import UnknownName
from shoal.model.merge import DeliveryStatus, MergeStatus
from tests.conftest import git


def shell(script: str) -> dict[str, object]:
    return {"prompt": "go", "agent": {"adapter": "command", "command": ["sh", "-c", script]}}


async def test_results_are_merged_for_review_and_conflicts_are_explained(repo: Path) -> None:
    before = git(repo, "rev-parse", "main")
    async with AgentCoordinator(repo=repo, max_concurrent=3) as coordinator:
        results = await coordinator.run_agents([shell("echo 1 > a"), shell("echo 2 > a"), shell("echo 3 > b; exit 1")])
        report = await coordinator.merge(results, strategy="review")
        run = coordinator.report.run

    assert sorted(one.status for one in report.results) == [MergeStatus.CONFLICTS, MergeStatus.MERGED]
    assert report.left_out == (results[2].session,)
    assert report.branch == f"shoal/{run}"
    assert git(repo, "show", f"shoal/{run}:a") in ("1", "2")
    assert git(repo, "rev-parse", "main") == before
    clash = next(one for one in report.results if one["status"] == "conflicts")
    (sentence,) = coordinator.resolve_conflicts(clash["conflicts"])  # type: ignore[arg-type]
    assert sentence.startswith("both changed the same lines of a: ")

    by_name = await coordinator.merge_agent_work(results[2].session)
    delivered = await coordinator.merge(results, strategy="auto", into="main")
    assert by_name["status"] == "merged"
    assert delivered.delivery is not None
    assert (repo / "b").read_text() == "3\n"


def test_sessions_that_were_held_open_are_merged_in_their_order(repo: Path) -> None:
    import asyncio

    for name in ("one", "two"):
        with IsolatedAgentSession(name, base_workspace=repo) as session:
            (session.workspace / name).write_text(f"{name}\n")
    coordinator = AgentCoordinator(repo=repo)

    two, one = asyncio.run(coordinator.merge_agent_results(["two", "one"]))

    assert (two["status"], one["status"]) == ("merged", "merged")
    assert one.session.startswith("one")
    assert len(git(repo, "branch", "--list", "shoal/*").splitlines()) == 1


async def test_a_strategy_that_is_none_is_told_with_the_nearest(repo: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'squash'"):
        await AgentCoordinator(repo=repo).merge(strategy="squish")


async def test_review_moves_no_branch_before_it_is_approved(repo: Path) -> None:
    before = git(repo, "rev-parse", "main")
    async with AgentCoordinator(repo=repo) as coordinator:
        results = await coordinator.run_agents([shell("echo 1 > a"), shell("echo 2 > a"), shell("echo 3 > b")])
        report = await coordinator.merge(results, strategy="review", into="main")

    assert report.delivery is not None
    assert report.delivery.status is DeliveryStatus.WAITING
    assert report.needs_a_person
    assert git(repo, "rev-parse", "main") == before
    assert set(git(repo, "ls-tree", "--name-only", report.branch).split()) >= {"a", "b"}
