"""The in-process agent: turns, history, tools, limits, subscribers and errors."""

import asyncio
import subprocess
import sys
from decimal import Decimal

import pytest
from pydantic import BaseModel
from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import ModelRequest, ModelResponse, UserPromptPart

from shoal.agent import (
    After,
    Agent,
    AgentEvent,
    AgentLimits,
    Call,
    ScriptedModel,
    TextArrived,
    ToolReturned,
    TurnEnded,
    TurnStarted,
)
from shoal.agent.scripted import Step
from shoal.agent.subscribers import QUEUE_EVENTS
from shoal.errors import (
    AgentCancelled,
    AgentCrashed,
    AgentError,
    AgentTimedOut,
    AuthenticationFailed,
    BadInput,
    BudgetExceeded,
    ContextTooLong,
    MaxTurns,
    ModelFailed,
    RateLimited,
    ToolFailed,
    Unavailable,
)


class Point(BaseModel):
    x: int
    y: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_prompt_runs_the_tools_and_gives_the_answer() -> None:
    agent = Agent(
        ScriptedModel([[Call("add", {"a": 1, "b": 2}), Call("add", {"a": 3, "b": 4})], "3 and 7"]), tools=[add]
    )
    reply = await agent.prompt("add")

    assert str(reply) == reply.text == "3 and 7"
    assert [type(one) for one in reply.messages] == [ModelRequest, ModelResponse, ModelRequest, ModelResponse]
    assert reply.messages == agent.messages
    assert (reply.usage.requests, reply.usage.tool_calls) == (2, 2)


async def test_a_conversation_goes_on_and_can_be_replaced() -> None:
    agent = Agent(ScriptedModel(lambda prompt, step: f"{prompt} {step}"), system_prompt="Be short.")
    await agent.prompt("one")
    await agent.prompt("two")
    assert len(agent.messages) == 4

    agent.replace_messages(agent.messages[:2])
    agent.append_message(ModelRequest(parts=[UserPromptPart("three")]))
    assert (await agent.continue_turn()).text == "three 0"
    assert "two" not in str(agent.messages)
    with pytest.raises(BadInput, match="the model has answered"):
        await agent.continue_turn()


async def test_what_is_handed_out_is_a_copy() -> None:
    agent = Agent(ScriptedModel(["one", "two"]))
    reply = await agent.prompt("a")
    for messages in (agent.messages, reply.messages):
        messages[1].parts = []
        messages.clear()

    assert "one" in str(agent.messages)
    assert "one" in str(reply.messages)


async def test_there_must_be_something_to_continue() -> None:
    with pytest.raises(BadInput, match="nothing to continue"):
        await Agent(ScriptedModel([])).continue_turn()


async def test_an_answer_can_have_a_type() -> None:
    agent = Agent(ScriptedModel(['{"x": 1, "y": "no"}', '{"x": 1, "y": 2}', "[1, 2]"]))

    assert await agent.prompt_json("where?", Point) == Point(x=1, y=2)
    assert await agent.prompt_json("which?", list[int]) == [1, 2]


async def test_words_come_as_they_are_said() -> None:
    seen: list[AgentEvent] = []
    agent = Agent(ScriptedModel([Call("add", {"a": 1, "b": 2}), "a b a  b\n"]), tools=[add])
    agent.subscribe(seen.append)
    pieces = [piece async for piece in agent.stream("go")]

    assert pieces == ["a ", "b ", "a  ", "b\n"]
    assert [event.text for event in seen if isinstance(event, TextArrived)] == pieces
    assert len(agent.messages) == 4
    assert agent.usage.requests == 2


async def test_leaving_a_stream_early_ends_the_turn() -> None:
    agent = Agent(ScriptedModel(["one two three", "again"]))
    agent.subscribe(lambda event: None)
    stream = agent.stream("go")
    async for _ in stream:
        break
    await stream.aclose()

    agent.replace_messages([])
    assert (await agent.prompt("more")).text == "one two three"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_agent_answers_one_prompt_at_a_time() -> None:
    began = asyncio.Event()

    async def script(prompt: str, _: int) -> Step:
        began.set()
        return After(60, prompt)

    agent = Agent(ScriptedModel(script))
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        task = group.create_task(_failure(agent, "a"))
        await began.wait()
        with pytest.raises(BadInput, match="is already in a turn"):
            await agent.prompt("b")
        agent.cancel()

    assert isinstance(task.result(), AgentCancelled)


