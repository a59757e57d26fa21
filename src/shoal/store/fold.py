"""Fold events into the state of runs: a pure function, so that the state can never contradict the log."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shoal.model.claims import ClaimMade, ClaimReleased
from shoal.model.events import (
    CheckpointKept,
    GateAnswered,
    GateOpened,
    OverlapSeen,
    Recorded,
    RequestTaken,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionDiscarded,
    SessionEnded,
    SessionStarted,
    StepEnded,
    StepStarted,
    Waiting,
)
from shoal.model.gate import GateAnswer
from shoal.model.merge import (
    Delivery,
    DeliveryRecorded,
    DeliveryStatus,
    MergeEnded,
    MergeIntended,
    MergeRecorded,
    MergeReport,
    Overlap,
)
from shoal.model.queue import TaskQueued, TaskTaken
from shoal.model.results import RunReport, StepResult, WorkerResult, sum_usage
from shoal.model.status import Status
from shoal.store.claims import ClaimFold
from shoal.store.queue_counts import QueueFold, count_queues
from shoal.store.run_state import GateState, RunState, SessionState, State, StepState


def fold(events: Iterable[Recorded]) -> State:
    """Fold *events* in the order of their numbers; the last one about something counts.

    What a lost event would have set stays empty; nothing raises.
    """
    draft = Fold()
    for recorded in sorted(events, key=lambda event: event.seq):
        draft.take(recorded)
    return draft.state()


def latest(state: State) -> RunState | None:
    """Return the run that started last."""
    return list(state.runs.values())[-1] if state.runs else None


def report(run: RunState, now: float | None = None) -> RunReport:
    """Report how *run* ended, or its progress at *now*; nothing else makes a report, so all commands agree."""
    return RunReport(
        run=run.run,
        status=run.status,
        base=run.base,
        duration_seconds=run.duration_seconds,
        steps=tuple(_step_result(step, now) for step in _order_steps(run)),
        wall=run.wall,
        workspace=run.workspace,
        limits=run.limits,
        notes=run.notes,
        usage=sum_usage(
            session.result.usage for step in run.steps.values() for session in step.sessions.values() if session.result
        ),
        merge=run.merge,
        overlaps=run.overlaps,
        queues=run.queues,
        earlier=tuple(result for step in run.steps.values() for result in _earlier(step)),
        error=run.error,
        exit_code=run.exit_code,
    )


def _order_steps(run: RunState) -> list[StepState]:
    """Order steps as in the plan; those that it does not have, such as judges, come last, in order of their start."""
    places = {name: place for place, name in enumerate(run.stages)}
    return sorted(run.steps.values(), key=lambda step: places.get(step.step, len(places)))


def _last(step: StepState) -> dict[int, SessionState]:
    """Return the last attempt of each worker in the last round."""
    found = [session for session in step.sessions.values() if session.seq > step.seq]
    return {session.index: session for session in sorted(found, key=lambda session: session.seq)}


def _earlier(step: StepState) -> list[WorkerResult]:
    """Return the successful work of earlier rounds: an attempt that succeeded is not repeated."""
    last = {session.session for session in _last(step).values()}
    found = [
        session.result
        for session in sorted(step.sessions.values(), key=lambda session: session.seq)
        if session.session not in last
    ]
    return [result for result in found if result is not None and result.status.is_good and result.commit]


def _step_result(step: StepState, now: float | None) -> StepResult:
    """Report the last round: the last attempt of each worker, in the workers' order."""
    last = _last(step)
    ended = step.ended
    workers = {index: _worker_result(session, now) for index, session in last.items()}
    # A worker that was ended at once has no end event, and so no result in its step's end; it did start.
    open_ = {index for index, session in last.items() if session.status.is_interrupted or not session.status.is_ended}
    workers |= {worker.index: worker for worker in (ended.unstarted if ended else ()) if worker.index not in open_}
    result = StepResult(
        step=step.step,
        on_failure=step.on_failure,
        status=step.status,
        worker_results=tuple(workers[index] for index in sorted(workers)),
    )
    if ended is None:
        return result
    return replace(
        result,
        error=ended.error,
        selected=ended.selected,
        ranking=ended.ranking,
        rounds=ended.rounds,
        notes=ended.notes,
        artifacts=ended.artifacts,
    )


def _worker_result(session: SessionState, now: float | None) -> WorkerResult:
    if session.result is not None:  # work that was recovered after a kill does not know its prompt
        return replace(
            session.result,
            prompt=session.result.prompt or session.prompt,
            agent=session.result.agent or session.agent,
        )
    return WorkerResult(
        index=session.index,
        session=session.session,
        status=session.status,
        purpose=session.purpose,
        attempts=session.attempt,
        duration_seconds=_so_far(session, now),
        workspace=session.workspace,
        prompt=session.prompt,
        node=session.node,
        agent=session.agent,
    )


