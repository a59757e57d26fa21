"""Several prompts at once: forks, the window, outcomes, and what the base gets back."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelRequest, UserPromptPart

from shoal import IsolatedAgentSession
from shoal.agent import (
    After,
    Agent,
    AgentEvent,
    AgentLimits,
    Call,
    Err,
    Ok,
    Outcome,
    Prompt,
    ScriptedModel,
    ToolCalled,
    TurnStarted,
    Warned,
)
from shoal.agent.scripted import Step
from shoal.errors import (
    AgentCancelled,
    AgentCrashed,
    AgentTimedOut,
    BadInput,
    BudgetExceeded,
    RateLimited,
    ToolFailed,
)
from shoal.model.status import Status
from tests.acting import assert_nothing_left
from tests.conftest import git


def echo(prompt: str, _: int) -> str:
    return f"echo {prompt}"


def texts(outcomes: list[Outcome]) -> list[str]:
    return [one.value.text if isinstance(one, Ok) else type(one.error).__name__ for one in outcomes]


class Gauge:
    """Counts how many replies are under way at once; each waits until *width* of them are, or for *patience*."""

    def __init__(self, width: int) -> None:
        self.now = self.most = 0
        self._full = asyncio.Barrier(width)

    async def reply(self, prompt: str, _: int) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        await self._full.wait()
        self.now -= 1
        return f"echo {prompt}"


async def test_a_fork_goes_on_alone_with_the_same_tools() -> None:
    calls: list[int] = []
    agent = Agent(ScriptedModel(lambda prompt, step: Call("note", {"n": len(prompt)}) if step == 0 else "noted"))

    @agent.tool
    def note(n: int) -> str:
        """Note a number."""
        calls.append(n)
        return "ok"

    await agent.prompt("x")
    twin = agent.fork()
    await twin.prompt("yy")
    await agent.prompt("zzz")
    twin.add_tool(echo)

    assert calls == [1, 2, 3]
    assert [len(agent.messages), len(twin.messages)] == [8, 8]
    assert "yy" not in str(agent.messages)
    assert "zzz" not in str(twin.messages)
    assert agent.messages[:4] == twin.messages[:4]
    assert (agent.tools, twin.tools) == (("note",), ("note", "echo"))
    assert (agent.usage.requests, twin.usage.requests) == (4, 2)
    assert twin.parent_id == agent.id != twin.id


async def test_nothing_that_can_change_is_shared_by_a_fork() -> None:
    agent = Agent(ScriptedModel(echo))
    await agent.prompt("one")
    twin = agent.fork()
    for message in twin.messages:
        message.parts = []
    twin.append_message(ModelRequest(parts=[UserPromptPart("two")]))
    twin.usage.requests = 99

    assert "echo one" in str(agent.messages)
    assert "echo one" in str(twin.messages)
    assert "two" not in str(agent.messages)
    assert {id(one) for one in agent._history} & {id(one) for one in twin._history} == set()
    assert agent.usage.requests == 1
    assert twin.usage.requests == 0


async def test_prompts_run_at_once_and_come_back_in_order() -> None:
    gauge = Gauge(4)
    agent = Agent(ScriptedModel(gauge.reply))
    async with asyncio.timeout(30):
        outcomes = await agent.run_parallel_prompts([f"p{n}" for n in range(12)], 4)

    assert texts(outcomes) == [f"echo p{n}" for n in range(12)]
    assert gauge.most == 4
    assert [one.index for one in outcomes] == list(range(12))
    assert agent.messages == []


async def test_the_window_slides_past_a_slow_prompt() -> None:
    """Three slots: while the first prompt waits, the other two slots carry all the rest."""
    last = asyncio.Event()

    async def script(prompt: str, _: int) -> Step:
        if prompt == "first":
            await last.wait()
        if prompt == "p8":
            last.set()
        return prompt

    agent = Agent(ScriptedModel(script))
    async with asyncio.timeout(30):
        outcomes = await agent.run_parallel_prompts(["first", *(f"p{n}" for n in range(9))])

    assert texts(outcomes) == ["first", *(f"p{n}" for n in range(9))]


async def test_a_failure_stays_with_its_prompt() -> None:
    def script(prompt: str, step: int) -> Step:
        steps: dict[str, Step] = {
            "limited": RateLimited("m", 2),
            "broken": ZeroDivisionError("oh"),
            "tool": Call("bad"),
            "slow": After(60, "never"),
        }
        return steps.get(prompt, f"echo {prompt}")

    def bad() -> str:
        """Fail."""
        raise KeyError("x")

    prompts: list[str | Prompt] = ["a", "limited", "b", "broken", "tool", Prompt("slow", timeout=0.3), "c"]
    agent = Agent(ScriptedModel(script), tools=[bad])
    outcomes = await agent.run_parallel_prompts(prompts, 7)

    assert texts(outcomes) == [
        "echo a", "RateLimited", "echo b", "AgentCrashed", "ToolFailed", "AgentTimedOut", "echo c",
    ]  # fmt: skip
    errors = {one.index: one.error for one in outcomes if isinstance(one, Err)}
    assert all(str(error).startswith(f"prompt {index}: ") for index, error in errors.items())
    assert isinstance(errors[3].__cause__, ZeroDivisionError)
    assert isinstance(errors[4], ToolFailed)
    assert "KeyError" in str(errors[4])
    assert isinstance(errors[5], AgentTimedOut)


async def test_a_tool_that_cancels_itself_cancels_no_sibling() -> None:
    def leave() -> str:
        """Leave."""
        raise asyncio.CancelledError

    agent = Agent(ScriptedModel(lambda prompt, _: Call("leave") if prompt == "b" else prompt), tools=[leave])
    outcomes = await agent.run_parallel_prompts(["a", "b", "c"])

    assert texts(outcomes) == ["a", "AgentCancelled", "c"]


async def test_no_prompts_give_no_outcomes() -> None:
    agent = Agent(ScriptedModel([]))

    assert await agent.run_parallel_prompts([]) == []
    assert agent.usage.requests == 0


@pytest.mark.parametrize("width", [0, -7])
async def test_a_width_without_meaning_is_taken_as_one_and_said(width: int) -> None:
    seen: list[AgentEvent] = []
    gauge = Gauge(1)
    agent = Agent(ScriptedModel(gauge.reply))
    agent.subscribe(seen.append)
    with pytest.warns(UserWarning, match=f"max_parallel_runs is {width}"):
        outcomes = await agent.run_parallel_prompts(["a", "b"], width)

    assert texts(outcomes) == ["echo a", "echo b"]
    assert gauge.most == 1
    assert [type(event) for event in seen if event.agent_id == agent.id] == [Warned]


async def test_what_the_forks_use_is_added_to_the_base() -> None:
    agent = Agent(ScriptedModel(echo, name="gpt-4o"))
    outcomes = await agent.run_parallel_prompts(["a", "b", "c"])
    used = [one.value.usage for one in outcomes if isinstance(one, Ok)]

    assert agent.usage.requests == 3
    assert agent.usage.input_tokens == sum(one.input_tokens for one in used) > 0
    assert agent.cost == sum(one.cost for one in used if one.cost) != 0


async def test_the_forks_spend_from_one_budget() -> None:
    agent = Agent(ScriptedModel(echo), limits=AgentLimits(tokens=200))
    outcomes = await agent.run_parallel_prompts([f"p{n}" for n in range(9)], 1)

    failed = [one for one in outcomes if isinstance(one, Err)]
    assert [one.index for one in failed] == [3, 4, 5, 6, 7, 8]  # the fourth answer passes it, and then nobody asks
    assert all(isinstance(one.error, BudgetExceeded) for one in failed)


async def test_a_prompt_may_bring_its_own_model_and_settings() -> None:
    other = ScriptedModel(["other"])
    agent = Agent(ScriptedModel(echo), system_prompt="base")
    outcomes = await agent.run_parallel_prompts(
        [Prompt("a", model=other), Prompt("b", system_prompt="mine", temperature=0.1, max_tokens=9), "c"]
    )

    assert texts(outcomes) == ["other", "echo b", "echo c"]
    asked = [one.value.messages[0] for one in outcomes if isinstance(one, Ok)]
    assert [one.instructions for one in asked if isinstance(one, ModelRequest)] == ["base", "mine", "base"]
    wrong = await agent.run_parallel_prompts([Prompt("a", model="no-such:model")])
    assert isinstance(wrong[0], Err)
    assert isinstance(wrong[0].error, AgentCrashed)


async def test_outcomes_can_be_taken_as_they_come() -> None:
    first = asyncio.Event()

    async def script(prompt: str, _: int) -> Step:
        if prompt == "slow":
            await first.wait()
        return prompt

    taken = []
    agent = Agent(ScriptedModel(script))
    async with asyncio.timeout(30):
        async for outcome in agent.stream_parallel_prompts(iter(["slow", "quick"])):
            taken.append(outcome.index)
            first.set()

    assert taken == [1, 0]


async def test_leaving_the_stream_early_ends_what_runs_and_starts_no_more() -> None:
    begun: list[str] = []

    async def script(prompt: str, _: int) -> Step:
        begun.append(prompt)
        return prompt if prompt == "0" else After(60, prompt)

    agent = Agent(ScriptedModel(script))
    async with asyncio.timeout(30):
        async with contextlib.aclosing(agent.stream_parallel_prompts((str(n) for n in range(999)), 3)) as outcomes:
            async for outcome in outcomes:
                assert outcome.index == 0
                break

    assert len(begun) <= 4
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_the_base_ends_all_its_prompts() -> None:
    began = asyncio.Event()

    async def script(prompt: str, _: int) -> Step:
        began.set()
        return After(60, prompt)

    agent = Agent(ScriptedModel(script))
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        task = group.create_task(agent.run_parallel_prompts(["a", "b", "c", "d"], 2))
        await began.wait()
        agent.cancel()

    assert [type(one.error) for one in task.result() if isinstance(one, Err)] == [AgentCancelled] * 4


async def test_cancelling_the_task_leaves_nothing_running() -> None:
    began = asyncio.Event()

    async def script(prompt: str, _: int) -> Step:
        began.set()
        return After(60, prompt)

    agent = Agent(ScriptedModel(script))
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        task = group.create_task(agent.run_parallel_prompts(["a", "b", "c", "d"], 2))
        await began.wait()
        task.cancel()

    assert task.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_every_event_names_its_turn_its_fork_and_its_parent() -> None:
    seen: list[AgentEvent] = []

    def note() -> str:
        """Note."""
        return "ok"

    agent = Agent(ScriptedModel(lambda _, step: Call("note") if step == 0 else "done"), tools=[note])
    agent.subscribe(seen.append)
    outcomes = await agent.run_parallel_prompts(["a", "b", "c"])

    forks = {one.value.fork.id for one in outcomes if isinstance(one, Ok)}
    assert len(forks) == 3, "a fork for each prompt"
    assert {event.agent_id for event in seen} == forks
    assert {event.parent_id for event in seen} == {agent.id}
    for one in outcomes:
        assert isinstance(one, Ok)
        mine = [event for event in seen if event.run_id == one.value.reply.run_id]
        assert isinstance(mine[0], TurnStarted)
        assert sum(isinstance(event, ToolCalled) for event in mine) == 1
        assert {event.agent_id for event in mine} == {one.value.fork.id}


@pytest.mark.deep
async def test_ten_forks_edit_the_same_file_in_ten_workspaces(repo: Path) -> None:
    def script(prompt: str, step: int) -> Step:
        old = "scratch" if step == 1 else "wrong words"
        steps: list[Step] = [
            Call("edit", {"path": "README.md", "old": "no such words", "new": "x"}),
            [Call("edit", {"path": "README.md", "old": old, "new": prompt}), Call("read", {"path": "README.md"})],
            Call("shell", {"command": f"echo {prompt} > only.txt; ls"}),
            f"done {prompt}",
        ]
        return steps[step]

    agent = Agent(ScriptedModel(script))
    outcomes = await agent.run_parallel_prompts(
        [f"words of {n}" for n in range(10)], 5, workspace=lambda index: IsolatedAgentSession(f"fork-{index}", repo)
    )

    assert texts(outcomes) == [f"done words of {n}" for n in range(10)]
    for outcome in outcomes:
        assert isinstance(outcome, Ok)
        session = outcome.value.workspace
        assert session.result.status is Status.SUCCEEDED  # type: ignore[union-attr]
        branch: str = session.branch  # type: ignore[union-attr]
        assert git(repo, "show", f"{branch}:README.md") == f"words of {outcome.index}"
        assert git(repo, "show", f"{branch}:only.txt") == f"words of {outcome.index}"
        assert "is not in README.md" in str(outcome.value.messages)
    assert len(git(repo, "branch", "--list", "agent/*").splitlines()) == 10
    assert git(repo, "show", "main:README.md") == "scratch"
    assert_nothing_left(repo)


async def test_a_workspace_that_cannot_be_opened_fails_its_own_prompt_only(repo: Path) -> None:
    agent = Agent(ScriptedModel(echo))
    outcomes = await agent.run_parallel_prompts(
        ["a", "b"], workspace=lambda index: IsolatedAgentSession("ok" if index else "no", repo if index else "/nowhere")
    )

    assert texts(outcomes) == ["AgentCrashed", "echo b"]


async def test_a_script_that_is_too_short_is_said() -> None:
    outcomes = await Agent(ScriptedModel(["one"])).run_parallel_prompts(["a"])
    fork = outcomes[0].value.fork if isinstance(outcomes[0], Ok) else None

    assert fork is not None
    with pytest.raises(BadInput, match="the script has 1 steps"):
        await fork.prompt("b")
