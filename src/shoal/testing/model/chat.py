"""OpenAI's chat wire format: `POST /v1/chat/completions`."""

import time
from collections.abc import Iterator

from shoal.testing.model.conversation import (
    Body,
    Conversation,
    Event,
    Message,
    ModelAnswer,
    ModelCall,
    Role,
    fresh,
    part,
    text_of,
    words,
)
from shoal.testing.model.conversation import whole as whole_name
from shoal.testing.model.turns import Fail, Usage

ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "result", "function": "result"}
SYSTEM = ("system", "developer")
KINDS = {401: "invalid_request_error", 400: "invalid_request_error", 429: "requests", 500: "server_error"}
CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def read(path: str, body: Body) -> Conversation:
    """Find the conversation in a request."""
    messages = body.get("messages") or []
    spoken = [message for message in messages if message["role"] in ROLES]
    return Conversation(
        model=str(body.get("model") or ""),
        system="\n".join(text_of(message.get("content")) for message in messages if message["role"] in SYSTEM),
        messages=tuple(map(_message, spoken)),
        tools=dict(_tool(tool) for tool in body.get("tools") or [] if tool.get("type") in ("function", "custom")),
        is_stream=bool(body.get("stream")),
    )


def _message(message: Body) -> Message:
    calls = message.get("tool_calls") or []
    named = whole_name(calls[0].get("id")) if calls else ""
    return Message(ROLES[message["role"]], text_of(message.get("content")), named)


def _tool(tool: Body) -> tuple[str, Body | None]:
    if tool["type"] == "custom":
        return tool["custom"]["name"], None
    return tool["function"]["name"], tool["function"].get("parameters") or {}


def whole(answer: ModelAnswer) -> Body:
    """Write an answer as one document."""
    message: Body = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = _calls(answer)
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    head = _head(answer, "chat.completion")
    return {**head, "choices": [choice], "usage": _usage(answer.usage)}


def events(answer: ModelAnswer) -> Iterator[Event]:
    """Write an answer as a stream."""
    head = _head(answer, "chat.completion.chunk")
    for delta in _deltas(answer):
        yield Event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield Event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}]})
    yield Event({**head, "choices": [], "usage": _usage(answer.usage)})
    yield Event("[DONE]")


def refusal(fail: Fail) -> Body:
    """Write why a request was refused, as both of OpenAI's formats do."""
    kind = KINDS.get(fail.status, "server_error")
    message = fail.message or f"the script says {fail.status}"
    return {"error": {"message": message, "type": kind, "param": None, "code": fail.code or CODES.get(fail.status)}}


def failure(fail: Fail) -> Iterator[Event]:
    """Write why as events, for a stream that has begun."""
    yield Event(refusal(fail))


def _head(answer: ModelAnswer, kind: str) -> Body:
    return {"id": fresh("chatcmpl-"), "object": kind, "created": int(time.time()), "model": answer.model}


def _finish(answer: ModelAnswer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _usage(usage: Usage) -> Body:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _calls(answer: ModelAnswer) -> list[Body]:
    return [_call(call, f"call_{part(answer.name, index)}") for index, call in enumerate(answer.calls)]


def _call(call: ModelCall, name: str) -> Body:
    if call.is_custom:
        return {"id": name, "type": "custom", "custom": {"name": call.name, "input": call.text}}
    return {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.text}}


def _deltas(answer: ModelAnswer) -> Iterator[Body]:
    yield {"role": "assistant", "content": ""}
    for word in words(answer.text):
        yield {"content": word}
    for index, call in enumerate(_calls(answer)):
        if call["type"] == "custom":
            yield {"tool_calls": [{**call, "index": index}]}
            continue
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]}
