"""Each wire format, with the provider's own library; Gemini's by hand."""

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import MessageParam, ToolParam
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionToolParam
from openai.types.responses import ToolParam as ResponseTool

from shoal.testing.model import ModelServer, Say, Turn, Usage, Use

SCHEMA: dict[str, object] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SPENT = Usage(input=100, output=7, cached=40)
SCRIPT: Sequence[Turn] = [Use("look", {"path": "a"}, say="I look."), Say("It is so.", SPENT)]
ASK: MessageParam = {"role": "user", "content": "go"}


def claude(server: ModelServer) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0)


def gpt(server: ModelServer) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)


async def test_anthropic_answers_whole_and_streamed() -> None:
    tool: ToolParam = {"name": "look", "input_schema": SCHEMA}
    async with ModelServer(SCRIPT) as server, claude(server) as client:
        first = await client.messages.create(model="m", max_tokens=9, messages=[ASK], tools=[tool])
        used = first.content[1]
        assert used.type == "tool_use"
        result: MessageParam = {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": used.id, "content": "x"}],
        }
        said: MessageParam = {"role": "assistant", "content": [block.model_dump() for block in first.content]}  # type: ignore[misc, assignment]
        async with client.messages.stream(
            model="m", max_tokens=9, messages=[ASK, said, result], tools=[tool]
        ) as stream:
            last = await stream.get_final_message()

    assert (used.name, used.input, first.stop_reason) == ("look", {"path": "a"}, "tool_use")
    assert [block.model_dump()["text"] for block in last.content] == ["It is so."]
    assert (last.stop_reason, last.usage.output_tokens) == ("end_turn", 7)
    assert (last.usage.input_tokens, last.usage.cache_read_input_tokens) == (60, 40)
    assert server.requests[1].results == ("x",)


async def test_anthropic_streams_a_tool_and_counts_tokens() -> None:
    tool: ToolParam = {"name": "look", "input_schema": SCHEMA}
    async with ModelServer(SCRIPT) as server, claude(server) as client:
        counted = await client.messages.count_tokens(model="m", messages=[ASK])
        async with client.messages.stream(model="m", max_tokens=9, messages=[ASK], tools=[tool]) as stream:
            message = await stream.get_final_message()

    assert counted.input_tokens > 0
    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert message.content[1].model_dump()["input"] == {"path": "a"}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_chat_answers_whole_and_streamed(is_stream: bool) -> None:
    tool: ChatCompletionToolParam = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    async with ModelServer(SCRIPT) as server, gpt(server) as client:
        messages: list[Any] = [{"role": "user", "content": "go"}]
        first = await _chat(client, messages, [tool], is_stream=is_stream)
        call = first["tool_calls"][0]
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "x"}]
        last = await _chat(client, messages, [tool], is_stream=is_stream)

    assert first["content"] == "I look."
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {"path": "a"})
    assert last["content"] == "It is so."
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (100, 7)
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 40
    assert server.requests[1].results == ("x",)


async def _chat(client: AsyncOpenAI, messages: list[Any], tools: list[Any], *, is_stream: bool) -> dict[str, Any]:
    if is_stream:
        usual = {"include_usage": True}
        async with client.chat.completions.stream(
            model="m",
            messages=messages,
            tools=tools,
            stream_options=usual,  # type: ignore[arg-type]
        ) as stream:
            done = await stream.get_final_completion()
            return {**done.choices[0].message.model_dump(), "usage": done.usage.model_dump() if done.usage else {}}
    whole = await client.chat.completions.create(model="m", messages=messages, tools=tools)
    return {**whole.choices[0].message.model_dump(), "usage": whole.usage.model_dump() if whole.usage else {}}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_responses_answer_whole_and_streamed(is_stream: bool) -> None:
    tool: ResponseTool = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
    async with ModelServer(SCRIPT) as server, gpt(server) as client:
        items: list[Any] = [{"role": "user", "content": "go"}]
        first = await _response(client, items, [tool], is_stream=is_stream)
        call = first["output"][1]
        items += [*first["output"], {"type": "function_call_output", "call_id": call["call_id"], "output": "x"}]
        last = await _response(client, items, [tool], is_stream=is_stream)

    assert first["output"][0]["content"][0]["text"] == "I look."
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "look", {"path": "a"})
    assert last["output"][0]["content"][0]["text"] == "It is so."
    assert (last["usage"]["input_tokens"], last["usage"]["output_tokens"]) == (100, 7)
    assert last["usage"]["input_tokens_details"]["cached_tokens"] == 40
    assert server.requests[1].results == ("x",)


