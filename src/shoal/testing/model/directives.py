"""Scripts in the prompt: `[[s:SCENARIO key=value …]]`, so that any number of clients share one server.

A value is written as in a URL (`cmd=echo%20hi`). `say`, `ms` (between chunks), `in` and `out` (tokens) apply to all
scenarios; `cwd`, `file`, `content`, `cmd`, `old` and `new` are arguments of the tools.
"""

import json
import posixpath
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from shoal.testing.model.conversation import Conversation, answers
from shoal.testing.model.tools import DEFAULTS
from shoal.testing.model.turns import Cut, Delay, Fail, Garble, Hang, Say, Turn, Usage, Use

WRITTEN = re.compile(r"\[\[s:(\w+)([^\]]*)\]\]")
REFUSAL = re.compile(r"err([45]\d\d)(once)?")
Keys = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Directive:
    """A scenario by name, its arguments, and the number of answers after it."""

    scenario: str
    keys: Keys
    position: int

    def turns(self) -> tuple[Turn, ...]:
        """Return the script of the scenario; an unknown or invalid one is refused with 400."""
        try:
            return tuple(_with_pace(turn, self.keys) for turn in self._plain())
        except (ValueError, KeyError, TypeError) as error:
            return (Fail(400, f"the directive s:{self.scenario} cannot be read: {error!r}"),)

    def _plain(self) -> tuple[Turn, ...]:
        if refusal := REFUSAL.fullmatch(self.scenario):
            return _refusal(int(refusal[1]), self.keys, is_once=bool(refusal[2]))
        if self.scenario == "loop":
            return tuple(_shell(self.keys, f"echo loop-{step}") for step in range(self.position + 1))
        if self.scenario not in SCENARIOS:
            return (Fail(400, f"no scenario {self.scenario!r}; known: {', '.join(sorted([*SCENARIOS, 'loop']))}"),)
        return SCENARIOS[self.scenario](self.keys)


def directive(conversation: Conversation) -> Directive | None:
    """Find the last directive of the newest prompt that has one."""
    for index in reversed(range(len(conversation.messages))):
        message = conversation.messages[index]
        found = WRITTEN.findall(message.text) if message.role == "user" else []
        if found:
            scenario, written = found[-1]
            return Directive(scenario, _keys(written), answers(conversation.messages[index:]))
    return None


def _keys(written: str) -> Keys:
    pairs = (part.split("=", 1) for part in written.split() if "=" in part)
    return {name: urllib.parse.unquote(value) for name, value in pairs}


def _with_pace(turn: Turn, keys: Keys) -> Turn:
    """Return *turn* with the pace and the usage that any scenario accepts."""
    if not isinstance(turn, Say | Use):
        return turn
    if "in" in keys or "out" in keys:
        turn = replace(turn, usage=Usage(int(keys.get("in", 1)), int(keys.get("out", 1))))
    return Delay(0, turn, between=int(keys["ms"]) / 1000) if "ms" in keys else turn


def _path(keys: Keys) -> str:
    return posixpath.join(keys.get("cwd", ""), keys.get("file", DEFAULTS["path"]))


def _content(keys: Keys) -> str:
    return keys.get("content", DEFAULTS["content"])


def _write(keys: Keys) -> Use:
    return Use("write", {"path": _path(keys), "content": _content(keys)}, say="I will write it.")


def _shell(keys: Keys, usual: str = DEFAULTS["command"]) -> Use:
    return Use("shell", {"command": keys.get("cmd", usual)}, say="I will run it.")


def _say_done(keys: Keys, usual: str = "Done.") -> Say:
    return Say(keys.get("say", usual))


def _refusal(status: int, keys: Keys, *, is_once: bool) -> tuple[Turn, ...]:
    retry_after = float(keys["retry"]) if "retry" in keys else None
    is_streamed = keys.get("stream", "0") == "1"
    fail = Fail(status, keys.get("message", ""), retry_after, int(keys.get("n", 1)), is_streamed=is_streamed)
    return (fail, _say_done(keys, "Recovered.")) if is_once else (fail,)


def _edit(keys: Keys) -> tuple[Turn, ...]:
    path = _path(keys)
    change = {"path": path, "old": keys.get("old", DEFAULTS["old"]), "new": keys.get("new", DEFAULTS["new"])}
    return Use("read", {"path": path}), Use("edit", change), _say_done(keys)


def _call(keys: Keys) -> tuple[Turn, ...]:
    return Use(keys["tool"], json.loads(keys.get("args", "{}")), say="I will call it."), _say_done(keys)


def _whole_file(keys: Keys) -> tuple[Turn, ...]:
    """Write a file as text, for clients that have no tools."""
    return (Say(f"Here it is.\n\n{keys.get('file', DEFAULTS['path'])}\n```\n{_content(keys)}```\n"),)


def _overflow(keys: Keys) -> tuple[Turn, ...]:
    message = "prompt is too long: 250000 tokens > 200000 maximum"
    return (Fail(400, message, code="context_length_exceeded"),)


def _hang(keys: Keys) -> tuple[Turn, ...]:
    return (Delay(float(keys["sec"]), Cut(after_chunks=0)) if "sec" in keys else Hang(),)


SCENARIOS: dict[str, Callable[[Keys], tuple[Turn, ...]]] = {
    "text": lambda keys: (_say_done(keys, "A plain answer."),),
    "write": lambda keys: (_write(keys), _say_done(keys)),
    "shell": lambda keys: (_shell(keys), _say_done(keys)),
    "both": lambda keys: (_write(keys), _shell(keys), _say_done(keys)),
    "together": lambda keys: ((_write(keys), _shell(keys)), _say_done(keys)),
    "edit": _edit,
    "sleep": lambda keys: (_shell(keys, f"sleep {keys.get('sec', '30')}; echo slept > slept.txt"), _say_done(keys)),
    "slow": lambda keys: (Delay(0, Say("slow " * 20), between=int(keys.get("ms", 200)) / 1000),),
    "unknown_tool": lambda keys: (Use("NoSuchTool", {"a": 1}, say="I will call it."), _say_done(keys)),
    "call": _call,
    "wholefile": _whole_file,
    "overflow": _overflow,
    "hang": _hang,
    "cutstream": lambda keys: (Cut(after_chunks=int(keys.get("chunks", 1))),),
    "badjson": lambda keys: (Garble(),),
}
