"""Gemini's wire format: `POST /v1beta/models/M:generateContent` and `:streamGenerateContent?alt=sse`."""

import json
import re
from collections.abc import Iterator
from typing import Any

from shoal.testing.model.conversation import Body, Conversation, Event, Message, ModelAnswer, fresh, text_of, words
from shoal.testing.model.turns import Fail

STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
MODEL = re.compile(r"/models/([^/:]+):")

# Side requests of one client: a router, and a check of whose turn it is.
SIDE = {"reasoning": "none", "next_speaker": "user", "model_choice": "flash", "complexity_score": 1}


def read(path: str, body: Body) -> Conversation:
    """Find the conversation in a request."""
    found = MODEL.search(path)
    system = body.get("systemInstruction") or body.get("system_instruction") or {}
    declared = [function for tool in body.get("tools") or [] for function in tool.get("functionDeclarations") or []]
    return Conversation(
        model=found[1] if found else "",
        system=text_of(system.get("parts") if isinstance(system, dict) else system),
        messages=tuple(message for item in body.get("contents") or [] for message in _messages(item)),
        tools={
            function["name"]: _lower(function.get("parametersJsonSchema") or function.get("parameters") or {})
            for function in declared
        },
        is_stream=":stream" in path,
    )


def _messages(content: Body) -> Iterator[Message]:
    if content.get("role") == "model":
        yield Message("assistant", text_of(content.get("parts")))
        return
    for part in content.get("parts") or []:
        if "functionResponse" in part:
            yield Message("result", json.dumps(part["functionResponse"].get("response")))
        elif "text" in part:
            yield Message("user", part["text"])


def _lower(schema: Any) -> Any:  # noqa: ANN401
    """Write type names in lower case, as JSON Schema does and Gemini does not."""
    match schema:
        case dict():
            return {
                key: value.lower() if key == "type" and isinstance(value, str) else _lower(value)
                for key, value in schema.items()
            }
        case list():
            return [_lower(item) for item in schema]
        case _:
            return schema


def whole(answer: ModelAnswer) -> Body:
    """Write an answer as one document."""
    return _part(answer, [*([{"text": answer.text}] if answer.text else []), *_calls(answer)], finish="STOP")


def events(answer: ModelAnswer) -> Iterator[Event]:
    """Write an answer as a stream."""
    for part in [*({"text": word} for word in words(answer.text)), *_calls(answer)]:
        yield Event(_part(answer, [part]))
    yield Event(_part(answer, [{"text": ""}], finish="STOP"))


def refusal(fail: Fail) -> Body:
    """Write why a request was refused."""
    error: Body = {
        "code": fail.status,
        "message": fail.message or f"the script says {fail.status}",
        "status": STATUSES.get(fail.status, "INTERNAL"),
    }
    if fail.retry_after is not None:
        kind = "type.googleapis.com/google.rpc.RetryInfo"
        error["details"] = [{"@type": kind, "retryDelay": f"{fail.retry_after:g}s"}]
    return {"error": error}


def failure(fail: Fail) -> Iterator[Event]:
    """Write why as events, for a stream that has begun."""
    yield Event(refusal(fail))


def wants_json(body: Body) -> bool:
    """Return whether a request asks for JSON instead of words."""
    return (body.get("generationConfig") or {}).get("responseMimeType") == "application/json"


def _calls(answer: ModelAnswer) -> list[Body]:
    return [{"functionCall": {"name": call.name, "args": call.arguments}} for call in answer.calls]


def _part(answer: ModelAnswer, parts: list[Body], finish: str | None = None) -> Body:
    candidate: Body = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    usage = {
        "promptTokenCount": answer.usage.input,
        "candidatesTokenCount": answer.usage.output,
        "totalTokenCount": answer.usage.input + answer.usage.output,
        "cachedContentTokenCount": answer.usage.cached,
    }
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": answer.model,
        "responseId": fresh(""),
    }
