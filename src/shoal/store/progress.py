"""What every agent of a run is doing now, computed from the events of the run and its sessions."""

import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.model.activity import Act
from shoal.model.events import (
    AgentActed,
    AgentEnded,
    AgentStarted,
    ClientHeard,
    GateAnswered,
    GateOpened,
    Output,
    OverlapSeen,
    Recorded,
    ResourcesSampled,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionEnded,
    SessionStarted,
    StepEnded,
    StepStarted,
    Waiting,
)
from shoal.model.gateway import ModelAnswered
from shoal.model.merge import MergeEnded, MergeIntended
from shoal.model.queue import TaskQueued, TaskTaken
from shoal.model.resources import ResourceSample
from shoal.model.results import WorkerResult, sum_usage
from shoal.model.status import Status
from shoal.store.following import is_owned
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, read_session
from shoal.store.run_state import GateState

TEXT_CHARS = 500
TAIL_CHARS = 4000
TAIL_EVENTS = 100
MAX_CALLS = 100
MAX_EDITED = 1000
SETTLED_SECONDS = 1.0
SETUP_STREAM = "setup"
RATE_LIMIT = re.compile(r"\b(?:429|529)\b|rate.?limit|overloaded", re.IGNORECASE)
SHELL_TOOL = re.compile(r"bash|shell|exec|command|terminal|background", re.IGNORECASE)
EDIT_TOOL = re.compile(r"edit|write|replace|patch|create|insert", re.IGNORECASE)


class Phase(StrEnum):
    """What a session is doing."""

    SETUP = "set-up"
    RUNNING = "running"
    RATE_LIMIT = "rate limit"
    RETRYING = "retrying"
    SEALING = "sealing"
    VERIFYING = "verifying"
    ENDED = "ended"


SessionEvent = AgentStarted | AgentEnded | Output | AgentActed | ClientHeard | ModelAnswered | ResourcesSampled
WAITING = (Phase.RATE_LIMIT, Phase.RETRYING)


@dataclass(slots=True, kw_only=True)
class AgentProgress:
    """The progress of one session."""

    step: str
    session: str
    index: int
    attempt: int
    task: str
    started_at: float
    phase: Phase = Phase.SETUP
    waits_until: float = 0.0
    action: str = ""
    """Its last activity in its own words: untrusted text, which may contain line ends."""
    has_failed: bool = False
    """Whether its last activity failed."""
    usage: dict[str, float] = field(default_factory=dict)
    edited: set[str] = field(default_factory=set)
    """The files that it reports as edited."""
    sample: ResourceSample | None = None
    """The last sample of what it uses of the machine."""
    result: WorkerResult | None = None
    ended_at: float = 0.0
    overlaps: bool = False
    conflicts: bool = False
    tail: deque[Output | AgentActed] = field(default_factory=lambda: deque(maxlen=TAIL_EVENTS))
    """The end of its output and activities."""
    _wire_usage: dict[str, float] = field(default_factory=dict)
    """What the gateway counted."""
    _calls: dict[str, tuple[str, str]] = field(default_factory=dict)
    _is_client: bool = False

    @property
    def is_ended(self) -> bool:
        """Return whether it has ended."""
        return self.result is not None

    @property
    def state(self) -> str:
        """Return what it is doing, or how it ended."""
        return self.phase.value if self.result is None else self.result.status_text

    def seconds(self, now: float) -> float:
        """Return how long it has been running, or ran."""
        if self.result is not None and self.result.duration_seconds:
            return self.result.duration_seconds
        return max(0.0, (self.ended_at or now) - self.started_at)

    def take(self, event: SessionEvent, at: float) -> None:
        """Take one event of its log, which may arrive after its end."""
        match event:
            case AgentStarted():
                self._enter(Phase.RUNNING if self.phase is Phase.SETUP else Phase.VERIFYING)
            case AgentEnded():
                self._enter(Phase.SEALING)
            case ClientHeard(usage=usage) if self.phase is not Phase.VERIFYING:
                self.usage = {**(usage or self.usage), **self._wire_usage}
            case ModelAnswered(usage=usage) if self.phase is not Phase.VERIFYING:
                # What the gateway counts goes before what the client says, which is often less, and late.
                self._wire_usage = sum_usage((self._wire_usage, usage))
                self.usage = {**self.usage, **self._wire_usage}
            case ResourcesSampled(sample=sample):
                self.sample = sample
            case Output():
                self._hear(event)
            case AgentActed():
                self._note(event, at)

    def _enter(self, phase: Phase) -> None:
        if self.result is None:
            self.phase = phase

    def _hear(self, output: Output) -> None:
        self.tail.append(output)
        if self.phase in WAITING and output.stream != SETUP_STREAM:
            self._enter(Phase.RUNNING)
        if output.stream == "stderr" and (self._is_client or (self.phase is Phase.RUNNING and self.action)):
            return  # a client's warnings; it reports its activities elsewhere
        lines = output.text[-TEXT_CHARS:].rstrip().rsplit("\n", 1)
        if lines[-1].strip():
            self.action, self.has_failed = lines[-1], False

    def _note(self, event: AgentActed, at: float) -> None:
        self.tail.append(event)
        self._is_client = True
        if event.act is Act.RETRY:
            self._enter(Phase.RATE_LIMIT if RATE_LIMIT.search(event.text) else Phase.RETRYING)
            self.waits_until = at + event.seconds
        elif self.phase in WAITING:
            self._enter(Phase.RUNNING)
        if (action := self._describe(event)) is not None:
            self.action, self.has_failed = action[:TEXT_CHARS], not event.ok

    def _describe(self, event: AgentActed) -> str | None:
        """Describe an event in a few words; `None` if the activity before it says more."""
        match event.act:
            case Act.TOOL:
                return self._call(event)
            case Act.RESULT:
                action, _ = self._calls.pop(event.call, (event.tool or event.text, ""))
                return action if not event.ok else None
            case Act.DENIED:
                return f"denied: {event.tool} {event.text}"
            case Act.RETRY:
                return event.text
            case Act.TROUBLE:
                return f"error: {event.text}"
            case _:
                return None

    def _call(self, event: AgentActed) -> str:
        is_shell = SHELL_TOOL.search(event.tool) is not None
        action = f"{event.tool}{':' if is_shell and event.text else ''} {event.text}".strip()
        if not is_shell and EDIT_TOOL.search(event.tool) and len(self.edited) < MAX_EDITED:
            self.edited.add(event.text[:TEXT_CHARS])
        if event.call and len(self._calls) < MAX_CALLS:
            self._calls[event.call] = action[:TEXT_CHARS], event.tool
        return action


