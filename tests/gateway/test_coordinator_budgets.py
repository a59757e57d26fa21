"""Budgets that a program gives: to a coordinator, to a call, to a task, and to an agent that it describes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from shoal import AgentCoordinator, Task
from shoal.errors import BadInput
from shoal.model.budget import SpendingLimit
from shoal.model.results import WorkerResult
from shoal.steps.resolve_task import AgentDirectory, TaskDefaults, resolve_task
from shoal.testing.model import ModelServer
from tests.gateway.test_runs import ASK, set_key

AGENT = {"adapter": "command", "command": ["sh", "-s"], "network": "gateway"}
EACH = 15
"""The tokens of one answer."""


def ask(times: int, name: str, **more: object) -> Task:
    """Ask so many times, and count the answers in a file."""
    script = f"for n in $(seq {times}); do python3 - <<'END' && echo $n >> {name}\n{ASK}\nEND\ndone"
    return Task(script, name=name, **more)  # type: ignore[arg-type]  # what a test gives


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with ModelServer() as server:
        set_key(monkeypatch, server)
        yield server


def ends(results: list[WorkerResult]) -> list[tuple[str, str | None]]:
    return [(result.status.value, result.limit) for result in results]


async def test_a_task_has_a_budget_of_its_own(repo: Path, model: ModelServer) -> None:
    async with AgentCoordinator(repo, agent=AGENT) as coordinator:
        results = await coordinator.run_agents(
            [ask(4, "poor", budget={"tokens": EACH + 1}, retry=1), ask(4, "rich", budget={"tokens": 1000})]
        )

    assert ends(results) == [("over_limit", "budget"), ("succeeded", None)]
    assert results[0].error == f"the budget of step poor is reached: {2 * EACH} of {EACH + 1} tokens"
    assert results[0].files_changed == 1, "its work is kept"
    assert len(model.requests) == 2 + 4


async def test_all_agents_of_a_coordinator_share_its_budget(repo: Path, model: ModelServer) -> None:
    async with AgentCoordinator(repo, 1, agent=AGENT, budget={"tokens": 3 * EACH}) as coordinator:
        first = await coordinator.run_agents([ask(2, "one")])
        second = await coordinator.settled([ask(2, "two"), ask(2, "three")])

    assert ends(first) == [("succeeded", None)]
    assert ends(second) == [("over_limit", "budget"), ("over_limit", "budget")]
    assert len(model.requests) == 3


async def test_the_agents_of_a_call_share_its_budget_and_other_calls_do_not(repo: Path, model: ModelServer) -> None:
    async with AgentCoordinator(repo, 1, agent=AGENT) as coordinator:
        first = await coordinator.run_agents([ask(2, "one"), ask(2, "two")], budget={"tokens": 3 * EACH})
        second = await coordinator.run_agents([ask(2, "three")], budget={"tokens": 3 * EACH})

    assert ends(first) == [("succeeded", None), ("over_limit", "budget")]
    assert ends(second) == [("succeeded", None)]
    assert len(model.requests) == 5


def budgets_of(folder: Path, task: Task) -> Mapping[str, SpendingLimit]:
    directory = AgentDirectory(folder, {}, None, {})
    return resolve_task(replace(task, name="t"), directory, TaskDefaults()).task.budgets


def test_the_budget_of_an_agent_counts_wherever_it_is_described(tmp_path: Path) -> None:
    (tmp_path / "shoal.yaml").write_text("agents: {mine: {adapter: claude, budget: {tokens: 7}}}\n")
    own = {"adapter": "claude", "budget": {"usd": 0.1}}

    assert budgets_of(tmp_path, Task("go", agent="mine")) == {"session": SpendingLimit(tokens=7)}
    assert budgets_of(tmp_path, Task("go", agent=own)) == {"session": SpendingLimit(usd=Decimal("0.1"))}
    assert budgets_of(tmp_path, Task("go", agent="mine", budget=2)) == {
        "session": SpendingLimit(tokens=7),
        "step": SpendingLimit(usd=Decimal(2)),
    }


@pytest.mark.parametrize(
    "budget", [0, -1, True, "much", {}, {"usd": "x"}, {"tokens": 1.5}, {"tokens": 0}, {"euro": 3}, [5], float("nan")]
)
def test_what_is_no_budget_is_refused(budget: object, repo: Path) -> None:
    with pytest.raises(BadInput, match="budget"):
        Task("go", budget=budget)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(BadInput, match="budget"):
        AgentCoordinator(repo, budget=budget)
