"""Parallel execution: the printed code of its document, as near to the letter as Python allows."""

import asyncio
import json
from pathlib import Path

import pytest

from shoal import AgentCoordinator, AgentFailed, AgentPool, AllFailed, BadInput, Task
from shoal.errors import UnknownName
from shoal.patterns import Progress, chunked
from tests.cli.conftest import Shoal
from tests.conftest import git

OBEY = {"adapter": "command", "command": ["sh", "-c", 'eval "$(head -n 1)"'], "network": "host"}
"""Does what the first line of its prompt says."""
SHOW = {"adapter": "command", "command": ["sh", "-c", 'cat "$SHOAL_SYSTEM_PROMPT_FILE" "$SHOAL_PROMPT_FILE"']}
PERSONAS = {
    "debugger": {"agent": OBEY, "system_prompt": "You debug."},
    "qa-engineer": {"agent": OBEY, "system_prompt": "You test."},
    "goap-agent": {"agent": SHOW, "system_prompt": "You plan."},
    "ux-designer": {"agent": SHOW, "system_prompt": "You design."},
}


@pytest.fixture
def coordinator(repo: Path) -> AgentCoordinator:
    """Each call opens a run of its own."""
    return AgentCoordinator(3, repo, personas=PERSONAS, sandbox="none")


async def test_agents_are_spawned_by_their_roles_and_one_gathers(coordinator: AgentCoordinator) -> None:
    first, second = await coordinator.gather(
        [
            {"agent": "debugger", "task": "echo three tests fail", "files": ["README.md"]},
            {"agent": "qa-engineer", "task": "echo two time out"},
        ]
    )
    synthesis = await coordinator.spawn_agent(
        "goap-agent", {"task": "combine-analyses", "inputs": {"e2eAnalysis": first, "unitAnalysis": second}}
    )

    assert synthesis.output.startswith("You plan.")
    assert "### e2eAnalysis.json" in synthesis.output
    assert "> three tests fail" in synthesis.output
    assert "> two time out" in synthesis.output


async def test_a_task_takes_free_parameters_and_a_result_as_its_context(coordinator: AgentCoordinator) -> None:
    analysis = await coordinator.spawn_agent("debugger", task="echo landmarks overlap")
    fixes = await coordinator.spawn_agent(
        "ux-designer",
        {"task": "fix-a11y-violations", "violations": ["aria-required-parent"], "context": analysis},
        data=[analysis, analysis],
        target=500_000,
    )

    _, _, params = fixes.output.partition("$SHOAL_INPUTS_DIR/params.json)\n\n")
    assert json.JSONDecoder().raw_decode(params)[0] == {"violations": ["aria-required-parent"], "target": 500_000}
    assert fixes.output.count("> landmarks overlap") == 3
    for name in ("context.json", "data-1.json", "data-2.json"):
        assert f"### {name}" in fixes.output
    with pytest.raises(UnknownName, match="did you mean 'files'"):
        await coordinator.spawn_agent("debugger", task="x", fils=["README.md"])


async def test_personas_contracts_and_artifacts_hold_as_in_a_file(coordinator: AgentCoordinator) -> None:
    told, broken, made = await coordinator.run_agents(
        [
            Task("x", persona="goap-agent", max_concurrent_agents=3, contracts={"type": "command", "command": "true"}),
            Task("true", persona="debugger", contracts=[{"type": "non_empty_file", "path": "report.txt"}]),
            Task(
                "echo '{}' > report.json",
                agent=OBEY,
                system_prompt="You report.",
                output_artifacts=[{"name": "report", "path": "report.json", "type": "json"}],
            ),
        ]
    )

    assert "You may spawn up to 3 concurrent sub-agents" in told.output
    assert "the command `true` exits with 0" in told.output
    assert (broken.status, "contract non_empty_file is not met" in str(broken.error)) == ("failed", True)
    assert Path(made.artifacts["report"]).read_text() == "{}\n"


async def test_a_name_that_is_no_role_is_told_with_the_nearest(coordinator: AgentCoordinator) -> None:
    with pytest.raises(UnknownName, match="did you mean 'debugger'"):
        await coordinator.spawn_agent("debuger", task="x")
    with pytest.raises(BadInput, match=r"task task-.*unknown key `command2`"):
        await coordinator.run_agents([Task("x", persona="debugger", contracts={"type": "command", "command2": "x"})])


