"""An agent's words: its output as numbered events, and the end of it for the result."""

import json
from collections.abc import Callable

from shoal.engine.flood import Flood
from shoal.model.activity import Activity
from shoal.model.events import AgentActed, Output
from shoal.model.masking import Mask
from shoal.proc import Budget, Passages, Stream

LOG_BYTES = 64 * 2**20
EVENT_BYTES = 512  # what an event takes beside its text
LINE_BYTES = 256 * 2**10
TAIL_SIGNS = 64 * 2**10
ACT_SIGNS = 2000


class Words:
    """A sink that turns chunks into `Output` events, bounded, and remembers the last of stdout.

    Past `LOG_BYTES` nothing more is kept; how much that was is said at the end.
    """

    def __init__(
        self,
        run: str,
        session: str,
        note: Callable[[Output | AgentActed], None],
        mask: Mask,
        flood: Flood | None = None,
    ) -> None:
        self._flood = flood or Flood()
        self._mask = mask
        self._run = run
        self._session = session
        self._note = note
        self._budget = Budget(LOG_BYTES)
        self._dropped = 0
        self._voices: dict[Stream, _Voice] = {}

    def feed(self, stream: Stream, data: bytes) -> float:
        """Take a chunk, and say for how many seconds no more is wanted.

        Secrets are masked before anything is cut, or half of one could pass.
        """
        self._voice(stream).feed(data)
        self._told(stream)
        return self.rest(stream, data)

    def rest(self, stream: Stream, data: bytes) -> float:
        """Count a chunk of *stream*, and say for how many seconds no more is wanted."""
        return self._voice(stream).flow.rest(data)

    def say(self, text: str) -> None:
        """Take whole words of the agent's, as if it had written them on stdout."""
        self._voice(Stream.STDOUT).feed(f"{text}\n".encode(errors="replace"))
        self._told(Stream.STDOUT)

    def act(self, activity: Activity) -> None:
        """Take one thing that the agent did; masked before it is cut, or half of a secret could pass."""
        text, tool = self._mask.text(activity.text)[:ACT_SIGNS], self._mask.text(activity.tool)[:ACT_SIGNS]
        event = AgentActed(
            run=self._run,
            session=self._session,
            act=activity.act,
            text=text,
            tool=tool,
            call=self._mask.text(activity.call)[:ACT_SIGNS],
            ok=activity.ok,
            seconds=activity.seconds,
        )
        if self._has_room(text + tool):
            self._note(event)
        else:
            self._dropped += len(text)

    def close(self) -> None:
        """Say the unfinished last lines, and how much was not kept."""
        for stream, voice in self._voices.items():
            voice.close()
            self._told(stream)
        if self._dropped:
            self._say(Stream.STDERR, "", self._dropped)

    @property
    def output(self) -> str:
        """The end of what was said on stdout."""
        return self._tail(Stream.STDOUT)

    @property
    def errors(self) -> str:
        """The end of what was said on stderr."""
        return self._tail(Stream.STDERR)

    @property
    def complaint(self) -> str:
        """The last line that was said on stderr, if any."""
        lines = self.errors.strip().splitlines()
        return lines[-1][:500] if lines else ""

    def _voice(self, stream: Stream) -> "_Voice":
        """Give what a stream has said so far; most say nothing on one of them."""
        if stream not in self._voices:
            self._voices[stream] = _Voice(self._mask, self._flood)
        return self._voices[stream]

    def _tail(self, stream: Stream) -> str:
        return self._voices[stream].tail.text if stream in self._voices else ""

    def _told(self, stream: Stream) -> None:
        """Make one event of all lines of a chunk: an event for each would cost a chatty agent minutes."""
        said = self._voice(stream).taken()
        if said is None:
            return
        text, missing = said
        if self._has_room(text):
            self._say(stream, text, missing)
        else:
            self._dropped += len(text.encode(errors="replace")) + 1 + missing

    def _has_room(self, text: str) -> bool:
        """Say whether the log still takes *text*, by what it takes there: once it does not, it takes no more."""
        return not self._dropped and self._budget.admit(len(json.dumps(text)) + EVENT_BYTES)

    def _say(self, stream: Stream, text: str, dropped: int) -> None:
        event = Output(run=self._run, session=self._session, stream=stream.value, text=text, dropped=dropped)
        self._note(event)


class _Voice:
    """One stream of an agent's: masked, cut into lines, and what of it was not told yet."""

    def __init__(self, mask: Mask, flood: Flood) -> None:
        self.flow = flood.flow()
        self.tail = _Tail()
        self._masked = mask.stream()
        self._lines = Passages(self._emit, cap=LINE_BYTES)
        self._waiting: list[str] = []
        self._missing = 0

    def feed(self, data: bytes) -> None:
        """Take a chunk."""
        self._lines.feed(self._masked.feed(data))

    def close(self) -> None:
        """Take the unfinished last line for a line."""
        self._lines.feed(self._masked.close())
        self._lines.close()

    def taken(self) -> tuple[str, int] | None:
        """Give the lines that were not told yet, and how many bytes are missing in them; `None` for none."""
        if not self._waiting:
            return None
        said = "\n".join(self._waiting), self._missing
        self._waiting.clear()
        self._missing = 0
        return said

    def _emit(self, text: str, dropped: int) -> None:
        self.tail.add(text)
        self._waiting.append(text)
        self._missing += dropped


class _Tail:
    """The last lines of a stream, up to a bound."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._size = 0
        self._is_cut = False

    def add(self, text: str) -> None:
        self._texts.append(f"{text}\n")
        self._size += len(text) + 1
        if self._size > 2 * TAIL_SIGNS:  # trimmed by halves, so that each sign moves once on average
            self._trim()

    @property
    def text(self) -> str:
        self._trim()
        return f"[earlier output left out]\n{self._texts[0]}" if self._is_cut else "".join(self._texts)

    def _trim(self) -> None:
        whole = "".join(self._texts)
        if len(whole) > TAIL_SIGNS:
            self._is_cut = True
            kept = whole[-TAIL_SIGNS:]
            whole = kept.partition("\n")[2] or kept  # whole lines, unless one alone is too long
        self._texts, self._size = [whole], len(whole)
