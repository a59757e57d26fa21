"""Parse updates of the Agent Client Protocol: texts, plans, and tool calls with their names and arguments."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.adapters.events import number, words
from shoal.model.activity import Act, Activity
from shoal.model.permissions import NOT_LISTED, Decision, PermissionManager
from shoal.proc import LineSplitter

LONGEST = 256 * 1024
MOST_PATHS = 100
COMMANDS = ("command", "cmd", "commands")
PATHS = ("file_path", "filePath", "path", "absolute_path", "notebook_path")
OTHERS = ("pattern", "query", "url", "prompt")

EXECUTE = "execute"
BY_KIND = {
    "read": ("Read",),
    "edit": ("Edit", "Write"),
    "delete": ("Edit", "Write"),
    "move": ("Edit", "Write"),
    "search": ("Grep", "Glob"),
    EXECUTE: ("Bash",),
    "fetch": ("WebFetch",),
}
"""The names that rules use for each of the protocol's kinds of tools."""

BY_NAME = {
    **dict.fromkeys(("shell", "bash", "terminal", "run_shell_command", "exec_command", "execute_command"), ("Bash",)),
    **dict.fromkeys(("write", "write_file", "create_file", "write_to_file"), ("Write", "Edit")),
    **dict.fromkeys(("edit", "replace", "text_editor", "apply_patch", "edit_file"), ("Edit", "Write")),
    **dict.fromkeys(("read", "read_file", "view", "read_text_file"), ("Read",)),
    **dict.fromkeys(("grep", "glob", "search_file_content", "find"), ("Grep", "Glob")),
    **dict.fromkeys(("web_fetch", "webfetch", "fetch"), ("WebFetch",)),
}
"""The same for the agents' own tool names: some agents report every tool as kind `other`."""

