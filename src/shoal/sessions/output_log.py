"""Store an agent's output as numbered events, limit its rate and size, and remember its end for the result."""

import json
import os
import time
from collections.abc import Callable

from shoal.model.activity import Activity
from shoal.model.events import AgentActed, Output
from shoal.model.masking import Mask
from shoal.proc import LineBatcher, OutputBudget, Stream

CPUS = os.cpu_count() or 1
# Reading eight agents that print short lines takes two cores; a writer that waits on its pipe takes none.
TOTAL_BYTES = 2**20 * CPUS  # per second, for all flooding agents together
STEADY_BYTES = 2**15  # per second, for each stream: more than that for long is a flood,
BURST_BYTES = 2**19  # but this much may come at once
# A build or a test suite prints some ten megabytes and is done. A few agents that do so at once are read at full
# speed; many of them share a rate that leaves an agent beside them most of two cores.
HONEST_BYTES = 48 * 2**20  # what an agent may print beyond its bursts before it counts as a flood: 17 MB of short lines
FEW = 4
MANY_BYTES = 2 * TOTAL_BYTES  # per second, for all of them together if they are more than a few
LINE_COST_BYTES = 20  # the weight of a line end: each line is a system call of its writer
SIP_BYTES = 2**10  # a smaller chunk is a sip; each becomes an event of some hundred bytes
SIPS = 50  # per second: a stream of tiny chunks is read only when more has accumulated,
BURST_SIPS = 16  # unless it was quiet before
LONGEST = 2.0  # the longest pause in seconds
FRESH = 3.0  # for how many seconds a flood is remembered


class FloodControl:
    """Limits the output of all agents of a run together; a single flooding agent disturbs nobody and is not limited."""

    def __init__(self) -> None:
        self._honest = _Recent()
        self._endless = _Recent()

    def talker(self) -> "OutputRate":
        """Register one agent."""
        return OutputRate(self)

    def rest(self, talker: "OutputRate", missing: float, now: float) -> float:
        """Return how long to pause *talker* after it printed *missing* bytes more than its streams may."""
        if talker.is_honest:
            self._endless.forget(talker)
            together = self._honest.note(talker, now)
            return missing * together / MANY_BYTES if together > FEW else 0.0
        self._honest.forget(talker)
        together = self._endless.note(talker, now) + self._honest.count(now)
        return min(LONGEST, missing * together / TOTAL_BYTES) if together > 1 else 0.0


class OutputRate:
    """The output of one agent, and how much it may print beyond its bursts before it counts as a flood."""

    def __init__(self, flood: FloodControl) -> None:
        self._flood = flood
        self._reserve = float(HONEST_BYTES)

    @property
    def is_honest(self) -> bool:
        """Return whether it has printed no more than legitimate work does."""
        return self._reserve > 0

    def flow(self) -> "OutputFlow":
        """Register one of its streams."""
        return OutputFlow(self)

    def save(self, unused: float) -> None:
        """Take back what a quiet stream did not use."""
        self._reserve = min(HONEST_BYTES, self._reserve + unused)

    def rest(self, missing: float, now: float) -> float:
        """Account for *missing* bytes beyond a burst, and return how long to pause."""
        rest = self._flood.rest(self, missing, now)
        self._reserve = max(0.0, self._reserve - missing)
        return rest


class OutputFlow:
    """One stream, and how much it may print before it has to pause."""

    def __init__(self, talker: OutputRate) -> None:
        self._talker = talker
        self._level = float(BURST_BYTES)
        self._sips = float(BURST_SIPS)
        self._at = time.monotonic()

    def rest(self, chunk: bytes) -> float:
        """Count a chunk, and return for how many seconds to stop reading the stream."""
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
        missing, self._level = -self._level, 0.0  # accounted for by the pause
        return self._talker.rest(missing, self._at)


class _Recent:
    """The agents that flooded recently, the oldest first."""

    def __init__(self) -> None:
        self._seen: dict[OutputRate, float] = {}

    def note(self, talker: OutputRate, now: float) -> int:
        """Note that *talker* floods, and count all that do."""
        self._seen.pop(talker, None)
        self._seen[talker] = now  # last, so that the first is always the oldest
        return self.count(now)

    def forget(self, talker: OutputRate) -> None:
        """Forget *talker*."""
        self._seen.pop(talker, None)

    def count(self, now: float) -> int:
        """Count the agents that flooded recently."""
        while self._seen and next(iter(self._seen.values())) < now - FRESH:
            del self._seen[next(iter(self._seen))]
        return len(self._seen)


