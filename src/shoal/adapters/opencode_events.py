"""What opencode says, one JSON object on a line: `run --format json`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoal.adapters.blame import blamed
from shoal.adapters.ending import last_line, unfinished
from shoal.adapters.events import argument, event, number, plain, words
from shoal.model.activity import Act, Activity

LOGIN = "run `opencode auth login`, or set the key of your provider, such as ANTHROPIC_API_KEY"
UNFINISHED = {
    "tool-calls": "it ended before it was done",
    "length": "the model's answer was cut off, for it was too long",
    "content-filter": "the model's provider held its answer back",
    "error": "the model's answer ended with an error",
}
RULE = "specified a rule which prevents you"


@dataclass(slots=True)
class OpencodeReader:
    """Reads one session; it has no event for its end, so the reason of its last step has to do."""

    session: str | None = None
    is_done: bool = False
    usage: dict[str, float] = field(default_factory=dict)
    _reason: str | None = None
    _error: str | None = None

    def read(self, line: str) -> list[Activity]:
        """Turn a line into what it tells."""
        told = event(line)
        if told is None or not isinstance(kind := told.get("type"), str):
            return plain(line)
        if self.session is None and isinstance(name := told.get("sessionID"), str):
            self.session = name
            return [Activity(act=Act.BEGAN), *self._event(kind, told)]
        return list(self._event(kind, told))

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Believe the reason of its last step, where no error came after it."""
        if self._error is not None:
            return blamed(self._error, LOGIN)
        if self._reason is None:
            return blamed(unfinished(last_line(errors)), LOGIN)
        return UNFINISHED.get(self._reason)

    def _event(self, kind: str, told: Mapping[str, object]) -> Iterator[Activity]:
        part = told.get("part")
        match kind, part:
            case "text", {"text": str(text)} if text.strip():
                yield Activity(act=Act.SAID, text=text)
            case "tool_use", {"tool": tool, "state": dict(state)}:
                call = words(part.get("callID")) if isinstance(part, dict) else ""
                yield Activity(act=Act.TOOL, tool=words(tool), call=call, text=argument(state.get("input")))
                yield _result(words(tool), call, state)
            case "step_finish", dict():
                self._error = None
                self._spend(part)
            case "error", _:
                self._error = _why(told.get("error"))
                yield Activity(act=Act.TROUBLE, text=self._error)

    def _spend(self, part: Mapping[str, object]) -> None:
        self._reason = words(part.get("reason"))
        match part.get("tokens"):
            case {"input": sent, "output": received, **rest}:
                self._add("input_tokens", number(sent) + _cached(rest.get("cache")))
                self._add("output_tokens", number(received) + number(rest.get("reasoning")))
        if cost := number(part.get("cost")):
            self._add("cost_usd", cost)

    def _add(self, name: str, more: float) -> None:
        self.usage[name] = self.usage.get(name, 0) + more


def _cached(cache: object) -> float:
    return number(cache.get("read")) + number(cache.get("write")) if isinstance(cache, dict) else 0


def _result(tool: str, call: str, state: Mapping[str, object]) -> Activity:
    if state.get("status") == "completed":
        return Activity(act=Act.RESULT, tool=tool, call=call, text=words(state.get("output")))
    why = words(state.get("error"))
    return Activity(act=Act.DENIED if RULE in why else Act.RESULT, tool=tool, call=call, text=why, ok=False)


def _why(error: object) -> str:
    match error:
        case {"data": {"message": str(text), "statusCode": int(status)}}:
            return f"{text} ({status})"
        case {"data": {"message": str(text)}}:
            return text
    return words(error) or "it told of an error, and not which"
