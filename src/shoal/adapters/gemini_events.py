"""What Gemini CLI says, one JSON object on a line: `--output-format stream-json`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoal.adapters.blame import blamed
from shoal.adapters.calls import Calls
from shoal.adapters.events import argument, event, number, plain, words
from shoal.model.activity import Act, Activity

NO_LOGIN = 41
"""The exit code of a client that was not let ask at all."""
IGNORED_RULES = "Policy file error"
MOST_SIGNS = 2**16


@dataclass(slots=True)
class GeminiReader:
    """Reads one session; words come in pieces, and are told as a whole when something else follows."""

    login: str
    session: str | None = None
    is_done: bool = False
    usage: dict[str, float] = field(default_factory=dict)
    _text: str = ""
    _calls: Calls = field(default_factory=Calls)
    _failure: str | None = None

    def read(self, line: str) -> list[Activity]:
        """Turn a line into what it tells."""
        told = event(line)
        if told is None:
            return [*self._spoken(), *plain(line)]
        match told:
            case {"type": "message", "role": "assistant", "content": str(text)}:
                self._text += text
                return list(self._spoken()) if len(self._text) > MOST_SIGNS else []
            case {"type": str(kind)}:
                return [*self._spoken(), *self._event(kind, told)]
        return plain(line)

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Believe its result, and nothing else; without one it did not come to its end."""
        if IGNORED_RULES in errors:
            return "its tool rules were not all taken: " + errors[errors.index(IGNORED_RULES) :].strip()
        if self.is_done:
            return self._failure
        if exit_code == NO_LOGIN:
            return blamed(_last_line(errors) or "it has no login", self.login, is_login=True)
        return blamed(_last_line(errors) or f"it ended with {exit_code} and told no result", self.login)

    def _spoken(self) -> Iterator[Activity]:
        text, self._text = self._text, ""
        if text.strip():
            yield Activity(act=Act.SAID, text=text)

    def _event(self, kind: str, told: Mapping[str, object]) -> Iterator[Activity]:
        match kind:
            case "init":
                self.session = words(told.get("session_id")) or None
                yield Activity(act=Act.BEGAN, text=words(told.get("model")))
            case "tool_use":
                call, tool = words(told.get("tool_id")), words(told.get("tool_name"))
                self._calls.begin(call, tool)
                yield Activity(act=Act.TOOL, tool=tool, call=call, text=argument(told.get("parameters")))
            case "tool_result":
                yield self._result(told)
            case "error":
                yield Activity(act=Act.TROUBLE, text=words(told.get("message")))
            case "result":
                self._end(told)

    def _result(self, told: Mapping[str, object]) -> Activity:
        call, text = words(told.get("tool_id")), words(told.get("output"))
        tool = self._calls.end(call)
        match told.get("error"):
            case {"type": "policy_violation", "message": why}:
                return Activity(act=Act.DENIED, tool=tool, call=call, text=words(why), ok=False)
        return Activity(act=Act.RESULT, tool=tool, call=call, text=text, ok=told.get("status") == "success")

    def _end(self, told: Mapping[str, object]) -> None:
        self.is_done = True
        match told.get("stats"):
            case {"input_tokens": sent, "output_tokens": received}:
                self.usage = {"input_tokens": number(sent), "output_tokens": number(received)}
        if told.get("status") != "success":
            error = told.get("error")
            why = words(error.get("message") if isinstance(error, dict) else error)
            self._failure = blamed(why or "it told that it failed, and not why", self.login)


def _last_line(errors: str) -> str:
    """Give the last line of stderr that is no part of a traceback."""
    lines = (line.strip() for line in reversed(errors.splitlines()))
    return next((line for line in lines if line and not line.startswith(("at ", "}", "status:"))), "")
