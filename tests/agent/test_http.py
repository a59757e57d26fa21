"""A real HTTP model: pydantic-ai's own providers against a server on loopback, in two wire formats."""

import asyncio
from collections.abc import Callable

import pytest
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from shoal.agent import Agent
from shoal.errors import AgentError, AgentTimedOut, AuthenticationFailed, ModelFailed, RateLimited
from shoal.patterns.outcome import Err, Ok
from tests.agent.fake_model import FakeModel, fake_model

Wire = Callable[[FakeModel], Model]
NO_RETRY = ModelSettings(max_retries=0)


def anthropic(server: FakeModel) -> Model:
    provider = AnthropicProvider(api_key="k", base_url=server.url, http_client=server.client)
    return AnthropicModel("claude-sonnet-5", provider=provider)


def openai(server: FakeModel) -> Model:
    provider = OpenAIProvider(api_key="k", base_url=f"{server.url}/v1", http_client=server.client)
    return OpenAIChatModel("gpt-4o", provider=provider)


WIRES = pytest.mark.parametrize("wire", [anthropic, openai])


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@WIRES
async def test_a_tool_is_called_and_its_result_goes_back(wire: Wire) -> None:
    async with fake_model() as server:
        agent = Agent(wire(server), system_prompt="Be short.", tools=[add])

        reply = await agent.prompt('[[call add {"a": 19, "b": 23}]]')

    assert reply.text == "done"
    assert "42" in str(server.asked[1]["messages"][-1])
    assert "Be short." in str(server.asked[0])
    assert reply.usage.requests == 2
    assert reply.cost is not None
    assert reply.cost > 0


@WIRES
async def test_a_refusal_for_coming_too_soon_is_tried_again(wire: Wire) -> None:
    async with fake_model() as server:
        reply = await Agent(wire(server)).prompt("[[once 429]]")

    assert reply.text == "done"
    assert len(server.asked) == 2


@WIRES
@pytest.mark.parametrize(("status", "kind"), [(429, RateLimited), (401, AuthenticationFailed), (529, ModelFailed)])
async def test_a_refusal_that_stays_is_named_by_its_status(wire: Wire, status: int, kind: type[AgentError]) -> None:
    async with fake_model() as server:
        agent = Agent(wire(server), settings=NO_RETRY)

        with pytest.raises(kind) as caught:
            await agent.prompt(f"[[fail {status}]]")

    assert not isinstance(caught.value, RateLimited) or caught.value.retry_after == pytest.approx(0.02)
    assert not isinstance(caught.value, ModelFailed) or caught.value.is_passing


@WIRES
async def test_a_stream_comes_in_pieces(wire: Wire) -> None:
    async with fake_model() as server:
        agent = Agent(wire(server))

        pieces = [piece async for piece in agent.stream("[[say one two three]]")]

    assert pieces == ["one ", "two ", "three"]
    assert len(agent.messages) == 2


@WIRES
async def test_a_stream_that_is_cut_is_an_error_and_not_an_answer(wire: Wire) -> None:
    async with fake_model() as server:
        agent = Agent(wire(server), settings=NO_RETRY)

        with pytest.raises(ModelFailed):
            _ = [piece async for piece in agent.stream("[[cut]]")]
        with pytest.raises(ModelFailed):
            await agent.prompt("[[cut]]")


@WIRES
async def test_a_model_that_hangs_is_left_when_the_time_is_over(wire: Wire) -> None:
    async with asyncio.timeout(60), fake_model() as server:
        agent = Agent(wire(server))

        results = await agent.run_parallel_prompts(["[[hang]]", "[[say still here]]"], timeout=3)

    assert isinstance(results[0], Err)
    assert isinstance(results[0].error, AgentTimedOut)
    assert isinstance(results[1], Ok)


async def test_a_turn_that_hangs_can_be_cancelled_and_gone_on_with() -> None:
    async with asyncio.timeout(60), fake_model() as server:
        agent = Agent(anthropic(server))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_failure(agent, "[[hang]]"))
            await server.hanging.wait()
            agent.cancel()
        agent.replace_messages([])
        reply = await agent.prompt("[[say back]]")

    assert type(task.result()).__name__ == "AgentCancelled"
    assert reply.text == "back"


async def _failure(agent: Agent, text: str) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await agent.prompt(text)
    return caught.value