async def test_settled_race_retry_and_progress(coordinator: AgentCoordinator, tmp_path: Path) -> None:
    seen: list[Progress] = []
    once = f"test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; exit 1; }}"
    results = await coordinator.settled(
        [
            {"agent": "debugger", "task": "true"},
            {"agent": "debugger", "task": once, "retry": {"max_attempts": 2, "wait_seconds": 0}},
            {"agent": "qa-engineer", "task": "exit 1"},
        ],
        progress=seen.append,
    )
    failures = [result for result in results if not result.status.is_good]

    assert [result.attempts for result in results] == [1, 2, 1]
    assert len(failures) == 1
    assert [one.completed + one.failed for one in seen] == [1, 2, 3]
    assert (seen[-1].completed, seen[-1].failed, seen[-1].total) == (2, 1, 3)
    with pytest.raises(AllFailed):
        await coordinator.race([{"agent": "debugger", "task": "exit 1"}] * 2)
    with pytest.raises(AgentFailed):
        await coordinator.gather([{"agent": "debugger", "task": "exit 1"}])


async def test_retry_of_a_pattern_is_for_tasks_that_have_none(coordinator: AgentCoordinator) -> None:
    seen: list[Progress] = []
    own, usual = await coordinator.run_agents(
        [Task("exit 1", persona="debugger", retry=0), Task("exit 1", persona="debugger")],
        retry={"max_attempts": 2, "wait_seconds": 0},
        progress=seen.append,
    )

    assert (own.attempts, usual.attempts) == (1, 2)
    assert [one.failed for one in seen] == [1, 2]


async def test_tasks_are_distributed_over_agents_of_one_name(coordinator: AgentCoordinator) -> None:
    tasks = [f"echo {number}" for number in range(5)]

    results = await coordinator.balance(tasks, ["qa-engineer", "qa-engineer", "qa-engineer"], strategy="round_robin")

    assert [result.output for result in results] == ["0\n", "1\n", "2\n", "3\n", "4\n"]
    with pytest.raises(BadInput, match="a mapping or a list"):
        await coordinator.balance(tasks, "qa-engineer")
    with pytest.raises(BadInput, match="2 agents and 1 weights"):
        await coordinator.balance(tasks, [OBEY, OBEY], weights=[1])


async def test_work_goes_to_whoever_is_free(repo: Path, tmp_path: Path) -> None:
    """Dynamic allocation: the agent that is stuck until all other work is done gets no second task."""
    marks = tmp_path / "marks"
    marks.mkdir()
    stuck = f"until [ $(ls {marks} | wc -l) -ge 4 ]; do sleep 0.02; done; echo $WHO"
    quick = f"touch {marks}/$SHOAL_SESSION; echo $WHO"
    agents = {name: {**OBEY, "env": {"WHO": name}} for name in ("one", "two")}

    results = await AgentCoordinator(2, repo, sandbox="none").balance([stuck, quick, quick, quick, quick], agents)

    assert [result.output.strip() for result in results] == ["one", "two", "two", "two", "two"]


async def test_a_pool_gives_the_same_agent_by_its_name_and_needs_no_block() -> None:
    made: list[str] = []
    closed: list[str] = []

    class Warm:
        def __init__(self, name: str) -> None:
            self.name = name
            made.append(name)

        async def cleanup(self) -> None:
            closed.append(self.name)

    async def spawn_agent(name: str) -> Warm:
        return Warm(name)

    pool = AgentPool(spawn_agent)
    agent1 = await pool.get_agent("debugger")
    agent2 = await pool.get_agent("qa-engineer")
    again = await pool.get_agent("debugger")
    await pool.cleanup()

    assert again is agent1
    assert agent2.name == "qa-engineer"
    assert made == ["debugger", "qa-engineer"]
    assert sorted(closed) == ["debugger", "qa-engineer"]


async def test_a_pool_of_sessions_by_name(repo: Path) -> None:
    coordinator = AgentCoordinator(repo=repo, sandbox="none")
    pool = coordinator.pool(2)
    session = await pool.get_agent("debugger")
    await session.run("echo 1 > found.txt")
    same = await pool.get_agent("debugger")
    await same.run("echo 2 >> found.txt")
    with pytest.raises(BadInput, match="room for 2 agents"):
        for name in ("b", "c"):
            await pool.get_agent(name)
    await pool.cleanup()

    assert session.result is not None
    assert session.branch.startswith("agent/debugger/")
    assert git(repo, "show", f"{session.branch}:found.txt") == "1\n2"