@dataclass(slots=True)
class StepProgress:
    """How many agents a step has, and which of them have started."""

    workers: int = 0
    begun: set[int] = field(default_factory=set)
    is_ended: bool = False


class RunProgress:
    """The progress of a run; events may come more than once, and those of a session after its end."""

    def __init__(self) -> None:
        self.run = ""
        self.name = ""
        self.started_at = 0.0
        self.stages: tuple[str, ...] = ()
        self.steps: dict[str, StepProgress] = {}
        self.waiting = ""
        self.gates: dict[str, GateState] = {}
        self.is_merging = False
        self.status = Status.RUNNING
        self.most_at_once = 0
        self._workers: dict[tuple[str, int], AgentProgress] = {}
        self._sessions: dict[str, AgentProgress] = {}
        self._durations: list[float] = []
        self._tasks: set[tuple[str, int]] = set()
        self._taken: set[tuple[str, int]] = set()
        """The tasks of queues, and those that a step took."""

    @property
    def agents(self) -> list[AgentProgress]:
        """Return the last session of each worker, in order of their first start."""
        return list(self._workers.values())

    @property
    def usage(self) -> dict[str, float]:
        """Add up the usage of all sessions, including earlier attempts."""
        return sum_usage(agent.usage for agent in self._sessions.values())

    def find(self, session: str | None) -> AgentProgress | None:
        """Find a session by name."""
        return None if session is None else self._sessions.get(session)

    def count_queued(self) -> int:
        """Count the agents of running steps that have not started."""
        waiting = sum(max(0, step.workers - len(step.begun)) for step in self.steps.values() if not step.is_ended)
        return waiting + len(self._tasks - self._taken)

    def later_stages(self) -> list[str]:
        """List the stages that have not started."""
        return [name for name in self.stages if name not in self.steps and name not in self.gates]

    def next_name(self) -> str | None:
        """Return what starts next."""
        for name, step in self.steps.items():
            if not step.is_ended and len(step.begun) < step.workers:
                return name if step.workers == 1 else f"{name} {len(step.begun) + 1} of {step.workers}"
        later = self.later_stages()
        return later[0] if later else None

    def seconds_left(self, now: float) -> float | None:
        """Estimate how long the known agents will take, from those that have ended; `None` before that."""
        running = [agent.seconds(now) for agent in self._workers.values() if not agent.is_ended]
        queued = self.count_queued()
        if not self._durations or not (running or queued):
            return None
        usual = sum(self._durations) / len(self._durations)
        left = sum(max(0.0, usual - seconds) for seconds in running) + queued * usual
        return left / max(1, min(self.most_at_once, len(running) + queued))

    def take(self, recorded: Recorded) -> None:
        """Take one event of the run, or of the log of one of its sessions."""
        match recorded.event:
            case (
                AgentStarted()
                | AgentEnded()
                | Output()
                | AgentActed()
                | ClientHeard()
                | ModelAnswered()
                | ResourcesSampled()
            ) as event:
                if (agent := self._sessions.get(event.session)) is not None:
                    agent.take(event, recorded.at)
            case SessionStarted() as event:
                self._session_started(event, recorded.at)
            case SessionEnded(session=session, result=result) if session in self._sessions:
                self._session_ended(self._sessions[session], result, recorded.at)
            case StepStarted(step=step, workers=workers):
                self.steps[step] = StepProgress(workers)
            case StepEnded(step=step):
                self.steps.setdefault(step, StepProgress()).is_ended = True
                self.gates.pop(step, None)
            case TaskQueued(queue=queue, number=number):
                self._tasks.add((queue, number))
            case TaskTaken(queue=queue, number=number):
                self._taken.add((queue, number))
            case OverlapSeen(overlap=overlap):
                for name in (overlap.one, overlap.other):
                    if (agent := self._sessions.get(name)) is not None:
                        agent.overlaps = True
                        agent.conflicts = agent.conflicts or bool(overlap.conflicts)
            case _:
                self._take_of_run(recorded)

    def _take_of_run(self, recorded: Recorded) -> None:
        match recorded.event:
            case RunStarted(run=run, name=name, stages=stages):
                self.run, self.name, self.stages, self.started_at = run, name, stages, recorded.at
            case RunResumed(run=run):
                self.run, self.status, self.started_at = run, Status.RUNNING, recorded.at
            case RunEnded(status=status):
                self.status, self.is_merging = status, False
                self.gates.clear()
            case Waiting(reason=reason):
                self.waiting = reason
            case GateOpened(step=step, message=message, timeout=timeout, on_timeout=on_timeout):
                self.gates[step] = GateState(
                    message=message,
                    opened_at=recorded.at,
                    seq=recorded.seq,
                    timeout=timeout,
                    on_timeout=on_timeout,
                )
            case GateAnswered(step=step):
                self.gates.pop(step, None)
                self.steps.setdefault(step, StepProgress())
            case MergeIntended():
                self.is_merging = True
            case MergeEnded():
                self.is_merging = False

    def _session_started(self, event: SessionStarted, at: float) -> None:
        agent = AgentProgress(
            step=event.step,
            session=event.session,
            index=event.index,
            attempt=event.attempt,
            task=event.prompt,
            started_at=at,
        )
        self._sessions[event.session] = self._workers[event.step, event.index] = agent
        self.steps.setdefault(event.step, StepProgress()).begun.add(event.index)
        self.most_at_once = max(self.most_at_once, sum(not agent.is_ended for agent in self._workers.values()))

    def _session_ended(self, agent: AgentProgress, result: WorkerResult, at: float) -> None:
        agent.result, agent.ended_at, agent.phase = result, at, Phase.ENDED
        agent.usage = dict(result.usage) or agent.usage
        if result.status.is_good:
            self._durations.append(agent.seconds(at))


