"""What each session did and used at which time, computed from its log."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from shoal.model.activity import Act
from shoal.model.events import AgentActed, AgentEnded, AgentStarted, Recorded
from shoal.store.reader import SampleAt

MAX_TICKS = 300
MARKS = {Act.TOOL: "call", Act.DENIED: "bad", Act.TROUBLE: "bad", Act.RETRY: "wait"}
Point = tuple[float, float]
"""A time and a value."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which a session was in one state."""

    start: float
    end: float
    kind: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Something that a session did, in words of its own; a tool call *took* some seconds."""

    at: float
    kind: str
    text: str
    took: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One session on the timeline; of very many ticks the latest."""

    session: str
    spans: tuple[Span, ...]
    ticks: tuple[Tick, ...]

    @property
    def end(self) -> float:
        """Say when it ended."""
        return max((span.end for span in self.spans), default=0.0)


@dataclass(slots=True)
class LaneDraft:
    """A lane that grows with the log of its session."""

    _phases: list[tuple[float, str]] = field(default_factory=list)
    """When each state ended, and which it was."""
    _kind: str = "setup"
    _waits: list[Span] = field(default_factory=list)
    _ticks: deque[Tick] = field(default_factory=lambda: deque(maxlen=MAX_TICKS))
    _calls: dict[str, Tick] = field(default_factory=dict)
    """The tool calls that have not ended, by the client's name for them."""

    def take(self, recorded: Recorded) -> None:
        """Add one event of the log."""
        match recorded.event:
            case AgentStarted() | AgentEnded() as event:
                self._phases.append((recorded.at, self._kind))
                self._kind = _next_kind(event, self._kind)
            case AgentActed() as event:
                self._act(recorded.at, event)

    def _act(self, at: float, event: AgentActed) -> None:
        if event.act is Act.RETRY:
            self._waits.append(Span(at, at + event.seconds, "wait"))
        if event.act is Act.RESULT:
            self._end_call(at, event)
        elif (kind := MARKS.get(event.act)) is not None:
            tick = Tick(at, kind, f"{event.tool}: {event.text}" if event.tool else event.text)
            self._ticks.append(tick)
            if event.act is Act.TOOL and event.call and len(self._calls) < MAX_TICKS:
                self._calls[event.call] = tick

    def _end_call(self, at: float, event: AgentActed) -> None:
        """Give the call its length, and show a failed one as that."""
        call = self._calls.pop(event.call, None)
        if call is not None and call in self._ticks:
            self._ticks[self._ticks.index(call)] = replace(call, took=max(0.0, at - call.at))
        if not event.ok:
            self._ticks.append(Tick(at, "bad", f"{event.tool}: {event.text}" if event.tool else event.text))

    def lane(self, session: str, *, queued: float, start: float, end: float) -> Lane:
        """Make the lane up to *end*; *queued* is when its step started."""
        spans, since = [Span(queued, start, "queue")], start
        for at, kind in (*self._phases, (max(end, since), self._kind)):
            spans.append(Span(since, max(at, since), kind))
            since = max(at, since)
        waits = (replace(wait, end=min(wait.end, max(end, wait.start))) for wait in self._waits)
        return Lane(session=session, spans=(*spans, *waits), ticks=tuple(self._ticks))


def read_lane(session: str, events: Iterable[Recorded], *, queued: float, start: float, end: float) -> Lane:
    """Make the lane of a session out of its whole log."""
    draft = LaneDraft()
    for recorded in events:
        draft.take(recorded)
    return draft.lane(session, queued=queued, start=start, end=end)


def _next_kind(event: AgentStarted | AgentEnded, kind: str) -> str:
    if isinstance(event, AgentEnded):
        return "seal"
    return "run" if kind == "setup" else "check"


def memory_points(samples: Sequence[SampleAt]) -> list[Point]:
    """Give the memory in MB over time."""
    return [(taken.at, taken.sample.memory_mb) for taken in samples if taken.sample.memory_mb is not None]


def cpu_points(samples: Sequence[SampleAt]) -> list[Point]:
    """Give how much of a core was used over time, in percent, between each two samples."""
    spent = [(taken.at, taken.sample.cpu_seconds) for taken in samples if taken.sample.cpu_seconds is not None]
    return [
        (later, max(0.0, 100 * (after - before) / (later - at)))
        for (at, before), (later, after) in pairwise(spent)
        if later > at
    ]


def disk_points(samples: Sequence[SampleAt]) -> list[Point]:
    """Give the disk use in MB over time."""
    return [(taken.at, taken.sample.disk_mb) for taken in samples if taken.sample.disk_mb is not None]
