"""What Claude Code says: one JSON object on each line, whose `result` is the end of a turn."""

from collections.abc import Iterable, Iterator, Mapping

from shoal.adapters.blame import blamed
from shoal.adapters.ending import last_line, unfinished
from shoal.adapters.events import argument, event, name, number, objects, plain, words
from shoal.model.activity import Act, Activity

LOGIN = "run `claude` and log in, or set ANTHROPIC_API_KEY"
ITS_OWN = "<synthetic>"
"""The model of messages that Claude Code wrote itself."""
REFUSED = (401, 403)
MOST_CALLS = 1000
READ = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
WRITTEN = "output_tokens"


class ClaudeReader:
    """Reads `stream-json`; there may be several turns, for work in the background wakes it again."""

    def __init__(self) -> None:
        self._session: str | None = None
        self._result: Mapping[str, object] | None = None
        self._is_refused = False
        self._is_woken = False  # by a task that has ended: another turn is about to begin
        self._behind = 0  # tasks in the background
        self._spent: dict[str, Mapping[str, float]] = {}
        self._denied: set[str] = set()
        self._trouble = ""

    @property
    def is_done(self) -> bool:
        """Its turn has ended, and nothing is left that would begin another."""
        if self._result is None or self._is_woken or self._behind:
            return False
        return not number(self._result.get("queued_turn_count"))

    @property
    def session(self) -> str | None:
        """Its session, for `--resume`."""
        return self._session

    @property
    def usage(self) -> Mapping[str, float]:
        """What all models together were asked, with what came from a cache."""
        match self._result:
            case {"modelUsage": dict(models), "total_cost_usd": cost}:
                return {**_by_model(models), "cost_usd": number(cost)}
            case _:
                return _total(self._spent.values())

    def read(self, line: str) -> Iterable[Activity]:
        """Turn one event into what it tells."""
        told = event(line) or {}
        match told:
            case {"type": "system", "subtype": str(kind)}:
                return list(self._system(kind, told))
            case {"type": "assistant", "message": dict(message)}:
                self._result = None
                return list(self._assistant(message, told))
            case {"type": "user", "message": {"content": blocks}}:
                return [_returned(block) for block in objects(blocks) if block.get("type") == "tool_result"]
            case {"type": "result"}:
                self._result, self._is_woken = told, False
                return list(self._late_denials(told))
            case {"type": str()}:
                return []
            case _:
                return plain(line)

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Believe the result's own flag; a subtype `success` may be an error all the same."""
        told = self._result
        if told is None:
            return blamed(unfinished(self._trouble, last_line(errors)), LOGIN, is_login=self._is_refused)
        is_good = told.get("is_error") is False and told.get("subtype") == "success"
        if is_good and not words(told.get("result")).startswith("API Error"):
            return None
        is_login = self._is_refused or told.get("api_error_status") in REFUSED
        return blamed(self._why(told), LOGIN, is_login=is_login)

    def _why(self, told: Mapping[str, object]) -> str:
        listed = told.get("errors")
        named = "; ".join(map(words, listed)) if isinstance(listed, list) else ""
        return words(told.get("result")) or named or self._trouble or words(told.get("subtype")) or "it failed"

    def _system(self, kind: str, told: Mapping[str, object]) -> Iterator[Activity]:
        match kind, told:
            case "init", {"session_id": str(session)}:
                self._result = None
                if self._session is None:
                    self._session = session
                    yield Activity(act=Act.BEGAN, text=words(told.get("model")))
            case "api_retry", _:
                why = f"{words(told.get('error_status'))} {words(told.get('error'))}".strip()
                yield Activity(act=Act.RETRY, text=why, seconds=number(told.get("retry_delay_ms")) / 1000)
            case "permission_denied", _:
                yield from self._denial(name(told.get("tool_use_id")), told, words(told.get("message")))
            case "background_tasks_changed", {"tasks": list(tasks)}:
                self._behind = len(tasks)
            case "task_started", {"task_id": str(task)}:
                yield Activity(act=Act.TOOL, tool="background", text=words(told.get("description")), call=task)
            case "task_notification", {"task_id": str(task)}:
                self._is_woken, is_good = True, told.get("status") == "completed"
                yield Activity(act=Act.RESULT, text=words(told.get("summary")), call=task, ok=is_good)

    def _assistant(self, message: Mapping[str, object], told: Mapping[str, object]) -> Iterator[Activity]:
        is_its_own = message.get("model") == ITS_OWN
        self._is_refused = is_its_own and told.get("error") == "authentication_failed"
        self._count(message)
        for block in objects(message.get("content")):
            match block:
                case {"type": "text", "text": str(text)} if is_its_own:
                    self._trouble = text
                    yield Activity(act=Act.TROUBLE, text=text)
                case {"type": "text", "text": str(text)} if not told.get("parent_tool_use_id"):
                    yield Activity(act=Act.SAID, text=text)
                case {"type": "tool_use", "name": str(tool)}:
                    call = words(block.get("id"))
                    yield Activity(act=Act.TOOL, tool=tool, text=argument(block.get("input")), call=call)

    def _count(self, message: Mapping[str, object]) -> None:
        """Remember what a message cost, for a session that never comes to its result; each has several events."""
        used, message_id = message.get("usage"), name(message.get("id"))
        if isinstance(used, dict) and (len(self._spent) < MOST_CALLS or message_id in self._spent):
            self._spent[message_id] = {key: number(used.get(key)) for key in (*READ, WRITTEN)}

    def _late_denials(self, told: Mapping[str, object]) -> Iterator[Activity]:
        for denial in objects(told.get("permission_denials")):
            yield from self._denial(name(denial.get("tool_use_id")), denial, argument(denial.get("tool_input")))

    def _denial(self, call: str, told: Mapping[str, object], why: str) -> Iterator[Activity]:
        if call not in self._denied and len(self._denied) < MOST_CALLS:
            self._denied.add(call)
            yield Activity(act=Act.DENIED, tool=words(told.get("tool_name")), text=why, call=call)


def _returned(block: Mapping[str, object]) -> Activity:
    content = block.get("content")
    if isinstance(content, list):
        content = "\n".join(words(part.get("text")) for part in objects(content))
    is_good = block.get("is_error") is not True
    return Activity(act=Act.RESULT, text=words(content), call=words(block.get("tool_use_id")), ok=is_good)


def _by_model(models: Mapping[str, object]) -> dict[str, float]:
    used = [one for one in models.values() if isinstance(one, dict)]
    read = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
    return {
        "input_tokens": sum(number(one.get(key)) for one in used for key in read),
        "output_tokens": sum(number(one.get("outputTokens")) for one in used),
    }


def _total(messages: Iterable[Mapping[str, float]]) -> dict[str, float]:
    used = list(messages)
    if not used:
        return {}
    return {
        "input_tokens": sum(one[key] for one in used for key in READ),
        "output_tokens": sum(one[WRITTEN] for one in used),
    }
