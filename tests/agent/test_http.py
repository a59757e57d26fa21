"""A real HTTP model: pydantic-ai's own providers against a server on loopback, in two wire formats."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import httpx2
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
from shoal.testing.model import Cut, Fail, Hang, ModelServer, Request, Say, Script, Turn, Use

Wire = Callable[[ModelServer, httpx2.AsyncClient], Model]
NO_RETRY = ModelSettings(max_retries=0)


def anthropic(server: ModelServer, client: httpx2.AsyncClient) -> Model:
    provider = AnthropicProvider(api_key="k", base_url=server.url, http_client=client)
    return AnthropicModel("claude-sonnet-5", provider=provider)


def openai(server: ModelServer, client: httpx2.AsyncClient) -> Model:
    provider = OpenAIProvider(api_key="k", base_url=f"{server.url}/v1", http_client=client)
    return OpenAIChatModel("gpt-4o", provider=provider)


WIRES = pytest.mark.parametrize("wire", [anthropic, openai])


@contextlib.asynccontextmanager
async def served(wire: Wire, script: Script) -> AsyncIterator[tuple[ModelServer, Model]]:
    async with ModelServer(script) as server, httpx2.AsyncClient() as client:
        yield server, wire(server, client)


def hang_or_say(request: Request) -> Turn:
    return Hang() if request.user == "hang" else Say(request.user)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@WIRES
async def test_a_tool_is_called_and_its_result_goes_back(wire: Wire) -> None:
    async with served(wire, [Use("add", {"a": 19, "b": 23}), Say("done")]) as (server, model):
        agent = Agent(model, system_prompt="Be short.", tools=[add])

        reply = await agent.prompt("go")

    assert reply.text == "done"
    assert server.requests[1].results == ("42",)
    assert "Be short." in server.systems[0]
    assert reply.usage.requests == 2
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (server.usage.input, server.usage.output)
    assert reply.cost is not None
    assert reply.cost > 0


@WIRES
async def test_a_refusal_for_coming_too_soon_is_tried_again(wire: Wire) -> None:
    async with served(wire, [Fail(429, retry_after=0.02), Say("done")]) as (server, model):
        reply = await Agent(model).prompt("go")

    assert reply.text == "done"
    assert len(server.requests) == 2


@WIRES
@pytest.mark.parametrize(("status", "kind"), [(429, RateLimited), (401, AuthenticationFailed), (529, ModelFailed)])
async def test_a_refusal_that_stays_is_named_by_its_status(wire: Wire, status: int, kind: type[AgentError]) -> None:
    async with served(wire, [Fail(status, retry_after=0.02)]) as (_, model):
        agent = Agent(model, settings=NO_RETRY)

        with pytest.raises(kind) as caught:
            await agent.prompt("go")

    assert not isinstance(caught.value, RateLimited) or caught.value.retry_after == pytest.approx(0.02)
    assert not isinstance(caught.value, ModelFailed) or caught.value.is_passing


@WIRES
async def test_a_stream_comes_in_pieces(wire: Wire) -> None:
    async with served(wire, [Say("one two three")]) as (_, model):
        agent = Agent(model)

        pieces = [piece async for piece in agent.stream("go")]

    assert pieces == ["one ", "two ", "three"]
    assert len(agent.messages) == 2


@WIRES
async def test_a_stream_that_is_cut_is_an_error_and_not_an_answer(wire: Wire) -> None:
    async with served(wire, [Cut()]) as (_, model):
        agent = Agent(model, settings=NO_RETRY)

        with pytest.raises(ModelFailed):
            _ = [piece async for piece in agent.stream("go")]
        with pytest.raises(ModelFailed):
            await agent.prompt("go")


@WIRES
async def test_a_model_that_hangs_is_left_when_the_time_is_over(wire: Wire) -> None:
    async with asyncio.timeout(60), served(wire, hang_or_say) as (_, model):
        agent = Agent(model)

        results = await agent.run_parallel_prompts(["hang", "still here"], timeout=3)

    assert isinstance(results[0], Err)
    assert isinstance(results[0].error, AgentTimedOut)
    assert isinstance(results[1], Ok)


async def test_a_turn_that_hangs_can_be_cancelled_and_gone_on_with() -> None:
    async with asyncio.timeout(60), served(anthropic, hang_or_say) as (server, model):
        agent = Agent(model)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_failure(agent, "hang"))
            await server.received()
            agent.cancel()
        agent.replace_messages([])
        reply = await agent.prompt("back")

    assert type(task.result()).__name__ == "AgentCancelled"
    assert reply.text == "back"


async def _failure(agent: Agent, text: str) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await agent.prompt(text)
    return caught.value
