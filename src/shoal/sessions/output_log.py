"""An agent's words: its output as numbered events, and the end of it for the result."""

import json
import os
import time
from collections.abc import Callable

from shoal.model.activity import Activity
from shoal.model.events import AgentActed, Output
from shoal.model.masking import Mask
from shoal.proc import LineBatcher, OutputBudget, Stream

CPUS = os.cpu_count() or 1
# Eight agents that print short lines take two cores while they are read; a writer that waits on its pipe takes none.
TOTAL_BYTES = 2**20 * CPUS  # a second, of all agents in flood together
STEADY_BYTES = 2**15  # a second, of each stream: more than that for long is a flood,
BURST_BYTES = 2**19  # but so much may be said at once
# A build or a test suite prints some ten megabytes and is done. A few agents that do so together are read as fast as
# one alone is, many of them share a rate at which an agent that works beside them keeps most of two cores.
HONEST_BYTES = 48 * 2**20  # what an agent may say beyond its bursts before it counts as a flood: 17 MB of short lines
FEW = 4
MANY_BYTES = 2 * TOTAL_BYTES  # a second, of all of them together where they are more than a few
LINE_COST_BYTES = 20  # what a line end counts for: each line is a system call of its writer's
SIP_BYTES = 2**10  # a chunk of less is a sip; each becomes an event of some hundred bytes
SIPS = 50  # a second: who writes two bytes at a time is read when there is more of it,
BURST_SIPS = 16  # unless it was quiet before
LONGEST = 2.0  # seconds of rest
FRESH = 3.0  # seconds for which a flood is remembered


class FloodControl:
    """What one run's agents may say together; an agent alone in flood disturbs nobody, and goes on."""

    def __init__(self) -> None:
        self._honest = _Recent()
        self._endless = _Recent()

    def talker(self) -> "OutputRate":
        """Give one agent its share."""
        return OutputRate(self)

    def rest(self, talker: "OutputRate", missing: float, now: float) -> float:
        """Say how long *talker* rests after it said so many bytes more than its streams may."""
        if talker.is_honest:
            self._endless.forget(talker)
            together = self._honest.note(talker, now)
            return missing * together / MANY_BYTES if together > FEW else 0.0
        self._honest.forget(talker)
        together = self._endless.note(talker, now) + self._honest.count(now)
        return min(LONGEST, missing * together / TOTAL_BYTES) if together > 1 else 0.0


class OutputRate:
    """One agent: its streams, and how much it may say beyond their bursts before it counts as a flood."""

    def __init__(self, flood: FloodControl) -> None:
        self._flood = flood
        self._reserve = float(HONEST_BYTES)

    @property
    def is_honest(self) -> bool:
        """Say whether it has not yet said more than honest work does."""
        return self._reserve > 0

    def flow(self) -> "OutputFlow":
        """Give one of its streams a share of its own."""
        return OutputFlow(self)

    def save(self, unused: float) -> None:
        """Take back what a quiet stream did not say."""
        self._reserve = min(HONEST_BYTES, self._reserve + unused)

    def rest(self, missing: float, now: float) -> float:
        """Pay for what a stream said beyond its burst, and say how long it rests."""
        rest = self._flood.rest(self, missing, now)
        self._reserve = max(0.0, self._reserve - missing)
        return rest


class OutputFlow:
    """One stream, and how much it may say before it has to rest."""

    def __init__(self, talker: OutputRate) -> None:
        self._talker = talker
        self._level = float(BURST_BYTES)
        self._sips = float(BURST_SIPS)
        self._at = time.monotonic()

    def rest(self, chunk: bytes) -> float:
        """Count a chunk, and say for how many seconds nothing more of its stream is wanted."""
        now = time.monotonic()
        passed, self._at = now - self._at, now
        return max(self._after_a_sip(chunk, passed), self._after_a_flood(chunk, passed))

    def _after_a_sip(self, chunk: bytes, passed: float) -> float:
        self._sips = min(BURST_SIPS, self._sips + passed * SIPS) - max(0.0, 1 - len(chunk) / SIP_BYTES)
        return max(0.0, -self._sips / SIPS)

    def _after_a_flood(self, chunk: bytes, passed: float) -> float:
        level = self._level + passed * STEADY_BYTES
        self._level = min(BURST_BYTES, level)
        if level > BURST_BYTES:
            self._talker.save(level - BURST_BYTES)
        self._level -= len(chunk) + LINE_COST_BYTES * chunk.count(b"\n")
        if self._level >= 0:
            return 0.0
        missing, self._level = -self._level, 0.0  # paid for by the rest
        return self._talker.rest(missing, self._at)


