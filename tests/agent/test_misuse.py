"""Mistakes of a program are reported in a sentence at once, and an interrupted turn can be repeated."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.settings import ModelSettings

from shoal.agent import Agent, AgentEvent, AgentLimits, Call, Err, Ok, Prompt, ScriptedModel
from shoal.agent.scripted import Step
from shoal.errors import AgentCancelled, AgentCrashed, AgentTimedOut, BadInput


def echo(prompt: str, _: int) -> str:
    return f"echo {prompt}"


WRONG: list[tuple[Callable[[Agent], Any], str]] = [
    (lambda _: Agent(3), "3 is not a model"),  # type: ignore[arg-type]
    (lambda _: Agent("test", tools=["x"]), "'x' is not a tool"),  # type: ignore[list-item]
    (lambda _: AgentLimits(turns=1.5), "`turns` is 1.5; give a whole number"),  # type: ignore[arg-type]
    (lambda _: AgentLimits(tokens="5"), "`tokens` is 5; give a whole number"),  # type: ignore[arg-type]
    (lambda _: AgentLimits(seconds=float("inf")), "`seconds` is inf; give a number over 0"),
    (lambda agent: agent.subscribe(None), "None is not a handler"),  # type: ignore[arg-type]
    (lambda agent: agent.prompt(5), "a prompt is a text, not 5"),  # type: ignore[arg-type]
    (lambda agent: agent.prompt(None), "a prompt is a text, not None"),  # type: ignore[arg-type]
    (lambda agent: agent.prompt("x", timeout=-1), "the timeout is -1"),
    (lambda agent: agent.prompt("x", timeout=float("nan")), "the timeout is nan"),
    (lambda agent: agent.prompt_json("x", 5), "schema for 5"),  # type: ignore[arg-type,type-var,unused-ignore]
    (lambda agent: agent.run_parallel_prompts("abc"), "'abc' is not a list of prompts"),
    (lambda agent: agent.run_parallel_prompts(None), "None is not a list of prompts"),  # type: ignore[arg-type]
    (lambda agent: agent.run_parallel_prompts(["a"], "3"), "max_parallel_runs is '3'"),  # type: ignore[arg-type]
    (lambda agent: agent.run_parallel_prompts(["a"], timeout=0), "the timeout is 0"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=[words for _, words in WRONG])
async def test_what_has_no_meaning_is_the_users_mistake(wrong: Callable[[Agent], Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        made = wrong(Agent(ScriptedModel(echo)))
        assert isinstance(made, Awaitable), "nobody refused it"
        await made


async def test_an_item_that_is_no_prompt_fails_alone_and_is_named() -> None:
    outcomes = await Agent(ScriptedModel(echo)).run_parallel_prompts([1, "b", Prompt("c", timeout=-1)])  # type: ignore[list-item]

    assert [type(one) for one in outcomes] == [Err, Ok, Err]
    first, _, last = outcomes
    assert isinstance(first, Err)
    assert isinstance(first.error, AgentCrashed)
    assert "prompt 0: " in str(first.error)
    assert "a prompt is a text, not 1" in str(first.error)
    assert isinstance(last, Err)
    assert "the timeout is -1" in str(last.error)


async def test_prompts_may_come_over_time() -> None:
    async def prompts() -> AsyncIterator[str | Prompt]:
        yield "a"
        await asyncio.sleep(0)
        yield Prompt("b")

    outcomes = await Agent(ScriptedModel(echo)).run_parallel_prompts(prompts())

    assert [one.value.text for one in outcomes if isinstance(one, Ok)] == ["echo a", "echo b"]


async def test_settings_belong_to_the_agent_once_they_are_given() -> None:
    settings = ModelSettings(temperature=0.1)
    agent = Agent(ScriptedModel(echo), settings=settings)
    settings["temperature"] = 2.0

    assert agent.setup.settings == {"temperature": 0.1}


async def test_an_answer_that_was_cut_off_is_asked_for_again() -> None:
    asked: list[int] = []

    def script(_: str, step: int) -> Step:
        asked.append(step)
        return "one two three four"

    agent = Agent(ScriptedModel(script))
    with pytest.raises(AgentCancelled):
        async for _ in agent.stream("go"):
            agent.cancel()
    cut = agent.messages
    reply = await agent.continue_turn()

    assert isinstance(cut[-1], ModelResponse)
    assert len(str(cut[-1].text)) < len("one two three four")
    assert reply.text == "one two three four"
    assert asked == [0, 0]
    assert len(agent.messages) == 2


@pytest.mark.parametrize("how", ["the task", "the agent", "time"])
async def test_a_tool_call_that_was_ended_is_told_to_the_model_and_not_made_again(how: str) -> None:
    began, calls = asyncio.Event(), 0

    async def slow() -> str:
        """Take long."""
        nonlocal calls
        calls += 1
        began.set()
        await asyncio.sleep(3600)
        return "late"

    agent = Agent(ScriptedModel([Call("slow"), "I see"]), tools=[slow])
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(_ended(agent, timeout=1 if how == "time" else None))
        await began.wait()
        if how == "the task":
            task.cancel()
        elif how == "the agent":
            agent.cancel()

    assert (await agent.continue_turn()).text == "I see"
    assert calls == 1
    assert "interrupted before a result" in str(agent.messages)


async def test_a_finished_turn_cannot_be_continued() -> None:
    agent = Agent(ScriptedModel(echo))
    agent.append_message(ModelResponse(parts=[TextPart("hello")]))

    with pytest.raises(BadInput, match="the model has answered"):
        await agent.continue_turn()


async def test_a_subscriber_that_raises_a_cancellation_hears_on_and_is_counted() -> None:
    def odd(_: AgentEvent) -> None:
        raise asyncio.CancelledError

    agent = Agent(ScriptedModel(echo))
    agent.subscribe(odd)
    await agent.prompt("go")

    assert (agent.subscriber_errors, agent.dropped_events) == (3, 0)


async def test_a_model_can_be_closed_with_its_agent() -> None:
    async with Agent(ScriptedModel(echo)) as agent:
        assert (await agent.prompt("a")).text == "echo a"


async def _ended(agent: Agent, timeout: float | None) -> None:
    with contextlib.suppress(AgentCancelled, AgentTimedOut):
        await agent.prompt("go", timeout=timeout)
