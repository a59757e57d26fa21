"""An agent's words: its output as numbered events, and the end of it for the result."""

from collections import deque
from collections.abc import Callable

from shoal.model.events import Output
from shoal.model.masking import Mask
from shoal.proc import Budget, Lines, Stream

LOG_BYTES = 64 * 2**20
TAIL_BYTES = 64 * 2**10


class Words:
    """A sink that turns chunks into `Output` events, bounded, and remembers the last of stdout."""

    def __init__(self, run: str, session: str, note: Callable[[Output], None], mask: Mask) -> None:
        self._masks = {stream: mask.stream() for stream in Stream}
        self._run = run
        self._session = session
        self._note = note
        self._budget = Budget(LOG_BYTES)
        self._waiting: dict[Stream, list[str]] = {stream: [] for stream in Stream}
        self._missing = dict.fromkeys(Stream, 0)
        self._tails = {stream: _Tail() for stream in Stream}
        self._lines = {stream: Lines(self._emitter(stream)) for stream in Stream}

    def feed(self, stream: Stream, data: bytes) -> None:
        """Take a chunk; secrets are masked before anything is cut, or half of one could pass."""
        self._lines[stream].feed(self._masks[stream].feed(data))
        self._told(stream)

    def close(self) -> None:
        """Say the unfinished last lines, and how much was not kept."""
        for stream, lines in self._lines.items():
            lines.feed(self._masks[stream].close())
            lines.close()
            self._told(stream)
        if self._budget.dropped:
            self._say(Stream.STDERR, "", self._budget.dropped)

    @property
    def output(self) -> str:
        """The end of what was said on stdout."""
        return self._tails[Stream.STDOUT].text

    @property
    def errors(self) -> str:
        """The end of what was said on stderr."""
        return self._tails[Stream.STDERR].text

    @property
    def complaint(self) -> str:
        """The last line that was said on stderr, if any."""
        lines = self.errors.strip().splitlines()
        return lines[-1][:500] if lines else ""

    def _emitter(self, stream: Stream) -> Callable[[str, int], None]:
        def emit(text: str, dropped: int) -> None:
            self._tails[stream].add(text)
            if self._budget.admit(len(text) + 1):
                self._waiting[stream].append(text)
                self._missing[stream] += dropped

        return emit

    def _told(self, stream: Stream) -> None:
        """Make one event of all lines of a chunk: an event for each would cost a chatty agent minutes."""
        if self._waiting[stream]:
            self._say(stream, "\n".join(self._waiting[stream]), self._missing[stream])
            self._waiting[stream].clear()
            self._missing[stream] = 0

    def _say(self, stream: Stream, text: str, dropped: int) -> None:
        event = Output(run=self._run, session=self._session, stream=stream.value, text=text, dropped=dropped)
        self._note(event)


class _Tail:
    """The last lines of a stream, up to a bound."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._size = 0
        self._cut = False

    def add(self, line: str) -> None:
        line = line[-TAIL_BYTES:]
        self._lines.append(line)
        self._size += len(line) + 1
        while self._size > TAIL_BYTES and len(self._lines) > 1:
            self._size -= len(self._lines.popleft()) + 1
            self._cut = True

    @property
    def text(self) -> str:
        body = "".join(f"{line}\n" for line in self._lines)
        return f"[earlier output left out]\n{body}" if self._cut else body
