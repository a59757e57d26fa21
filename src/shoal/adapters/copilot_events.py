"""What Copilot CLI says, one JSON object on a line: `--output-format json`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from shoal.adapters.blame import blamed
from shoal.adapters.calls import Calls
from shoal.adapters.ending import last_line, unfinished
from shoal.adapters.events import argument, event, number, plain, words
from shoal.model.activity import Act, Activity

LOGIN = "run `copilot login`, or set COPILOT_GITHUB_TOKEN, or COPILOT_PROVIDER_BASE_URL and COPILOT_PROVIDER_API_KEY"
NO_LOGIN = "No authentication information found"


@dataclass(slots=True)
class CopilotReader:
    """Reads one session; it tells no tokens, so *usage* stays empty."""

    session: str | None = None
    is_done: bool = False
    usage: dict[str, float] = field(default_factory=dict)
    _has_begun: bool = False
    _error: str | None = None
    _exit: float = 0
    _calls: Calls = field(default_factory=Calls)

    def read(self, line: str) -> list[Activity]:
        """Turn a line into what it tells."""
        told = event(line)
        if told is None:
            return plain(line)
        match told:
            case {"type": "result"}:
                self._end(told)
                return []
            case {"type": str(kind), "data": dict(data)}:
                return list(self._event(kind, data))
            case {"type": str()}:
                return []
        return plain(line)

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Believe its result, and that no error was the last thing it told."""
        if self._error is not None:
            return blamed(self._error, LOGIN)
        if NO_LOGIN in errors:
            return blamed(NO_LOGIN, LOGIN, is_login=True)
        if not self.is_done:
            return blamed(unfinished(last_line(errors)), LOGIN)
        return f"it ended with {self._exit:g} and did not say why" if self._exit else None

    def _end(self, told: Mapping[str, object]) -> None:
        self.is_done = True
        self.session = words(told.get("sessionId")) or None
        self._exit = number(told.get("exitCode"))

    def _event(self, kind: str, told: Mapping[str, object]) -> Iterator[Activity]:
        call, tool = words(told.get("toolCallId")), words(told.get("toolName"))
        match kind:
            case "model.call_start" if not self._has_begun:
                self._has_begun = True
                yield Activity(act=Act.BEGAN, text=words(told.get("model")))
            case "assistant.message":
                self._error = None
                if (text := words(told.get("content"))).strip():
                    yield Activity(act=Act.SAID, text=text)
            case "tool.execution_start":
                self._calls.begin(call, tool)
                yield Activity(act=Act.TOOL, tool=tool, call=call, text=argument(told.get("arguments")))
            case "tool.execution_complete":
                yield replace(_result(told), call=call, tool=self._calls.end(call))
            case "assistant.turn_retry":
                yield Activity(act=Act.RETRY, text=words(told.get("reason")))
            case "session.error":
                self._error = words(told.get("message")) or "it told of an error, and not which"
                yield Activity(act=Act.TROUBLE, text=self._error)


def _result(told: Mapping[str, object]) -> Activity:
    match told:
        case {"error": {"code": "denied", "message": why}}:
            return Activity(act=Act.DENIED, text=words(why), ok=False)
        case {"error": {"message": why}}:
            return Activity(act=Act.RESULT, text=words(why), ok=False)
        case {"result": {"content": text}}:
            return Activity(act=Act.RESULT, text=words(text), ok=told.get("success") is True)
    return Activity(act=Act.RESULT, ok=told.get("success") is True)
