"""OpenAI's responses wire format: `POST /v1/responses`."""

import time
from collections.abc import Iterable, Iterator

from shoal.testing.model import chat
from shoal.testing.model.conversation import (
    Body,
    Conversation,
    Event,
    Message,
    ModelAnswer,
    ModelCall,
    fresh,
    part,
    text_of,
    words,
)
from shoal.testing.model.conversation import whole as whole_name
from shoal.testing.model.turns import Fail, Usage

refusal = chat.refusal

SYSTEM = ("system", "developer")
TOOLS = ("function", "custom")


def read(path: str, body: Body) -> Conversation:
    """Find the conversation in a request."""
    given = body.get("input") or []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    instructions = [text_of(item.get("content")) for item in items if item.get("role") in SYSTEM]
    return Conversation(
        model=str(body.get("model") or ""),
        system="\n".join(filter(None, [body.get("instructions") or "", *instructions])),
        messages=tuple(message for item in items for message in _messages(item)),
        tools=dict(_tools(body.get("tools") or [])),
        is_stream=bool(body.get("stream")),
    )


def _messages(item: Body) -> Iterator[Message]:
    kind = item.get("type", "message")
    if kind.endswith("_call_output"):
        yield Message("result", text_of(item.get("output")))
    elif kind == "reasoning" or kind.endswith("_call"):
        yield Message("assistant", "", whole_name(item.get("call_id", "")))
    elif item.get("role") == "user":
        yield Message("user", text_of(item.get("content")))
    elif item.get("role") == "assistant":
        yield Message("assistant", text_of(item.get("content")))


def _tools(given: Iterable[Body], prefix: str = "") -> Iterator[tuple[str, Body | None]]:
    """Go through the tools; those of an MCP server are in a namespace, and named `namespace/tool` here."""
    for tool in given:
        if tool.get("type") == "namespace":
            yield from _tools(tool.get("tools") or [], f"{tool['name']}/")
        elif tool.get("type") in TOOLS:
            yield f"{prefix}{tool['name']}", _schema(tool)


def _schema(tool: Body) -> Body | None:
    return None if tool["type"] == "custom" else tool.get("parameters") or {}


def whole(answer: ModelAnswer) -> Body:
    """Write an answer as one document."""
    return _final_body(_response(answer.model), _items(answer), answer.usage)


def events(answer: ModelAnswer) -> Iterator[Event]:
    """Write an answer as a stream."""
    for number, body in enumerate(_bodies(answer)):
        yield Event({**body, "sequence_number": number}, body["type"])


def failure(fail: Fail) -> Iterator[Event]:
    """Write why as events, for a stream that has begun."""
    response = _response("")
    error = {key: refusal(fail)["error"][key] for key in ("code", "message")}
    yield Event({"type": "response.created", "sequence_number": 0, "response": response}, "response.created")
    failed = {**response, "status": "failed", "error": error}
    yield Event({"type": "response.failed", "sequence_number": 1, "response": failed}, "response.failed")


def _response(model: str) -> Body:
    return {
        "id": fresh("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": model,
        "output": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _final_body(response: Body, items: list[Body], usage: Usage) -> Body:
    return {**response, "status": "completed", "output": items, "usage": _usage(usage)}


def _usage(usage: Usage) -> Body:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input + usage.output,
    }


def _items(answer: ModelAnswer) -> list[Body]:
    text = {"type": "output_text", "text": answer.text, "annotations": []}
    message = {"id": fresh("msg_"), "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    return [
        *([message] if answer.text else []),
        *(_call(call, part(answer.name, index)) for index, call in enumerate(answer.calls)),
    ]


def _call(call: ModelCall, name: str) -> Body:
    space, _, tool = call.name.rpartition("/")
    body = {"status": "completed", "call_id": f"call_{name}", "name": tool, **({"namespace": space} if space else {})}
    if call.is_custom:
        return {**body, "id": fresh("ctc_"), "type": "custom_tool_call", "input": call.text}
    return {**body, "id": fresh("fc_"), "type": "function_call", "arguments": call.text}


def _bodies(answer: ModelAnswer) -> Iterator[Body]:
    response, items = _response(answer.model), _items(answer)
    yield {"type": "response.created", "response": response}
    yield {"type": "response.in_progress", "response": response}
    for index, item in enumerate(items):
        yield from _item(item, index)
    yield {"type": "response.completed", "response": _final_body(response, items, answer.usage)}


def _item(item: Body, index: int) -> Iterator[Body]:
    slot, empty = _SLOTS[item["type"]]
    started = {**item, "status": "in_progress", slot: empty}
    yield {"type": "response.output_item.added", "output_index": index, "item": started}
    where = {"item_id": item["id"], "output_index": index}
    yield from _text(item["content"][0], where) if slot == "content" else _input(item, slot, where)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


_SLOTS: dict[str, tuple[str, object]] = {
    "message": ("content", []),
    "function_call": ("arguments", ""),
    "custom_tool_call": ("input", ""),
}


def _text(part: Body, where: Body) -> Iterator[Body]:
    here = {**where, "content_index": 0}
    yield {"type": "response.content_part.added", **here, "part": {**part, "text": ""}}
    for word in words(part["text"]):
        yield {"type": "response.output_text.delta", **here, "delta": word, "logprobs": []}
    yield {"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **here, "part": part}


def _input(item: Body, slot: str, where: Body) -> Iterator[Body]:
    kind = f"response.{item['type']}_{slot}"
    named = {} if slot == "input" else {"name": item["name"]}
    yield {"type": f"{kind}.delta", **where, "delta": item[slot]}
    yield {"type": f"{kind}.done", **where, slot: item[slot], **named}
