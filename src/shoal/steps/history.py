"""The recorded results of a run before it stopped: a resumed run uses them instead of starting agents again.

A resumed run goes through its plan from the start, as the first run did. Every step, worker, attempt and gate with a
recorded end is answered from here, so that only the rest runs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.model.events import (
    GateAnswered,
    GateOpened,
    Recorded,
    SessionDiscarded,
    SessionEnded,
    SessionStarted,
    StepEnded,
)
from shoal.model.gate import GateAnswer
from shoal.model.queue import QueueEvent, TaskQueued, TaskTaken
from shoal.model.results import Usage, WorkerResult, sum_usage
from shoal.model.status import Rule, Status
from shoal.sessions.worker import name_attempt

FINISHED = (Status.SUCCEEDED, Status.NO_CHANGES, Status.FAILED, Status.TIMED_OUT, Status.OVER_LIMIT)
"""How a session ends by itself; any other end is an interruption, after which it starts again."""
ENDED_ALONE = (Status.SUCCEEDED, Status.DEGRADED, Status.FAILED)


@dataclass(frozen=True, slots=True)
class Visit:
    """One visit of a step: a step inside a loop is visited once in each round."""

    step: str
    number: int = 1


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """One attempt of one worker."""

    visit: Visit
    index: int
    attempt: int

    @property
    def text(self) -> str:
        """Name it as `WorkerSpec.key` does."""
        return name_attempt(self.visit.step, self.index, self.visit.number, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """The work of an interrupted attempt, for a new session to continue."""

    session: str
    commit: str | None = None
    """Its files; `None` if it had changed nothing."""
    origin: str | None = None
    """The commit that the work is measured from."""
    client_session: str | None = None
    usage: Usage = field(default_factory=dict)
    """The usage of that conversation."""
    checkpoint: int = 0
    """The checkpoint that a person chose to start from; 0 for what the session left at its end."""


@dataclass(slots=True)
class History:
    """What was recorded of a run; empty at the start of every new run."""

    results: dict[AttemptKey, WorkerResult] = field(default_factory=dict)
    salvaged: dict[AttemptKey, Salvage] = field(default_factory=dict)
    steps: dict[Visit, Mapping[int, WorkerResult]] = field(default_factory=dict)
    """The results of all workers of steps that ended by themselves, by index."""
    answers: dict[Visit, GateAnswer] = field(default_factory=dict)
    questions: dict[Visit, int] = field(default_factory=dict)
    """The numbers of the events that opened gates without an answer."""
    queued: list[QueueEvent] = field(default_factory=list)
    """What happened to the queues of tasks."""
    usage: tuple[Mapping[str, float], ...] = ()
    """The usage of every session so far, including discarded ones."""
    contents: dict[AttemptKey, str] = field(default_factory=dict)
    """Digests of the prompts of each attempt."""
    compares: bool = False
    """Whether a result counts only for the same prompt: unlike a plan, a program may have changed since."""
    is_fresh: bool = False
    """Whether interrupted sessions start from their base, not from the files that they left."""
    _entered: Counter[str] = field(default_factory=Counter)

    def enter(self, step: str) -> Visit:
        """Count another visit of *step*."""
        self._entered[step] += 1
        return Visit(step, self._entered[step])

    def result(self, key: AttemptKey, content: str = "") -> WorkerResult | None:
        """Return the result of an attempt at *content* that ended by itself."""
        return self.results.get(key) if self._is_same(key, content) else None

    def salvage(self, key: AttemptKey, content: str = "") -> Salvage | None:
        """Return the work that an interrupted attempt at *content* left, if a new one is to continue it."""
        return self.salvaged.get(key) if self._is_same(key, content) and not self.is_fresh else None

    def _is_same(self, key: AttemptKey, content: str) -> bool:
        return not self.compares or self.contents.get(key) == content

    def final(self, visit: Visit, index: int, max_attempts: int) -> WorkerResult | None:
        """Return the result of a worker that has nothing left to do: it succeeded, or used all its attempts."""
        result = None
        for number in range(1, max_attempts + 1):
            result = self.results.get(AttemptKey(visit, index, number))
            if result is None or result.status.is_good or result.stopped_by is not None:
                break
        return result


def read_history(events: Iterable[Recorded], *, is_fresh: bool = False, compares: bool = False) -> History:
    """Read the history of a run from its *events*, in order."""
    reading = _Reading(History(is_fresh=is_fresh, compares=compares))
    for recorded in sorted(events, key=lambda recorded: recorded.seq):
        reading.take(recorded)
    return reading.history


def is_decided(rule: Rule, known: Sequence[WorkerResult | None]) -> bool:
    """Return whether the workers that have ended decide their step by *rule*, so that no other has to start."""
    ended = [result for result in known if result is not None]
    good = sum(result.status.is_good for result in ended)
    match rule.pattern:
        case "gather":
            return len(ended) == len(known) or good < len(ended)
        case "race" | "quorum":
            return len(ended) == len(known) or good >= rule.count_required(len(known))
        case _:
            return len(ended) == len(known)


class _Reading:
    def __init__(self, history: History) -> None:
        self.history = history
        self._keys: dict[str, AttemptKey] = {}
        self._origins: dict[str, str] = {}
        self._contents: dict[str, str] = {}
        self._last: defaultdict[Visit, dict[int, WorkerResult]] = defaultdict(dict)

    def take(self, recorded: Recorded) -> None:
        match recorded.event:
            case SessionStarted() as started:
                key = AttemptKey(Visit(started.step, started.visit), started.index, started.attempt)
                self._keys[started.session] = key
                self._origins[started.session] = started.origin or started.base
                self.history.contents[key] = self._contents[started.session] = started.content
            case SessionEnded(session=session, result=result) if session in self._keys:
                self._session_ended(self._keys[session], result)
            case SessionDiscarded(session=session) as discarded if session in self._keys:
                self._discard(self._keys[session])
                if discarded.commit:
                    self._rewind(discarded)
            case StepEnded() as ended:
                self._step_ended(ended)
            case GateOpened(step=step, visit=visit):
                self.history.questions[Visit(step, visit)] = recorded.seq
            case GateAnswered() as answered:
                gate = Visit(answered.step, answered.visit)
                answer = GateAnswer(verdict=answered.answer, by=answered.by, message=answered.message)
                self.history.answers[gate] = answer
                self.history.questions.pop(gate, None)
            case TaskQueued() | TaskTaken() as queued:
                self.history.queued.append(queued)
            case _:
                pass

    def _session_ended(self, key: AttemptKey, result: WorkerResult) -> None:
        history = self.history
        history.usage = (*history.usage, result.usage) if result.usage else history.usage
        self._last[key.visit][key.index] = result
        if result.status in FINISHED or result.stopped_by is not None:
            history.results[key] = result
            history.salvaged.pop(key, None)
        else:
            history.salvaged[key] = self._salvage(history.salvaged.get(key), result)

    def _salvage(self, before: Salvage | None, result: WorkerResult) -> Salvage:
        """Add what another interrupted session left to what was left *before*."""
        known = before or Salvage(session=result.session)
        known = replace(
            known,
            session=result.session,
            client_session=result.client_session or known.client_session,
            usage=sum_usage((known.usage, result.usage)),
        )
        if result.commit is None or result.branch is None:
            return known
        return replace(known, commit=result.commit, origin=self._origins[result.session])

    def _rewind(self, discarded: SessionDiscarded) -> None:
        """Let the next session of this attempt start from a checkpoint, in a new conversation."""
        session, commit = discarded.session, discarded.commit
        key = self._keys[session]
        self.history.contents[key] = self._contents[session]
        self.history.salvaged[key] = Salvage(
            session=session, commit=commit, origin=self._origins[session], checkpoint=discarded.checkpoint
        )

    def _discard(self, key: AttemptKey) -> None:
        self.history.results.pop(key, None)
        self.history.salvaged.pop(key, None)
        self.history.contents.pop(key, None)
        self.history.steps.pop(key.visit, None)
        self._last[key.visit].pop(key.index, None)

    def _step_ended(self, ended: StepEnded) -> None:
        visit = Visit(ended.step, ended.visit)
        if ended.status in ENDED_ALONE and not ended.is_stopped:
            unstarted = {result.index: result for result in ended.unstarted}
            self.history.steps[visit] = {**unstarted, **self._last[visit]}
