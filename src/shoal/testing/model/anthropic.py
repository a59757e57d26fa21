"""Anthropic's wire format: `POST /v1/messages`."""

import json
from collections.abc import Iterator

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

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
PIECE = 40


def read(path: str, body: Body) -> Conversation:
    """Find the conversation in a request."""
    return Conversation(
        model=str(body.get("model") or ""),
        system=text_of(body.get("system") or ""),
        messages=tuple(message for item in body.get("messages") or [] for message in _messages(item)),
        tools={tool["name"]: tool.get("input_schema") or {} for tool in body.get("tools") or [] if "name" in tool},
        is_stream=bool(body.get("stream")),
    )


def _messages(message: Body) -> Iterator[Message]:
    content = message["content"]
    if message["role"] == "assistant":
        used = (
            [block["id"] for block in content if block.get("type") == "tool_use"] if isinstance(content, list) else []
        )
        yield Message("assistant", text_of(content), whole_name(used[0]) if used else "")
        return
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if block.get("type") == "tool_result":
            yield Message("result", text_of(block.get("content") or ""))
        elif block.get("type") == "text":
            yield Message("user", block["text"])


def whole(answer: ModelAnswer) -> Body:
    """Write an answer as one document."""
    return {**_message(answer), "content": _blocks(answer), "stop_reason": _stop(answer), "usage": _usage(answer.usage)}


def events(answer: ModelAnswer) -> Iterator[Event]:
    """Write an answer as a stream."""
    yield from (Event(body, body["type"]) for body in _bodies(answer))


def refusal(fail: Fail) -> Body:
    """Write why a request was refused."""
    error = {"type": KINDS.get(fail.status, "api_error"), "message": fail.message or f"the script says {fail.status}"}
    return {"type": "error", "error": error, "request_id": fresh("req_")}


def failure(fail: Fail) -> Iterator[Event]:
    """Write why as events, for a stream that has begun."""
    yield Event(refusal(fail), "error")


def _message(answer: ModelAnswer) -> Body:
    return {
        "id": fresh("msg_"),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**_usage(answer.usage), "output_tokens": 1},
    }


def _usage(usage: Usage) -> Body:
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _stop(answer: ModelAnswer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def _blocks(answer: ModelAnswer) -> list[Body]:
    text = [{"type": "text", "text": answer.text}] if answer.text else []
    return [*text, *(_call(call, part(answer.name, index)) for index, call in enumerate(answer.calls))]


def _call(call: ModelCall, name: str) -> Body:
    return {"type": "tool_use", "id": f"toolu_{name}", "name": call.name, "input": call.arguments}


def _bodies(answer: ModelAnswer) -> Iterator[Body]:
    yield {"type": "message_start", "message": _message(answer)}
    yield {"type": "ping"}
    for index, block in enumerate(_blocks(answer)):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": _stop(answer), "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": answer.usage.output}}
    yield {"type": "message_stop"}


def _deltas(block: Body) -> Iterator[Body]:
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": word} for word in words(block["text"]))
        return
    text = json.dumps(block["input"])
    for start in range(0, len(text), PIECE):
        yield {"type": "input_json_delta", "partial_json": text[start : start + PIECE]}