class _Recent:
    """Who was in flood of late, the oldest first."""

    def __init__(self) -> None:
        self._seen: dict[OutputRate, float] = {}

    def note(self, talker: OutputRate, now: float) -> int:
        """Note that *talker* is in flood, and count all that are."""
        self._seen.pop(talker, None)
        self._seen[talker] = now  # last, so that the first is always the oldest
        return self.count(now)

    def forget(self, talker: OutputRate) -> None:
        """Count *talker* no more."""
        self._seen.pop(talker, None)

    def count(self, now: float) -> int:
        """Count all that were in flood of late."""
        while self._seen and next(iter(self._seen.values())) < now - FRESH:
            del self._seen[next(iter(self._seen))]
        return len(self._seen)


LOG_BYTES = 64 * 2**20
EVENT_BYTES = 512  # what an event takes beside its text
LINE_BYTES = 256 * 2**10
TAIL_CHARS = 64 * 2**10
ACT_CHARS = 2000


class OutputLog:
    """A sink that turns chunks into `Output` events, bounded, and remembers the last of stdout.

    Past `LOG_BYTES` nothing more is kept; how much that was is said at the end.
    """

    def __init__(
        self,
        run: str,
        session: str,
        note: Callable[[Output | AgentActed], None],
        mask: Mask,
        flood: FloodControl | None = None,
    ) -> None:
        self._talker = (flood or FloodControl()).talker()
        self._mask = mask
        self._run = run
        self._session = session
        self._note = note
        self._budget = OutputBudget(LOG_BYTES)
        self._dropped = 0
        self._voices: dict[Stream, _StreamBuffer] = {}

    def feed(self, stream: Stream, data: bytes) -> float:
        """Take a chunk, and say for how many seconds no more is wanted.

        Secrets are masked before anything is cut, or half of one could pass.
        """
        self._voice(stream).feed(data)
        self._emit_lines(stream)
        return self.rest(stream, data)

    def rest(self, stream: Stream, data: bytes) -> float:
        """Count a chunk of *stream*, and say for how many seconds no more is wanted."""
        return self._voice(stream).flow.rest(data)

    def say(self, text: str) -> None:
        """Take whole words of the agent's, as if it had written them on stdout."""
        self._voice(Stream.STDOUT).feed(f"{text}\n".encode(errors="replace"))
        self._emit_lines(Stream.STDOUT)

    def act(self, activity: Activity) -> None:
        """Take one thing that the agent did; masked before it is cut, or half of a secret could pass."""
        text, tool = self._mask.text(activity.text)[:ACT_CHARS], self._mask.text(activity.tool)[:ACT_CHARS]
        event = AgentActed(
            run=self._run,
            session=self._session,
            act=activity.act,
            text=text,
            tool=tool,
            call=self._mask.text(activity.call)[:ACT_CHARS],
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
            self._emit_lines(stream)
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

    def _voice(self, stream: Stream) -> "_StreamBuffer":
        """Give what a stream has said so far; most say nothing on one of them."""
        if stream not in self._voices:
            self._voices[stream] = _StreamBuffer(self._mask, self._talker.flow())
        return self._voices[stream]

    def _tail(self, stream: Stream) -> str:
        return self._voices[stream].tail.text if stream in self._voices else ""

    def _emit_lines(self, stream: Stream) -> None:
        """Make one event of all lines of a chunk: an event for each would cost a chatty agent minutes."""
        said = self._voice(stream).take()
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


class _StreamBuffer:
    """One stream of an agent's: masked, cut into lines, and what of it was not told yet."""

    def __init__(self, mask: Mask, flow: OutputFlow) -> None:
        self.flow = flow
        self.tail = _Tail()
        self._masked = mask.stream()
        self._lines = LineBatcher(self._emit, cap=LINE_BYTES)
        self._waiting: list[str] = []
        self._missing = 0

    def feed(self, data: bytes) -> None:
        """Take a chunk."""
        self._lines.feed(self._masked.feed(data))

    def close(self) -> None:
        """Take the unfinished last line for a line."""
        self._lines.feed(self._masked.close())
        self._lines.close()

    def take(self) -> tuple[str, int] | None:
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
        if self._size > 2 * TAIL_CHARS:  # trimmed by halves, so that each sign moves once on average
            self._trim()

    @property
    def text(self) -> str:
        self._trim()
        return f"[earlier output left out]\n{self._texts[0]}" if self._is_cut else "".join(self._texts)

    def _trim(self) -> None:
        whole = "".join(self._texts)
        if len(whole) > TAIL_CHARS:
            self._is_cut = True
            kept = whole[-TAIL_CHARS:]
            whole = kept.partition("\n")[2] or kept  # whole lines, unless one alone is too long
        self._texts, self._size = [whole], len(whole)
