"""Parse a client's output into activity events."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping

from shoal.adapters.events import MAX_NAME_CHARS, plain
from shoal.adapters.kind import Reader
from shoal.model.activity import Act, Activity
from shoal.proc import LineSplitter, Stream
from shoal.sessions.output_log import OutputLog

LINE_BYTES = 8 * 2**20
LONGEST_WAIT = 3600.0
"""How long a client may announce that it waits for its model."""
MOST_CALLS = 1000
MOST_REPORTS = 10_000
"""Reports of the client's usage."""
MOST_DENIALS = 1000
"""Denials passed on for the audit log; the session's log has its own limit."""


class ClientOutput:
    """A sink that parses stdout; *done* is set while the client has reported its end.

    Lines of stderr that contain *heartbeat* count as activity and are not stored.
    """

    def __init__(
        self,
        log: OutputLog,
        reader: Reader,
        denied: Callable[[Activity], None],
        heartbeat: str | None = None,
        *,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        self._log = log
        self._reader = reader
        self._denied = denied
        self._heartbeat = heartbeat
        self._lines = LineSplitter(self._line, cap=LINE_BYTES)
        self._errors = LineSplitter(self._error, cap=LINE_BYTES)
        self._calls: set[str] = set()
        self._texts: list[str] = []
        self._denials = 0
        self._heard = heard
        self._reported: tuple[object, ...] = ()
        self._reports = 0
        self.has_acted = False
        self.counted: Mapping[str, float] = {}
        self.done = asyncio.Event()
        self.heard_at = time.monotonic()
        self.waits_until = 0.0

    @property
    def is_using_a_tool(self) -> bool:
        """Return whether a tool call is in progress, during which the client prints nothing."""
        return bool(self._calls)

    def feed(self, stream: Stream, data: bytes) -> float:
        """Take a chunk, and return for how many seconds to stop reading."""
        self.heard_at = time.monotonic()
        if stream is Stream.STDERR and self._heartbeat is None:
            return self._log.feed(stream, data)
        (self._errors if stream is Stream.STDERR else self._lines).feed(data)
        self._emit_texts()
        return self._log.rest(stream, data)

    def act(self, activity: Activity) -> None:
        """Note an activity that others saw, as if the client had reported it."""
        self._take(activity)

    def close(self) -> None:
        """Read the unfinished last line, and end the log."""
        self._lines.close()
        self._errors.close()
        self._emit_texts()
        self._log.close()

    def _line(self, text: str, dropped: int) -> None:
        if dropped:
            text, what = "", f"a line of {len(text) + dropped} bytes was too long to read"
            self._take(Activity(act=Act.TROUBLE, text=what))
        for activity in self._read(text):
            self._take(activity)
        self._report()
        if self._reader.is_done:
            self.done.set()
        else:  # what runs in the background may wake it again
            self.done.clear()

    def _report(self) -> None:
        """Report the client's facts about itself when they have changed."""
        with contextlib.suppress(Exception):  # a reader may come from another package
            usage = self._reader.usage
            self.counted = self.counted if self._reader.is_done else usage
            facts = (self._reader.session, *sorted(usage.items()))
            if facts not in (self._reported, (None,)) and self._reports < MOST_REPORTS:
                self._reported = facts
                self._reports += 1
                self._heard()

    def _error(self, text: str, dropped: int) -> None:
        if self._heartbeat is not None and self._heartbeat not in text:
            self._log.feed(Stream.STDERR, f"{text}\n".encode(errors="replace"))

    def _read(self, text: str) -> Iterable[Activity]:
        try:
            return list(self._reader.read(text))
        except Exception:  # an agent can write anything, and a reader may come from another package
            return plain(text)

    def _take(self, activity: Activity) -> None:
        self.has_acted = self.has_acted or activity.act is Act.TOOL
        match activity.act:
            case Act.SAID:
                self._texts.append(activity.text)
                return
            case Act.TOOL if activity.call and len(self._calls) < MOST_CALLS:
                self._calls.add(activity.call[:MAX_NAME_CHARS])
            case Act.RESULT:
                self._calls.discard(activity.call[:MAX_NAME_CHARS])
            case Act.RETRY:
                self.waits_until = time.monotonic() + min(activity.seconds, LONGEST_WAIT)
            case Act.DENIED if self._denials < MOST_DENIALS:
                self._denials += 1
                self._denied(activity)
        self._emit_texts()
        self._log.act(activity)

    def _emit_texts(self) -> None:
        """Emit all text of a chunk at once: an event for each line would take minutes for a verbose client."""
        if self._texts:
            text, self._texts = "\n".join(self._texts), []
            self._log.say(text)
