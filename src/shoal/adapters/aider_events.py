"""What aider says: words for a person, and between them the lines of its log, `--analytics-log`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoal.adapters.blame import blamed
from shoal.adapters.ending import last_line, unfinished
from shoal.adapters.events import event, number, plain, words
from shoal.model.activity import Act, Activity

LOGIN = "set the key of your provider, such as ANTHROPIC_API_KEY or OPENAI_API_KEY"
COMPLETED = "Completed --message-file"
_MODEL = re.compile(r"(?:Main m|M)odel: (\S+) with ")
_ERROR = re.compile(r"litellm\.\w*(?:Error|Exception|Timeout)\b.*")
_RETRY = re.compile(r"Retrying in ([\d.]{1,10}) seconds\.\.\.")
_EDIT = re.compile(r"Applied edit to (.+)")


@dataclass(slots=True)
class AiderReader:
    """Reads one session; what is said before the first message is sent is about aider itself."""

    session: None = None
    is_done: bool = False
    usage: dict[str, float] = field(default_factory=dict)
    _has_begun: bool = False
    _is_asking: bool = False
    """A message was sent, and no answer came yet."""
    _reason: str = ""
    _last: str = ""
    _error: str = ""

    def read(self, line: str) -> list[Activity]:
        """Turn a line into what it tells."""
        match event(line):
            case {"event": str(name), "properties": dict(told)}:
                self._event(name, told)
                return []
        return list(self._words(line))

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Believe that each message had its answer, and that it came to the end of its own accord."""
        if self._is_asking:
            return blamed(self._error or "the model gave no answer", LOGIN)
        if not self._has_begun or self._reason != COMPLETED:
            return blamed(unfinished(self._error, last_line(errors), self._reason, self._last), LOGIN)
        return None

    def _event(self, name: str, told: Mapping[str, object]) -> None:
        match name:
            case "message_send_starting":
                self._has_begun = self._is_asking = True
            case "message_send":
                self._is_asking = False
                self._add("input_tokens", told.get("prompt_tokens"))
                self._add("output_tokens", told.get("completion_tokens"))
                if number(told.get("cost")):
                    self._add("cost_usd", told.get("cost"))
            case "message_send_exception":
                self._error = words(told.get("exception"))
            case "exit":
                self.is_done, self._reason = True, words(told.get("reason"))

    def _add(self, name: str, more: object) -> None:
        self.usage[name] = self.usage.get(name, 0) + number(more)

    def _words(self, line: str) -> Iterator[Activity]:
        self._last = line.strip() or self._last
        if model := _MODEL.match(line):
            yield Activity(act=Act.BEGAN, text=model[1])
        elif error := _ERROR.match(line):
            self._error = error[0]
            yield Activity(act=Act.TROUBLE, text=error[0])
        elif wait := _RETRY.fullmatch(line.strip()):
            yield Activity(act=Act.RETRY, text=self._error, seconds=_seconds(wait[1]))
        elif edit := _EDIT.fullmatch(line.strip()):
            yield Activity(act=Act.TOOL, tool="edit", text=edit[1])
        elif self._has_begun:
            yield from plain(line)


def _seconds(written: str) -> float:
    try:
        return float(written)
    except ValueError:
        return 0.0
