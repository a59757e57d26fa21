"""What Codex says: one JSON object on each line, the last of which ends its turn."""

from collections.abc import Iterable, Iterator, Mapping

from shoal.adapters.blame import blamed
from shoal.adapters.ending import last_line, unfinished
from shoal.adapters.events import argument, event, name, number, objects, plain, words
from shoal.model.activity import Act, Activity

LOGIN = "run `codex login`, or set CODEX_API_KEY"
AGAIN = "Reconnecting..."
NO_NETWORK = f"{AGAIN} waiting for network"
MOST_WAITS = 5
"""After a minute and a half; it would wait for ever. Other retries it counts itself."""
LIMITED = "429"
WAIT_SECONDS = 60.0
"""How long it waits for a network, or for a rate limit, of which it does not say more."""
MISSING = "Missing environment variable"
SILENT = ("reasoning", "todo_list")
MOST_CALLS = 1000


class CodexReader:
    """Reads `codex exec --json`."""

    def __init__(self) -> None:
        self._session: str | None = None
        self._end: Mapping[str, object] | None = None
        self._spent: dict[str, float] = {}
        self._open: set[str] = set()
        self._waits = 0
        self._trouble = ""

    @property
    def is_done(self) -> bool:
        """It said that its turn is over, and stays for seconds to report to hosts of its own; or it never will be."""
        return self._end is not None or self._waits >= MOST_WAITS

    @property
    def session(self) -> str | None:
        """Its thread, for `codex exec resume`."""
        return self._session

    @property
    def usage(self) -> Mapping[str, float]:
        """What its turns were told to cost; Codex knows no prices."""
        return dict(self._spent)

    def read(self, line: str) -> Iterable[Activity]:
        """Turn one event into what it tells."""
        told = event(line) or {}
        match told:
            case {"type": "thread.started", "thread_id": str(thread)}:
                self._session = self._session or thread
                return [Activity(act=Act.BEGAN)]
            case {"type": "turn.started"}:
                self._end = None
            case {"type": "item.started" | "item.completed" as kind, "item": dict(item)}:
                return list(self._item(kind, words(item.get("type")), item))
            case {"type": "error", "message": message}:
                return [self._error(words(message))]
            case {"type": "turn.completed" | "turn.failed"}:
                self._end = told
                self._spend(told.get("usage"))
            case {"type": str()}:
                pass
            case _:
                return plain(line)
        return []

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Believe its last event: an error on the way is none if the turn was completed after it."""
        match self._end:
            case None:
                why = unfinished(self._trouble, last_line(errors))
            case {"type": "turn.completed"}:
                return None
            case {"error": {"message": message}}:
                why = words(message)
            case _:
                why = self._trouble or "its turn failed, and it did not say why"
        return blamed(why, LOGIN, is_login=MISSING in why)

    def _error(self, message: str) -> Activity:
        if not message.startswith(AGAIN):
            self._trouble = message
            return Activity(act=Act.TROUBLE, text=message)
        has_no_network = message.startswith(NO_NETWORK)
        if has_no_network:
            self._waits += 1
            self._trouble = message
        is_long = has_no_network or LIMITED in message
        return Activity(act=Act.RETRY, text=message, seconds=WAIT_SECONDS if is_long else 0)

    def _item(self, kind: str, what: str, item: Mapping[str, object]) -> Iterator[Activity]:
        self._waits = self._waits if what == "error" else 0
        is_over, call = kind == "item.completed", name(item.get("id"))
        match what:
            case "agent_message":
                if is_over:
                    yield Activity(act=Act.SAID, text=words(item.get("text")))
            case "error":
                yield Activity(act=Act.TROUBLE, text=words(item.get("message")))
            case _ if what not in SILENT:
                yield from self._call(call, what, item, is_over=is_over)

    def _call(self, call: str, what: str, item: Mapping[str, object], *, is_over: bool) -> Iterator[Activity]:
        """Tell a tool call by its beginning and its end, also where only one of them was told us."""
        if call not in self._open:
            yield Activity(act=Act.TOOL, tool=_tool(what, item), text=_argument(item), call=call)
        if is_over:
            self._open.discard(call)
            yield Activity(act=Act.RESULT, text=_outcome(item), call=call, ok=_is_good(item))
        elif len(self._open) < MOST_CALLS:
            self._open.add(call)

    def _spend(self, used: object) -> None:
        if isinstance(used, dict):
            for key in ("input_tokens", "output_tokens"):
                self._spent[key] = self._spent.get(key, 0) + number(used.get(key))


def _tool(what: str, item: Mapping[str, object]) -> str:
    match what:
        case "command_execution":
            return "shell"
        case "file_change":
            return "apply_patch"
        case "mcp_tool_call":
            return f"{words(item.get('server'))}.{words(item.get('tool'))}"
        case _:
            return what


def _argument(item: Mapping[str, object]) -> str:
    match item:
        case {"command": command}:
            return words(command)
        case {"changes": changes}:
            return ", ".join(words(one.get("path")) for one in objects(changes))
        case {"query": query}:
            return words(query)
        case _:
            return argument(item.get("arguments"))


def _outcome(item: Mapping[str, object]) -> str:
    for key in ("aggregated_output", "error", "result"):
        if item.get(key):
            return words(item[key])
    return ""


def _is_good(item: Mapping[str, object]) -> bool:
    return item.get("status") in (None, "completed") and item.get("exit_code") in (None, 0)