async def test_a_cancelled_turn_keeps_what_was_done_and_can_go_on() -> None:
    called: list[int] = []

    def note(n: int) -> str:
        """Note."""
        called.append(n)
        if len(called) == 1:
            agent.cancel()
        return "ok"

    agent = Agent(ScriptedModel([Call("note", {"n": 1}), "done"]), tools=[note])
    failure = await _failure(agent, "go")
    reply = await agent.continue_turn()

    assert isinstance(failure, AgentCancelled)
    assert reply.text == "done"
    assert called in ([1], [1, 1])  # a call that had not come back is made again
    assert str(agent.messages).count("UserPromptPart") == 1


async def test_a_turn_whose_task_is_cancelled_keeps_what_was_done() -> None:
    began = asyncio.Event()

    async def script(_: str, step: int) -> Step:
        if step == 0:
            return Call("add", {"a": 1, "b": 2})
        began.set()
        return After(60, "late")

    agent = Agent(ScriptedModel(script), tools=[add])
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        task = group.create_task(agent.prompt("go"))
        await began.wait()
        task.cancel()

    assert task.cancelled()
    assert len(agent.messages) >= 2
    assert agent.usage.requests == 1


async def test_tools_can_be_told_to_try_again_and_get_the_context() -> None:
    def pick(context: RunContext[None], n: int) -> str:
        """Pick."""
        if n < 2:
            raise ModelRetry("take a larger number")
        return f"{n} after {len(context.messages)} messages"

    agent = Agent(ScriptedModel([Call("pick", {"n": 1}), Call("pick", {"n": 2}), "done"]))
    agent.add_tool(pick)
    await agent.prompt("go")

    assert "take a larger number" in str(agent.messages)
    assert "2 after" in str(agent.messages)
    with pytest.raises(BadInput, match="two tools are named 'pick'"):
        agent.add_tool(pick)


async def test_a_tool_that_never_works_is_named() -> None:
    def never() -> str:
        """Never works."""
        raise ModelRetry("no")

    failure = await _failure(Agent(ScriptedModel(lambda _, __: Call("never")), tools=[never]), "go")

    assert isinstance(failure, ToolFailed)
    assert failure.tool == "never"


async def test_limits_bind_and_are_named() -> None:
    loop = ScriptedModel(lambda _, __: Call("add", {"a": 1, "b": 2}), name="gpt-4o")
    turns = await _failure(Agent(loop, tools=[add], limits=AgentLimits(turns=3)), "go")
    tokens = await _failure(Agent(loop, tools=[add], limits=AgentLimits(tokens=300)), "go")
    dollars = await _failure(Agent(loop, tools=[add], limits=AgentLimits(dollars=0.001)), "go")
    seconds = await _failure(Agent(ScriptedModel(["x"], delay=60), limits=AgentLimits(seconds=0.2)), "go")

    assert isinstance(turns, MaxTurns)
    assert "after 3 turns" in str(turns)
    assert isinstance(tokens, BudgetExceeded)
    assert tokens.what == "tokens"
    assert isinstance(dollars, BudgetExceeded)
    assert dollars.what == "dollars"
    assert isinstance(seconds, AgentTimedOut)
    assert seconds.seconds == 0.2


async def test_turns_are_for_each_prompt_and_tokens_for_the_whole_life() -> None:
    agent = Agent(ScriptedModel(lambda prompt, _: prompt), limits=AgentLimits(turns=1, tokens=120))
    await agent.prompt("a")
    await agent.prompt("b")

    assert isinstance(await _failure(agent, "c"), BudgetExceeded)
    with pytest.raises(BudgetExceeded):
        await agent.prompt("d")


async def test_a_limit_that_cannot_be_held_is_refused() -> None:
    agent = Agent(ScriptedModel(["x"]), limits=AgentLimits(dollars=1))

    with pytest.raises(Unavailable, match="no price is known for 'scripted'"):
        await agent.prompt("go")
    with pytest.raises(BadInput, match="`turns` is 0"):
        AgentLimits(turns=0)


async def test_a_cost_is_known_or_said_to_be_unknown() -> None:
    priced = Agent(ScriptedModel(["x"], name="gpt-4o"))
    unpriced = Agent(ScriptedModel(["x"]))

    assert (await priced.prompt("a")).cost == priced.cost
    assert priced.cost is not None
    assert priced.cost > Decimal(0)
    assert (await unpriced.prompt("a")).cost is None
    assert unpriced.cost is None