class RunTail:
    """Reads the new events of a run, from its ledger and its sessions' logs, whichever process runs it."""

    def __init__(self, paths: StatePaths, run: str, *, has_ended_logs: bool = False) -> None:
        self._paths = paths
        self._run = run
        self._has_ended_logs = has_ended_logs
        self._seen = 0
        self._logs: dict[str, int] = {}
        self._stamps: dict[str, tuple[int, ...]] = {}
        self.is_over = False

    def read(self) -> Iterator[Recorded]:
        """Yield the new events: the run's, those of each open session, and the run's end last."""
        # Checked first: a run records its last event before it releases its lock.
        is_alive = is_owned(self._paths, self._run)
        events = list(read_events(self._paths, self._run, self._seen))
        ended = {recorded.event.session for recorded in events if isinstance(recorded.event, SessionEnded)}
        for recorded in events:
            self._seen = max(self._seen, recorded.seq)
            if isinstance(event := recorded.event, SessionStarted) and (
                self._has_ended_logs or event.session not in ended
            ):
                self._logs[event.session] = 0
            if not isinstance(event, RunEnded):
                yield recorded
        for session in tuple(self._logs):
            if session in ended or self._has_changed(session):
                yield from self._read_log(session)
            if session in ended:
                del self._logs[session]
        yield from (recorded for recorded in events if isinstance(recorded.event, RunEnded))
        self.is_over = not is_alive

    def _has_changed(self, session: str) -> bool:
        """Say whether the log of a session may have grown since it was asked last: to open hundreds of them is slow."""
        try:
            status = self._paths.session_db(session).stat()
        except OSError:
            return True
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        # The clock of a file system ticks slowly: two writes can have the same time.
        is_settled = abs(time.time() - status.st_mtime) > SETTLED_SECONDS
        is_known, self._stamps[session] = self._stamps.get(session) == stamp and is_settled, stamp
        return not is_known

    def _read_log(self, session: str) -> Iterator[Recorded]:
        for recorded in read_session(self._paths, session, self._logs[session]):
            self._logs[session] = recorded.seq
            yield recorded