def meet(folder: Path, name: str, count: int) -> str:
    """Write a command that waits until *count* of its kind have begun, and says how many there are then."""
    return (
        f"touch {folder}/{name}; until [ $(ls {folder} | wc -l) -ge {count} ]; do sleep 0.02; done; ls {folder} | wc -l"
    )


async def test_a_batch_runs_at_once_and_then_the_next(repo: Path, tmp_path: Path) -> None:
    """An agent of the second batch would be counted by the first, were it started early."""
    folder = tmp_path / "begun"
    folder.mkdir()
    tasks = [{"agent": "debugger", "task": meet(folder, f"t{number}", 3 if number < 3 else 5)} for number in range(5)]
    coordinator = AgentCoordinator(5, repo, personas=PERSONAS, sandbox="none")

    outputs = [[result.output.strip() for result in await coordinator.gather(batch)] for batch in chunked(tasks, 3)]

    assert outputs == [["3", "3", "3"], ["5", "5"]]


async def test_commands_run_at_the_same_time(repo: Path, tmp_path: Path) -> None:
    """Each waits for the two others, so one after the other would never end."""
    folder = tmp_path / "begun"
    folder.mkdir()
    async with (
        AgentCoordinator(3, repo, sandbox="none") as coordinator,
        asyncio.timeout(60),
        asyncio.TaskGroup() as group,
    ):
        running = [
            group.create_task(coordinator.run_command(meet(folder, name, 3))) for name in ("lint", "test", "e2e")
        ]

    assert [task.result().exit_code for task in running] == [0, 0, 0]


async def test_commands_run_in_a_workspace_that_is_set_up(repo: Path) -> None:
    async with AgentCoordinator(repo=repo, setup="mkdir node_modules && echo there > node_modules/dep") as coordinator:
        lint = await coordinator.run_command("cat node_modules/dep")
    (repo / "shoal.yaml").write_text("runtime: {setup: 'echo of the file > dep.txt'}\n")
    of_file = await AgentCoordinator(repo=repo).run_command("cat dep.txt")

    assert [lint.exit_code, lint.output] == [0, "there\n"]
    assert [of_file.exit_code, of_file.output] == [0, "of the file\n"]


def test_a_persona_is_named_on_the_command_line(repo: Path, shoal: Shoal) -> None:
    (repo / "shoal.yaml").write_text(
        "runtime: {sandbox: none}\n"
        "agents: {show: {adapter: command, command: [sh, -c, 'cat \"$SHOAL_SYSTEM_PROMPT_FILE\"']}}\n"
        "personas: {reviewer: {agent: show, system_prompt: You review.}}\n"
    )

    done = shoal("run", "--task", "look", "--agent", "reviewer", "--sandbox", "none", "--json")

    (worker,) = json.loads(done.out)["steps"][0]["worker_results"]
    assert worker["output"].strip() == "You review."


GUIDANCE = {
    "| in parallel |": (
        "no dependencies between them",
        "independent issues",
        "time-critical",
        "different resources",
        "exploratory analysis",
        # and when not
        "a clear dependency",
        "quality gate",
        "shared resource that causes conflicts",
        "needed for the next",
    ),
    "\nDo:\n": (
        "use `gather` where all tasks must succeed",
        "`settled` where some may fail",
        "limit the concurrency",
        "clear context",
        "handle errors",
        "monitor the progress",
        "clean up resources",
    ),
    "\nDo not:\n": (
        "run dependent tasks in parallel",
        "exceed resource limits",
        "ignore failed agents",
        "forget to handle errors",
        "too many agents at once",
        "forget to monitor progress",
        "overload shared resources",
    ),
}
"""What the seed says, by the place that has to say it."""


def test_the_documentation_says_when_to_work_in_parallel_and_when_not() -> None:
    page = (Path(__file__).parents[2] / "docs/workflows.md").read_text()
    section = page.partition("## When to work in parallel, and when not\n")[2].partition("\n## ")[0]

    assert "| in parallel | one after the other |" in section
    for place, points in GUIDANCE.items():
        following = section.partition(place)[2].partition("\nDo")[0]
        assert [point for point in points if point not in following] == [], place