async def test_subscribers_hear_everything_in_order() -> None:
    plain: list[AgentEvent] = []
    late: list[AgentEvent] = []

    async def slowly(event: AgentEvent) -> None:
        await asyncio.sleep(0)
        late.append(event)

    agent = Agent(ScriptedModel([Call("add", {"a": 1, "b": 2}), "3", "x"]), tools=[add])
    stop = agent.subscribe(plain.append)
    agent.subscribe(slowly)
    await agent.prompt("go")
    stop()
    heard = len(plain)
    await agent.prompt("again")

    assert [type(event).__name__ for event in plain] == [
        "TurnStarted", "ModelReplied", "ToolCalled", "ToolReturned", "ModelReplied", "TurnEnded",
    ]  # fmt: skip
    assert len(plain) == heard
    assert late[:heard] == plain
    assert len(late) == heard + 3
    assert [event.content for event in plain if isinstance(event, ToolReturned)] == ["3"]
    assert (agent.dropped_events, agent.subscriber_errors) == (0, 0)


async def test_a_subscriber_that_fails_or_hangs_harms_nobody_and_is_counted() -> None:
    seen: list[AgentEvent] = []

    async def hangs(_: AgentEvent) -> None:
        await asyncio.sleep(3600)

    def fails(_: AgentEvent) -> None:
        raise ZeroDivisionError

    agent = Agent(ScriptedModel(["x", "y"]))
    for handler in (hangs, fails, seen.append):
        agent.subscribe(handler)
    async with asyncio.timeout(30):
        reply = await agent.prompt("go")

    assert reply.text == "x"
    assert len(seen) == 3
    assert agent.dropped_events == 3
    assert agent.subscriber_errors == 3
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_subscriber_that_is_too_slow_misses_events_and_memory_stays_bounded() -> None:
    async def hangs(_: AgentEvent) -> None:
        await asyncio.sleep(3600)

    words = 3 * QUEUE_EVENTS
    agent = Agent(ScriptedModel(["word " * words]))
    agent.subscribe(hangs)
    async with asyncio.timeout(60):
        pieces = [piece async for piece in agent.stream("go")]

    assert len(pieces) == words
    assert agent.dropped_events == words + 3


async def test_a_failed_turn_is_told() -> None:
    seen: list[AgentEvent] = []
    agent = Agent(ScriptedModel([RateLimited("m")]))
    agent.subscribe(seen.append)
    failure = await _failure(agent, "go")

    assert isinstance(seen[0], TurnStarted)
    assert isinstance(seen[1], TurnEnded)
    assert seen[1].error == str(failure)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (ModelHTTPError.for_category(ModelRateLimitError, status_code=429, model_name="m"), RateLimited, "rate-limited"),
        (ModelHTTPError.for_category(ModelAuthenticationError, status_code=401, model_name="m"), AuthenticationFailed, "401"),
        (ModelHTTPError.for_category(ModelQuotaExceededError, status_code=402, model_name="m"), BudgetExceeded, "account"),
        (ModelContextWindowExceededError("m", "x"), ContextTooLong, "too long for m"),
        (ModelConnectionError("m", "reset"), ModelFailed, "reset; try again"),
        (ModelHTTPError(status_code=418, model_name="m"), ModelFailed, "change the request"),
        (ModelAPIError("m", "odd", provider_error_code="odd_code"), ModelFailed, "odd_code"),
        (UnexpectedModelBehavior("empty answer"), ModelFailed, "empty answer"),
        (OSError("disk"), AgentCrashed, "OSError: disk"),
    ],
)  # fmt: skip
async def test_an_error_is_named_by_its_kind(raised: Exception, kind: type[AgentError], words: str) -> None:
    agent = Agent(ScriptedModel([raised]))
    failure = await _failure(agent, "go")

    assert type(failure) is kind
    assert words in str(failure)
    assert failure.__cause__ is raised


def test_a_model_that_is_not_known_is_the_users_mistake() -> None:
    with pytest.raises(BadInput, match="Unknown model"):
        Agent("nonsense")


@pytest.mark.parametrize("module", ["shoal", "shoal.cli.main", "shoal.errors", "shoal.patterns"])
def test_pydantic_ai_is_imported_only_by_those_who_use_the_agent(module: str) -> None:
    script = f"import sys, {module}; print('pydantic_ai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_without_the_extra_the_way_to_get_it_is_said() -> None:
    script = "import sys; sys.modules['pydantic_ai'] = None; import shoal.agent"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "pip install 'shoal[agent]'" in done.stderr


async def _failure(agent: Agent, text: str) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await agent.prompt(text)
    return caught.value
