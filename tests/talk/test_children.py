"""Agents start agents: their work comes back to them, and nothing is wider than what they were given."""

import asyncio
from dataclasses import replace
from pathlib import Path

from shoal import AgentCoordinator, Task
from shoal.model.events import Event, Output
from shoal.model.results import WorkerResult
from shoal.model.talk import ChildSpawned, TalkRefused
from shoal.sessions.command_session import make_held_worker
from shoal.sessions.model_access import spending_scopes
from tests.conftest import git
from tests.runs.coordinating import statuses
from tests.runs.test_control import Listener

SHELL = {"adapter": "command", "command": ["/bin/sh", "-s"]}
"""An agent whose task is a script."""


async def run(repo: Path, script: str, talk: dict[str, object], most: int = 4, **more: object) -> WorkerResult:
    task = Task(script, name="plan", agent=SHELL, talk=talk, timeout=60, **more)  # type: ignore[arg-type]
    async with AgentCoordinator(repo, most) as coordinator:
        (result,) = await coordinator.run_agents([task])
    return result


async def test_an_agent_builds_on_the_work_of_one_that_it_started(repo: Path) -> None:
    script = """set -e
    shoal-talk spawn 'echo from the child > child.txt; echo done'
    shoal-talk wait > ended.txt
    shoal-talk diff plan_1 > seen.txt
    shoal-talk merge plan_1 | sed -n 's/^ *git/git/p' > commands
    sh commands && rm commands
    echo "$(cat child.txt), and the parent" > parent.txt
    """
    result = await run(repo, script, {"spawn": 1})

    assert statuses([result]) == ["succeeded"], result.error
    assert git(repo, "show", f"{result.branch}:parent.txt") == "from the child, and the parent"
    assert "plan_1: succeeded; 1 files changed\n  > done" in git(repo, "show", f"{result.branch}:ended.txt")
    assert "+from the child" in git(repo, "show", f"{result.branch}:seen.txt")


async def test_a_parent_that_waits_lends_its_slot(repo: Path) -> None:
    script = "shoal-talk spawn 'echo x > x'; shoal-talk spawn 'echo y > y'; shoal-talk wait timeout=50 > ended.txt"
    result = await run(repo, script, {"spawn": 2}, most=1)

    ended = git(repo, "show", f"{result.branch}:ended.txt")
    assert "plan_1: succeeded" in ended
    assert "plan_2: succeeded" in ended


async def test_no_more_are_started_than_were_granted_to_the_whole_family(repo: Path) -> None:
    bomb = "shoal-talk spawn 'shoal-talk spawn \"shoal-talk spawn true\"; shoal-talk spawn true; exit 0'"
    script = f"for i in 1 2 3 4 5 6 7 8; do {bomb}; done 2> refused.txt; shoal-talk wait > ended.txt"
    events: list[Event] = []
    async with AgentCoordinator(repo, 4, listen=lambda recorded: events.append(recorded.event)) as coordinator:
        (result,) = await coordinator.run_agents(
            [Task(script, name="plan", agent=SHELL, talk={"spawn": 5, "depth": 2}, timeout=60)]
        )

    spawned = [event for event in events if isinstance(event, ChildSpawned)]
    refused = [event.why for event in events if isinstance(event, TalkRefused)]
    assert len(spawned) == 5
    assert all(event.child.count("_") <= 2 for event in spawned), "two generations"
    assert any("all have been started" in why for why in refused)
    assert "may start 5, and all have been started" in git(repo, "show", f"{result.branch}:refused.txt")


async def test_the_last_generation_has_no_tool_to_start_more(repo: Path) -> None:
    script = """shoal-talk spawn 'shoal-talk spawn true 2> no.txt; true'; shoal-talk wait
    shoal-talk merge plan_1 | sed -n 's/^ *git/git/p' | sh"""
    result = await run(repo, script, {"spawn": 3, "depth": 1, "message": True})

    assert "no tool named 'spawn'" in git(repo, "show", f"{result.branch}:no.txt")


async def test_a_child_is_on_no_wider_network_and_has_no_higher_limits(repo: Path) -> None:
    (repo / "shoal.yaml").write_text(
        "agents:\n"
        "  wide: {adapter: command, command: [sh, -s], network: gateway, hosts: [example.org]}\n"
        "  large: {adapter: command, command: [sh, -s], limits: {memory_mb: 4096, pids: 500}, timeout: 1h}\n"
    )
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "agents")
    script = """
    shoal-talk spawn true agent=wide 2> wide.txt
    shoal-talk spawn true agent=other 2> other.txt
    shoal-talk spawn 'ulimit -u; sleep 60' agent=large > large.txt
    shoal-talk wait timeout=40 > ended.txt; true
    """
    limits = {"time_seconds": 8.0, "memory_mb": 256, "pids": 100}
    async with AgentCoordinator(repo, 4) as coordinator:
        task = Task(script, name="plan", agent=SHELL, talk={"spawn": 3, "agents": ["wide", "large"]}, limits=limits)
        (result,) = await coordinator.run_agents([task])
        children = [worker for worker in coordinator.report.workers if worker.parent == result.session]

    assert "on `network: gateway`, and you are on `network: none`" in git(repo, "show", f"{result.branch}:wide.txt")
    assert "you may not start the agent 'other'" in git(repo, "show", f"{result.branch}:other.txt")
    assert statuses(children) == ["timed_out"], "with its parent's time, though it asks for an hour"
    assert children[0].duration_seconds < 20


def test_what_children_spend_counts_for_their_parent() -> None:
    parent = make_held_worker("plan", 0, None)
    child = replace(parent, step="plan_1", hex="000001", charged=spending_scopes(parent))
    below = replace(child, step="plan_1_1", hex="000002", charged=spending_scopes(child))

    assert f"session:{parent.session}" in spending_scopes(below)
    assert f"session:{child.session}" in spending_scopes(below)
    assert len(set(spending_scopes(below))) == len(spending_scopes(below))


async def test_who_stops_an_agent_stops_what_it_started_and_all_work_is_kept(repo: Path) -> None:
    heard = Listener()
    script = "echo mine > mine.txt; shoal-talk spawn 'echo its > its.txt; echo ready; sleep 60'; sleep 60"
    async with AgentCoordinator(repo, 4, listen=heard.hear, grace=0.5) as coordinator, asyncio.TaskGroup() as group:
        work = group.create_task(
            coordinator.run_agents([Task(script, name="plan", agent=SHELL, talk={"spawn": 1}, timeout=60)])
        )
        await heard.until(Output, 2)
        parent = next(name for name in coordinator.active_sessions if not name.startswith("plan_1"))
        coordinator.stop(parent)
        (result,) = await work
        (child,) = [worker for worker in coordinator.report.workers if worker.parent == result.session]

    assert result.stopped_by is not None
    assert child.stopped_by == "the end of plan"
    assert git(repo, "show", f"{result.branch}:mine.txt") == "mine"
    assert git(repo, "show", f"{child.branch}:its.txt") == "its"