async def test_a_custom_tool_of_responses_is_called_with_a_text() -> None:
    tool: ResponseTool = {"type": "custom", "name": "apply_patch"}
    change = {"path": "a", "old": "x", "new": "y"}
    async with ModelServer([Use("edit", change), Use("apply_patch", "as it is")]) as server, gpt(server) as client:
        first = await _response(client, [{"role": "user", "content": "go"}], [tool], is_stream=True)
        items = [{"role": "user", "content": "go"}, *first["output"]]
        second = await _response(client, items, [tool], is_stream=False)

    assert first["output"][0]["type"] == "custom_tool_call"
    assert first["output"][0]["input"] == "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch\n"
    assert second["output"][0]["input"] == "as it is"


async def _response(client: AsyncOpenAI, items: list[Any], tools: list[Any], *, is_stream: bool) -> dict[str, Any]:
    if is_stream:
        async with client.responses.stream(model="m", input=items, tools=tools) as stream:
            return (await stream.get_final_response()).model_dump(exclude_none=True)
    return (await client.responses.create(model="m", input=items, tools=tools)).model_dump(exclude_none=True)


@pytest.mark.parametrize("verb", ["generateContent", "streamGenerateContent?alt=sse"])
async def test_gemini_answers_whole_and_streamed(verb: str) -> None:
    declared = {"name": "look", "parameters": {"type": "OBJECT", "properties": {"path": {"type": "STRING"}}}}
    contents: list[dict[str, Any]] = [{"role": "user", "parts": [{"text": "go"}]}]
    async with ModelServer(SCRIPT) as server, httpx2.AsyncClient(base_url=server.url) as client:
        body = {"contents": contents, "tools": [{"functionDeclarations": [declared]}]}
        first = _gemini(await client.post(f"/v1beta/models/pro:{verb}", json=body))
        contents += [{"role": "model", "parts": first["parts"]}]
        contents += [{"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"output": "x"}}}]}]
        last = _gemini(await client.post(f"/v1beta/models/pro:{verb}", json=body))

    assert first["parts"][-1] == {"functionCall": {"name": "look", "args": {"path": "a"}}}
    assert "".join(part["text"] for part in last["parts"]) == "It is so."
    assert (last["usage"]["promptTokenCount"], last["usage"]["candidatesTokenCount"]) == (100, 7)
    assert last["usage"]["cachedContentTokenCount"] == 40
    assert [request.model for request in server.requests] == ["pro", "pro"]
    assert server.requests[0].tools["look"] == {"type": "object", "properties": {"path": {"type": "string"}}}
    assert server.requests[1].results == ('{"output": "x"}',)


def _gemini(response: httpx2.Response) -> dict[str, Any]:
    streamed = response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    pieces = [json.loads(line) for line in lines] if streamed else [response.json()]
    parts = [part for piece in pieces for part in piece["candidates"][0]["content"]["parts"]]
    assert pieces[-1]["candidates"][0]["finishReason"] == "STOP"
    return {"parts": [part for part in parts if part != {"text": ""}], "usage": pieces[-1]["usageMetadata"]}


async def test_a_request_of_gemini_for_json_gets_json() -> None:
    async with ModelServer([Say("words")]) as server, httpx2.AsyncClient(base_url=server.url) as client:
        body = {"contents": [], "generationConfig": {"responseMimeType": "application/json"}}
        answer = _gemini(await client.post("/v1beta/models/pro:generateContent", json=body))

    assert json.loads(answer["parts"][0]["text"])["next_speaker"] == "user"