_WORD = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What is known so far about a tool call."""

    call: str
    kind: str = ""
    own: str = ""
    """The agent's own name of the tool."""
    title: str = ""
    command: str = ""
    paths: tuple[str, ...] = ()
    other: str = ""
    is_reported: bool = False
    is_asked: bool = False
    is_over: bool = False

    def merge_update(self, facts: Mapping[str, object]) -> "ToolCall":
        """Merge the fields of an update or a permission request."""
        given = facts.get("rawInput")
        values: Mapping[str, object] = given if isinstance(given, dict) else {}
        return replace(
            self,
            kind=_text(facts.get("kind")) or self.kind,
            own=_own(facts.get("_meta")) or self.own,
            title=_text(facts.get("title")) or self.title,
            command=_first(values, COMMANDS) or self.command,
            paths=tuple(dict.fromkeys(_paths(values, facts)))[:MOST_PATHS] or self.paths,
            other=_first(values, OTHERS) or self.other,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names that rules may use for the tool; people see the first."""
        titled = _WORD.match(self.title)
        own = self.own or ("" if self.kind in BY_KIND or titled is None else titled[0])
        every = (*BY_NAME.get(own.lower(), ()), *BY_KIND.get(self.kind, ()), own)
        return tuple(dict.fromkeys(filter(None, every))) or ("Tool",)

    @property
    def is_known(self) -> bool:
        """Return whether the arguments are known; for a command, paths only say where it runs."""
        return bool(self.command or self.other or (self.paths and self.kind != EXECUTE))

    @property
    def argument(self) -> str:
        """What it is used with, for people."""
        if self.command or self.kind == EXECUTE:
            return self.command or self.title
        return ", ".join(self.paths) or self.other

    def decide(self, manager: PermissionManager) -> Decision:
        """Ask the manager about each argument under each name: one denial denies, one permission suffices."""
        is_command = self.command or self.kind == EXECUTE
        about = [] if is_command else [_forms(path, manager.workspace) for path in self.paths]
        answers = [self._ask_manager(manager, forms) for forms in about or [(self.argument,)]]
        return next((answer for answer in answers if not answer), answers[0])

    def _ask_manager(self, manager: PermissionManager, forms: tuple[str, ...]) -> Decision:
        answers = [manager.tool_allowed(name, form) for form in forms for name in self.names]
        denied = (answer for answer in answers if not answer and answer.rule != NOT_LISTED)
        return next(denied, next((answer for answer in answers if answer), answers[0]))


def _forms(path: str, workspace: Path) -> tuple[str, ...]:
    """Spell a path as rules may: relative to the workspace if it is inside, and in full."""
    full = os.path.normpath(workspace / path)
    top = f"{workspace}/"
    return (full.removeprefix(top), full) if full.startswith(top) else (full,)


def _paths(values: Mapping[str, object], facts: Mapping[str, object]) -> Iterator[str]:
    yield from (_text(values[name]) for name in PATHS if _text(values.get(name)))
    for key in ("locations", "content"):
        listed = facts.get(key)
        for place in listed[:MOST_PATHS] if isinstance(listed, list) else ():
            if isinstance(place, dict) and _text(place.get("path")):
                yield _text(place["path"])


def _first(values: Mapping[str, object], names: tuple[str, ...]) -> str:
    return next((found for name in names if (found := _command_text(values.get(name)))), "")


def _command_text(value: object) -> str:
    """Return a command as one text; for `sh -c SCRIPT` the script."""
    if not isinstance(value, list):
        return words(value)[:LONGEST]
    parts = [words(part) for part in value]
    is_script = len(parts) == 3 and parts[1] in ("-c", "-lc")
    return (parts[2] if is_script else " ".join(parts))[:LONGEST]


def _own(meta: object) -> str:
    """Find the tool's name in the extensions that agents add to the protocol, each under a key of its own."""
    for own in meta.values() if isinstance(meta, dict) else ():
        match own:
            case {"toolName": str(name)} | {"toolCall": {"toolName": str(name)}}:
                return name[:100]
    return ""


def _text(value: object) -> str:
    return value[:LONGEST] if isinstance(value, str) else ""


MOST_CALLS = 100
LINE_BYTES = 2**20
MOST_PLAN = 50
RESULT_CHARS = 500


class Updates:
    """Turns updates into activities; *used* is called with each tool call that succeeded."""

    def __init__(self, used: Callable[[ToolCall], None]) -> None:
        self._used = used
        self._calls: dict[str, ToolCall] = {}
        self._pending: list[Activity] = []
        self._late: list[Activity] = []
        self._lines = LineSplitter(self._line, cap=LINE_BYTES)
        self._message: str | None = None
        self.cost_usd: float | None = None
        self.last_words = ""
        """The beginning of the last message."""

    def read(self, update: Mapping[str, object]) -> list[Activity]:
        """Return what *update* reports; an unknown kind is only a sign of life."""
        late, self._late = self._late, []
        return [*late, *self._read(update)]

    def call(self, facts: Mapping[str, object]) -> ToolCall:
        """Return what is known about the tool call of a permission request."""
        name = words(facts.get("toolCallId"))[:200]
        return self._keep(self._calls.get(name, ToolCall(call=name)).merge_update(facts))

    def rest(self) -> list[Activity]:
        """Complete the last line of the last message."""
        self._message = None
        self._lines.close()
        return self._take_pending()

    def note_request(self, facts: Mapping[str, object]) -> list[Activity]:
        """Note a permission request: some agents report a tool call in no other way before it ends."""
        call = self.call(facts)
        self._keep(replace(call, is_asked=True, is_reported=True))
        return [*self.rest(), *(() if call.is_reported else [_tool(call)])]

    def note_denial(self, call: ToolCall, why: str) -> None:
        """End a denied call, whether the agent reports its end or not."""
        self._keep(replace(call, is_over=True))
        self._late.append(Activity(act=Act.RESULT, tool=call.names[0], text=why, call=call.call, ok=False))

    def _read(self, update: Mapping[str, object]) -> Iterable[Activity]:
        match update:
            case {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": str(text)}}:
                return self._chunk(text, words(update.get("messageId")))
            case {"sessionUpdate": "tool_call" | "tool_call_update", "toolCallId": str(call)}:
                return [*self.rest(), *self._tool(call[:200], update)]
            case {"sessionUpdate": "plan", "entries": list(entries)}:
                return [*self.rest(), Activity(act=Act.TOOL, tool="Plan", text=_plan(entries))]
            case {"sessionUpdate": "usage_update", "cost": {"amount": amount, "currency": "USD"}}:
                self.cost_usd = number(amount)
        return ()

    def _chunk(self, text: str, message: str) -> list[Activity]:
        before: list[Activity] = []
        if message != self._message:
            before = self.rest()
            self._message, self.last_words = message, ""
        self.last_words = (self.last_words + text)[:RESULT_CHARS]
        self._lines.feed(text.encode(errors="replace"))
        return [*before, *self._take_pending()]

    def _tool(self, name: str, update: Mapping[str, object]) -> Iterable[Activity]:
        call = self._calls.get(name, ToolCall(call=name)).merge_update(update)
        status = update.get("status")
        is_over = status in ("completed", "failed")
        if not call.is_reported and (call.is_known or is_over):
            call = replace(call, is_reported=True)
            yield _tool(call)
        self._keep(replace(call, is_over=is_over or call.is_over))
        if is_over and not call.is_over:
            yield Activity(
                act=Act.RESULT, tool=call.names[0], text=_result(update), call=name, ok=status == "completed"
            )
        if status == "completed":
            self._used(call)

    def _keep(self, call: ToolCall) -> ToolCall:
        self._calls[call.call] = call
        if len(self._calls) > MOST_CALLS:
            self._calls.pop(next(iter(self._calls)))
        return call

    def _line(self, text: str, dropped: int) -> None:
        if dropped:
            what = f"a line of {len(text) + dropped} bytes was too long to keep"
            self._pending.append(Activity(act=Act.TROUBLE, text=what))
        else:
            self._pending.append(Activity(act=Act.SAID, text=text))

    def _take_pending(self) -> list[Activity]:
        pending, self._pending = self._pending, []
        return pending


def _tool(call: ToolCall) -> Activity:
    return Activity(act=Act.TOOL, tool=call.names[0], text=call.argument, call=call.call)


def _plan(entries: list[object]) -> str:
    """Format a plan as a list of done and open entries."""
    marks = {"completed": "x", "in_progress": "-"}
    known = [entry for entry in entries[:MOST_PLAN] if isinstance(entry, dict)]
    return "; ".join(f"[{marks.get(words(entry.get('status')), ' ')}] {words(entry.get('content'))}" for entry in known)


def _result(update: Mapping[str, object]) -> str:
    """Return the beginning of a tool call's result."""
    content = update.get("content")
    for part in content if isinstance(content, list) else ():
        match part:
            case {"type": "content", "content": {"text": str(text)}}:
                return text[:RESULT_CHARS]
    return words(update.get("rawOutput"))[:RESULT_CHARS]