def _so_far(session: SessionState, now: float | None) -> float:
    """Return how long it has been running; for a lost session, the end is unknown."""
    if now is None or session.status is not Status.RUNNING:
        return 0.0
    return max(0.0, round(now - session.started_at, 3))


class Fold:
    """The state during folding; flat, so that an event costs the same in a ledger of any size."""

    def __init__(self) -> None:
        self._runs: dict[str, RunState] = {}
        self._steps: dict[tuple[str, str], StepState] = {}
        self._sessions: dict[tuple[str, str, str], SessionState] = {}
        self._intents: dict[str, MergeIntended] = {}
        self._overlaps: dict[str, dict[tuple[str, str], Overlap]] = {}
        self._claims: dict[str, ClaimFold] = {}
        self._queues: dict[str, dict[str, QueueFold]] = {}

    def take(self, recorded: Recorded) -> None:
        """Fold one event, whose number must be above those before it."""
        match recorded.event:
            case RunStarted() as event:
                self._run_started(event, recorded.at)
            case RunResumed(run=run, owner=owner, host=host, epoch=epoch):
                known = replace(self._run(run, recorded.at), owner=owner, host=host, epoch=epoch)
                self._runs[run] = replace(known, status=Status.RUNNING, error=None)
            case RunEnded(run=run, status=status, duration_seconds=seconds, error=error, exit_code=code):
                known = self._run(run, recorded.at)
                self._runs[run] = replace(known, status=status, duration_seconds=seconds, error=error, exit_code=code)
            case StepStarted() as event:
                self._step_started(event, recorded)
            case StepEnded(run=run, step=step, status=status) as event:
                self._steps[run, step] = replace(self._step(run, step, recorded.at), status=status, ended=event)
            case SessionStarted() as event:
                self._session_started(event, recorded)
            case SessionEnded() as event:
                self._session_ended(event, recorded)
            case SessionDiscarded(run=run, step=step, session=name) if (run, step, name) in self._sessions:
                self._sessions[run, step, name] = replace(self._sessions[run, step, name], is_discarded=True)
            case CheckpointKept(run=run, step=step, session=name, number=number) if (run, step, name) in self._sessions:
                self._sessions[run, step, name] = replace(self._sessions[run, step, name], checkpoint=number)
            case RequestTaken(kind="pause" | "continue", refusal="") as event:
                self._pause(event, recorded.at)
            case GateOpened() as event:
                self._gate_opened(event, recorded)
            case GateAnswered() as event:
                self._gate_answered(event, recorded)
            case Waiting(run=run, reason=reason):
                self._runs[run] = replace(self._run(run, recorded.at), waits_for=reason)
            case OverlapSeen(run=run, overlap=overlap):
                self._run(run, recorded.at)
                self._overlaps.setdefault(run, {})[overlap.one, overlap.other] = overlap
            case TaskQueued(run=run, queue=name) | TaskTaken(run=run, queue=name) as event:
                self._run(run, recorded.at)
                self._queues.setdefault(run, {}).setdefault(name, QueueFold()).take(event)
            case ClaimMade(run=run) | ClaimReleased(run=run) as event:
                self._run(run, recorded.at)
                self._claims.setdefault(run, ClaimFold()).take(event, recorded.at)
            case MergeIntended(run=run) as event:
                self._intents[run] = event
            case MergeRecorded(run=run, new=new):
                self._note_merge(run, new, recorded.at)
            case MergeEnded(run=run, report=report):
                self._runs[run] = replace(self._run(run, recorded.at), merge=report)
            case DeliveryRecorded() as event:
                self._note_delivery(event, recorded.at)
            case _:  # an agent's activities change no state; neither do unknown events
                pass

    def state(self) -> State:
        """Return the state so far."""
        steps: dict[str, dict[str, StepState]] = {run: {} for run in self._runs}
        sessions: dict[tuple[str, str], dict[str, SessionState]] = {key: {} for key in self._steps}
        for (run, step, name), session in self._sessions.items():
            sessions[run, step][name] = session
        for (run, name), step_state in self._steps.items():
            whole = replace(step_state, sessions=sessions[run, name])
            steps[run][name] = replace(whole, status=_status_of(whole, self._runs[run]))
        return State({name: self._whole(run, steps[name]) for name, run in self._runs.items()})

    def _whole(self, run: RunState, steps: Mapping[str, StepState]) -> RunState:
        whole = replace(run, steps=steps, overlaps=tuple(self._overlaps.get(run.run, {}).values()))
        claims = self._claims.get(run.run, ClaimFold()).list_held() if not run.status.is_ended else ()
        return replace(whole, claims=tuple(claims), queues=tuple(count_queues(self._queues.get(run.run, {}), whole)))

    def _run_started(self, event: RunStarted, at: float) -> None:
        self._runs[event.run] = replace(
            self._run(event.run, at),
            name=event.name,
            base=event.base,
            wall=event.wall,
            workspace=event.workspace,
            limits=event.limits,
            owner=event.owner,
            host=event.host,
            notes=event.notes,
            stages=event.stages,
            status=Status.RUNNING,
        )

    def _pause(self, event: RequestTaken, at: float) -> None:
        known = self._run(event.run, at)
        if not known.status.is_ended:
            status = Status.PAUSED if event.kind == "pause" else Status.RUNNING
            # a second pause does not thaw what the first froze
            is_frozen = event.kind == "pause" and (event.is_frozen or known.is_frozen)
            self._runs[event.run] = replace(known, status=status, is_frozen=is_frozen)

    def _step_started(self, event: StepStarted, recorded: Recorded) -> None:
        step = self._step(event.run, event.step, recorded.at)
        if event.is_again:
            step = replace(step, ended=None, gate=None, seq=recorded.seq)
        step = replace(step, workers=event.workers, on_failure=event.on_failure, status=Status.RUNNING)
        self._steps[event.run, event.step] = step

    def _session_started(self, event: SessionStarted, recorded: Recorded) -> None:
        self._step(event.run, event.step, recorded.at)
        self._sessions[event.run, event.step, event.session] = SessionState(
            session=event.session,
            index=event.index,
            branch=event.branch,
            base=event.base,
            strategy=event.strategy,
            workspace=event.workspace,
            by_host=event.by_host,
            attempt=event.attempt,
            status=Status.RUNNING,
            prompt=event.prompt,
            result=None,
            started_at=recorded.at,
            seq=recorded.seq,
            visit=event.visit,
            conversations=event.conversations,
            agent=event.agent,
            adapter=event.adapter,
            takes_messages=event.takes_messages,
            purpose=event.purpose,
            node=event.node,
        )

    def _session_ended(self, event: SessionEnded, recorded: Recorded) -> None:
        self._step(event.run, event.step, recorded.at)
        key = (event.run, event.step, event.session)
        started = self._sessions.get(key) or _without_start(event, recorded)
        base = event.result.base or started.base  # a client's base without the settings that were set aside
        if (claims := self._claims.get(event.run)) is not None:
            claims.end_session(event.session)
        self._sessions[key] = replace(started, status=event.result.status, result=event.result, base=base)

    def _gate_opened(self, event: GateOpened, recorded: Recorded) -> None:
        gate = GateState(
            message=event.message,
            opened_at=recorded.at,
            seq=recorded.seq,
            timeout=event.timeout,
            on_timeout=event.on_timeout,
        )
        self._steps[event.run, event.step] = replace(self._step(event.run, event.step, recorded.at), gate=gate)

    def _gate_answered(self, event: GateAnswered, recorded: Recorded) -> None:
        step = self._step(event.run, event.step, recorded.at)
        gate = step.gate or GateState(message="", opened_at=recorded.at, seq=recorded.seq)
        answer = GateAnswer(verdict=event.answer, by=event.by, message=event.message)
        self._steps[event.run, event.step] = replace(step, gate=replace(gate, answer=answer))

    def _note_merge(self, run: str, new: str, at: float) -> None:
        """Treat a merge as intended until its last event; its process may have been killed before that."""
        intent = self._intents.get(run)
        if intent is None or intent.new != new:
            return
        report = MergeReport(
            run=run,
            strategy=intent.strategy,
            branch=f"shoal/{run}",
            start=intent.start,
            commit=new or None,
            results=intent.results,
            left_out=intent.out,
        )
        self._runs[run] = replace(self._run(run, at), merge=report)

    def _note_delivery(self, event: DeliveryRecorded, at: float) -> None:
        made = Delivery(
            into=event.into,
            status=DeliveryStatus.DELIVERED,
            old=event.old,
            new=event.new,
            is_undo=event.is_undo,
        )
        run = self._run(event.run, at)
        self._runs[event.run] = replace(run, deliveries={**run.deliveries, event.into: made})

    def _run(self, run: str, at: float) -> RunState:
        return self._runs.setdefault(run, RunState(run=run, started_at=at))

    def _step(self, run: str, step: str, at: float) -> StepState:
        self._run(run, at)
        return self._steps.setdefault((run, step), StepState(step=step))


def _status_of(step: StepState, run: RunState) -> Status:
    if step.status.is_ended:
        return step.status
    if run.status.is_ended:  # what had not ended when its run did was stopped
        return Status.CANCELLED
    return Status.PENDING if step.workers and not step.sessions else step.status


def _without_start(event: SessionEnded, recorded: Recorded) -> SessionState:
    result = event.result
    return SessionState(
        session=event.session,
        index=result.index,
        branch=result.branch or "",
        base="",
        strategy="",
        workspace=result.workspace,
        by_host=False,
        attempt=result.attempts,
        status=result.status,
        prompt=result.prompt,
        result=result,
        started_at=recorded.at,
        seq=recorded.seq,
        purpose=result.purpose,
    )
