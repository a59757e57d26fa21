"""What an agent tells of its work, update by update: read by key, and never trusted."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from shoal.adapters.events import number, words
from shoal.engine.acp.tool_call import ToolCall
from shoal.model.activity import Act, Activity
from shoal.proc import Lines

MOST_CALLS = 100
LINE_BYTES = 2**20
MOST_PLAN = 50
RESULT_SIGNS = 500


class Updates:
    """Turns updates into activities; *used* is told each tool call that went well."""

    def __init__(self, used: Callable[[ToolCall], None]) -> None:
        self._used = used
        self._calls: dict[str, ToolCall] = {}
        self._said: list[Activity] = []
        self._late: list[Activity] = []
        self._lines = Lines(self._line, cap=LINE_BYTES)
        self._message: str | None = None
        self.cost_usd: float | None = None
        self.last_words = ""
        """The beginning of the last message."""

    def read(self, update: Mapping[str, object]) -> list[Activity]:
        """Say what *update* tells; one of a kind that we do not know tells that it is alive."""
        late, self._late = self._late, []
        return [*late, *self._read(update)]

    def call(self, told: Mapping[str, object]) -> ToolCall:
        """Give what is known of the tool call that a question is about."""
        name = words(told.get("toolCallId"))[:200]
        return self._keep(self._calls.get(name, ToolCall(call=name)).updated(told))

    def rest(self) -> list[Activity]:
        """End the line that the last message ended in."""
        self._message = None
        self._lines.close()
        return self._taken()

    def asked(self, told: Mapping[str, object]) -> list[Activity]:
        """Note that we are asked whether a tool call may be: some agents tell of it in no other way before it ends."""
        call = self.call(told)
        self._keep(replace(call, is_asked=True, is_told=True))
        return [*self.rest(), *(() if call.is_told else [_tool(call)])]

    def denied(self, call: ToolCall, why: str) -> None:
        """Let a call be over that may not be, whether the agent says so or not."""
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
        self.last_words = (self.last_words + text)[:RESULT_SIGNS]
        self._lines.feed(text.encode(errors="replace"))
        return [*before, *self._taken()]

    def _tool(self, name: str, update: Mapping[str, object]) -> Iterable[Activity]:
        call = self._calls.get(name, ToolCall(call=name)).updated(update)
        status = update.get("status")
        is_over = status in ("completed", "failed")
        if not call.is_told and (call.is_known or is_over):
            call = replace(call, is_told=True)
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
            what = f"a line of {len(text) + dropped} bytes was too long to be kept"
            self._said.append(Activity(act=Act.TROUBLE, text=what))
        else:
            self._said.append(Activity(act=Act.SAID, text=text))

    def _taken(self) -> list[Activity]:
        said, self._said = self._said, []
        return said


def _tool(call: ToolCall) -> Activity:
    return Activity(act=Act.TOOL, tool=call.names[0], text=call.argument, call=call.call)


def _plan(entries: list[object]) -> str:
    """Spell a plan as a list of what is done and what is not."""
    marks = {"completed": "x", "in_progress": "-"}
    known = [entry for entry in entries[:MOST_PLAN] if isinstance(entry, dict)]
    return "; ".join(f"[{marks.get(words(one.get('status')), ' ')}] {words(one.get('content'))}" for one in known)


def _result(update: Mapping[str, object]) -> str:
    """Give the beginning of what came out of a tool call."""
    content = update.get("content")
    for one in content if isinstance(content, list) else ():
        match one:
            case {"type": "content", "content": {"text": str(text)}}:
                return text[:RESULT_SIGNS]
    return words(update.get("rawOutput"))[:RESULT_SIGNS]