LOG_BYTES = 64 * 2**20
EVENT_BYTES = 512  # the size of an event without its text
LINE_BYTES = 256 * 2**10
TAIL_CHARS = 64 * 2**10
ACT_CHARS = 2000


class OutputLog:
    """A sink that turns chunks into `Output` events, up to a limit, and remembers the end of stdout.

    Nothing is stored beyond `LOG_BYTES`; the last event says how much is missing.
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
        """Take a chunk, and return for how many seconds to stop reading.

        Secrets are masked before anything is cut; otherwise half of one could remain.
        """
        self._voice(stream).feed(data)
        self._emit_lines(stream)
        return self.rest(stream, data)

    def rest(self, stream: Stream, data: bytes) -> float:
        """Count a chunk of *stream*, and return for how many seconds to stop reading."""
        return self._voice(stream).flow.rest(data)

    def say(self, text: str) -> None:
        """Take text of the agent as if it had been printed on stdout."""
        self._voice(Stream.STDOUT).feed(f"{text}\n".encode(errors="replace"))
        self._emit_lines(Stream.STDOUT)

    def act(self, activity: Activity) -> None:
        """Take one activity; it is masked before it is cut, otherwise half of a secret could remain."""
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
        """Emit the unfinished last lines, and how much was not stored."""
        for stream, voice in self._voices.items():
            voice.close()
            self._emit_lines(stream)
        if self._dropped:
            self._say(Stream.STDERR, "", self._dropped)

    @property
    def output(self) -> str:
        """The end of stdout."""
        return self._tail(Stream.STDOUT)

    @property
    def errors(self) -> str:
        """The end of stderr."""
        return self._tail(Stream.STDERR)

    @property
    def complaint(self) -> str:
        """The last line of stderr, if any."""
        lines = self.errors.strip().splitlines()
        return lines[-1][:500] if lines else ""

    def _voice(self, stream: Stream) -> "_StreamBuffer":
        """Return the buffer of a stream; most agents use only one."""
        if stream not in self._voices:
            self._voices[stream] = _StreamBuffer(self._mask, self._talker.flow())
        return self._voices[stream]

    def _tail(self, stream: Stream) -> str:
        return self._voices[stream].tail.text if stream in self._voices else ""

    def _emit_lines(self, stream: Stream) -> None:
        """Make one event of all lines of a chunk: an event for each would take minutes for a verbose agent."""
        taken = self._voice(stream).take()
        if taken is None:
            return
        text, missing = taken
        if self._has_room(text):
            self._say(stream, text, missing)
        else:
            self._dropped += len(text.encode(errors="replace")) + 1 + missing

    def _has_room(self, text: str) -> bool:
        """Return whether the log has room for *text*; after the first refusal, it takes nothing more."""
        return not self._dropped and self._budget.admit(len(json.dumps(text)) + EVENT_BYTES)

    def _say(self, stream: Stream, text: str, dropped: int) -> None:
        event = Output(run=self._run, session=self._session, stream=stream.value, text=text, dropped=dropped)
        self._note(event)


class _StreamBuffer:
    """One stream of an agent: masked, split into lines, and not yet emitted."""

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
        """Treat the unfinished last line as a line."""
        self._lines.feed(self._masked.close())
        self._lines.close()

    def take(self) -> tuple[str, int] | None:
        """Return the lines that were not emitted yet, and how many bytes are missing; `None` if there are none."""
        if not self._waiting:
            return None
        taken = "\n".join(self._waiting), self._missing
        self._waiting.clear()
        self._missing = 0
        return taken

    def _emit(self, text: str, dropped: int) -> None:
        self.tail.add(text)
        self._waiting.append(text)
        self._missing += dropped


class _Tail:
    """The last lines of a stream, up to a limit."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._size = 0
        self._is_cut = False

    def add(self, text: str) -> None:
        self._texts.append(f"{text}\n")
        self._size += len(text) + 1
        if self._size > 2 * TAIL_CHARS:  # halved each time, so that each character moves once on average
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
            whole = kept.partition("\n")[2] or kept  # whole lines, unless a single line is too long
        self._texts, self._size = [whole], len(whole)
