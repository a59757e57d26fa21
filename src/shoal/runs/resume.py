"""Resume a run that was stopped, killed or failed: find its recorded plan, and which of its results still count."""

import os
import platform
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal import __version__
from shoal.errors import BadInput
from shoal.git.checkpoints import Checkpoint, list_checkpoints
from shoal.git.commits import is_ancestor
from shoal.git.repository import inspect
from shoal.model.events import GateAnswered, GateOpened, RunPlanned, RunResumed, SessionDiscarded
from shoal.model.gate import GateVerdict
from shoal.model.plan import PipelineGroup, Plan, Stage, walk_stages
from shoal.model.repository import Repository
from shoal.model.status import Status
from shoal.runs.request import Resume, RunRequest, assert_unowned
from shoal.sessions.context import RunContext
from shoal.steps.history import FINISHED, History, read_history
from shoal.store.fold import fold
from shoal.store.ledger import open_ledger
from shoal.store.lock import hold_lock
from shoal.store.lookup import find_run
from shoal.store.paths import StatePaths
from shoal.store.plans import Unrecordable, decode_plan, encode_plan
from shoal.store.reader import read_events, store_at
from shoal.store.requests import ControlRequest, requester
from shoal.store.run_state import RunState, SessionState, StepState

OWN_SECONDS = 1.0


def make_plan_event(context: RunContext, plan: Plan, request: RunRequest) -> RunPlanned:
    """Make the event with *plan*, so that the run can be resumed without its file."""
    options = {"approve_all": "yes"} if request.approve_all else {}
    options |= {"record": "yes"} if request.is_recorded else {}
    options |= {"replay": request.replay} if request.replay else {}
    try:
        text, why = encode_plan(plan, context.mask.text), ""
    except Unrecordable as error:
        text, why = "", str(error)
    return RunPlanned(run=context.run, plan=text, unrecorded=why, options=options, version=__version__)


async def record_resumed(context: RunContext, resume: Resume) -> History:
    """Record that this process continues the run, and return its history."""
    before = [
        recorded.event.epoch
        for recorded in read_events(context.paths, context.run)
        if isinstance(recorded.event, RunResumed)
    ]
    epoch = max(before, default=0) + 1
    if resume.epoch is not None and epoch != resume.epoch + 1:
        raise BadInput(f"{context.run} was resumed by another process meanwhile; `shoal status` shows it")
    resumed = RunResumed(run=context.run, owner=os.getpid(), host=platform.node(), epoch=epoch)
    await context.ledger.append(resumed, *resume.discard)
    events = read_events(context.paths, context.run)
    # In a replay nobody interrupts an agent, so a recording has to be of agents that nobody interrupted.
    is_fresh = resume.is_fresh or context.recording is not None
    history = read_history(events, is_fresh=is_fresh, compares=resume.compares)
    if context.recording is not None:
        _drop_unfinished(Path(context.recording.folder), history)
    return history


def _drop_unfinished(folder: Path, history: History) -> None:
    """Remove the recordings of attempts that start again."""
    from shoal.gateway.recording import recording_file  # which only recorded runs need

    finished = {recording_file(folder, key.text) for key in history.results}
    for file in folder.iterdir():
        if file not in finished:
            file.unlink()


async def answer_interrupted(paths: StatePaths, request: ControlRequest) -> None:
    """Record the answer to a gate of a run that nobody owns; it counts when the run is resumed."""
    lock = paths.run_lock(request.run)
    is_killed = lock.exists()  # and not yet recovered: its lock has to stay
    async with hold_lock(lock, timeout=OWN_SECONDS) as held, open_ledger(store_at(paths)) as ledger:
        await ledger.claim(request.run)
        opened, answered = None, False
        for recorded in read_events(paths, request.run):
            match recorded.event:
                case GateOpened() as event if recorded.seq == request.about:
                    opened = event
                case GateAnswered(step=request.step) if opened is not None:
                    answered = True
        if opened is None or answered:
            raise BadInput(f"{request.step} of {request.run} was answered meanwhile")
        answer = GateAnswered(
            run=request.run,
            step=request.step,
            visit=opened.visit,
            answer=GateVerdict(request.answer),
            by=requester(request),
            message=request.message,
            request=request.id,
        )
        await ledger.append(answer)
        if not is_killed:
            held.remove()


async def resume_program(request: RunRequest, paths: StatePaths, word: str, rewind: Mapping[str, int]) -> RunRequest:
    """Make the request to resume the run *word* from its base: its program was started again.

    Sessions in *rewind* start again from the checkpoints with these numbers.
    """
    run = find_run(fold(read_events(paths)), word)
    assert_unowned(paths, run.run)
    discard: list[SessionDiscarded] = []
    if rewind:
        repository = await inspect(request.folder, request.environ)
        for name, number in rewind.items():
            discard += await discard_after(repository, run, name, number)
    resume = Resume(compares=True, epoch=run.epoch, discard=tuple(discard))
    return replace(request, run=run.run, is_reopened=True, resume=resume, base=run.base)


@dataclass(frozen=True, slots=True)
class ResumableRun:
    """A run that can be resumed: its plan, and the request that continues it."""

    plan: Plan
    request: RunRequest


def find_resumable(
    paths: StatePaths, run: RunState, environ: Mapping[str, str], folder: Path, changed: Plan | None = None
) -> ResumableRun:
    """Read how *run* is to be continued, by its recorded plan or by *changed*; raise `BadInput` where it cannot be."""
    assert_unowned(paths, run.run)
    planned = store_at(paths).read_plan(run.run)
    options = {} if planned is None else planned.options
    if (replayed := options.get("replay")) is not None:
        raise BadInput(f"{run.run} is a replay, which is started again instead: `shoal replay {replayed}`")
    if changed is None and (planned is None or not planned.plan):
        why = "an older Shoal started it" if planned is None else planned.unrecorded
        raise BadInput(f"{run.run} has no recorded plan ({why}); give its file with `--with FILE`")
    recorded = decode_plan(planned.plan, environ) if planned is not None and planned.plan else None
    plan = changed or recorded
    if plan is None:
        raise BadInput(f"{run.run} has no recorded plan; give its file with `--with FILE`")
    if changed is not None and recorded is not None:
        _assert_same_finished(run, recorded, changed)
    request = RunRequest(
        folder=folder,
        environ=environ,
        name=plan.name,
        run=run.run,
        is_reopened=True,
        resume=Resume(epoch=run.epoch),
        base=run.base,
        strategy=run.workspace or plan.isolation_strategy,
        sandbox=run.wall or plan.sandbox,
        cleanup=plan.cleanup_on_complete,
        keep_database=plan.keep_database,
        database=plan.database,
        store=plan.store,
        checkpoint_seconds=plan.checkpoint_seconds,
        fleet=plan.fleet_limits,
        approve_all=options.get("approve_all") == "yes",
        is_recorded=options.get("record") == "yes",
    )
    return ResumableRun(plan, request)


def _assert_same_finished(run: RunState, recorded: Plan, changed: Plan) -> None:
    """Refuse a changed plan whose finished steps differ from the recorded ones."""
    before = {stage.name: stage for stage in walk_stages(recorded.steps)}
    after = {stage.name: stage for stage in walk_stages(changed.steps)}
    for name, step in run.steps.items():
        is_finished = any(session.status in FINISHED for session in step.sessions.values())
        if is_finished and name in before and before[name] != after.get(name):
            what = "is gone from" if name not in after else "differs in"
            raise BadInput(
                f"step {name!r} has finished work of {run.run}, and {what} the new file;"
                f" change it back, or do it again with `shoal retry {run.run} --from {name}`"
            )


def discard_failed(run: RunState, plan: Plan, word: str | None = None) -> tuple[SessionDiscarded, ...]:
    """Discard the failed sessions of *run*, or those of the step or session *word*, and what was built on them."""
    failed = [
        (step.step, session)
        for step in run.steps.values()
        for session in _list_failed(step)
        if word is None or word in (step.step, session.session)
    ]
    if not failed:
        raise BadInput(_nothing_failed(run, word))
    steps = {step for step, _ in failed}
    later = dependants(plan.steps, steps) - steps
    names = [(step, session.session) for step, session in failed]
    names += [(step, session) for step, session in _sessions_of(run, later)]
    return tuple(SessionDiscarded(run=run.run, step=step, session=session) for step, session in names)


def discard_from(run: RunState, plan: Plan, step: str) -> tuple[SessionDiscarded, ...]:
    """Discard all sessions of *step* and of the steps that depend on it."""
    known = {stage.name for stage in walk_stages(plan.steps)}
    if step not in known:
        raise BadInput(f"{run.run} has no step {step!r}; its steps: {', '.join(sorted(known))}")
    found = _sessions_of(run, {step} | dependants(plan.steps, {step}))
    return tuple(SessionDiscarded(run=run.run, step=name, session=session) for name, session in found)


async def discard_after(
    repository: Repository, run: RunState, name: str, number: int, plan: Plan | None = None
) -> tuple[SessionDiscarded, ...]:
    """Discard session *name*, to start again from its checkpoint *number*, and everything based on its work.

    Without a *plan*, as for a program, that is what started from its commit.
    """
    step, session = _find_session(run, name)
    checkpoint = await find_checkpoint(repository, name, number)
    if plan is not None:
        seqs = {name: other.seq for at in run.steps.values() for name, other in at.sessions.items()}
        found = _sessions_of(run, dependants(plan.steps, {step.step}) - {step.step})
        later = [(at, other) for at, other in found if seqs[other] > session.seq]
    else:
        later = [entry async for entry in _list_built_on(repository, run, session)]
    same = [(step.step, other.session) for other in step.sessions.values() if _comes_after(other, session)]
    discarded = [SessionDiscarded(run=run.run, step=at, session=other) for at, other in (*same, *later)]
    chosen = SessionDiscarded(
        run=run.run, step=step.step, session=name, checkpoint=number, commit=checkpoint.commit
    )  # the last one: attempts that continued its work have its key
    return (*discarded, chosen)


async def find_checkpoint(repository: Repository, session: str, number: int) -> Checkpoint:
    """Find a checkpoint of *session* by number; raise `BadInput` that lists the existing ones."""
    known = await list_checkpoints(repository, session)
    for checkpoint in known:
        if checkpoint.number == number:
            return checkpoint
    if not known:
        raise BadInput(
            f"{session} has no checkpoints: they are kept every 5 minutes unless `runtime.checkpoints` says otherwise, "
            "until `shoal clean`"
        )
    numbers = ", ".join(str(checkpoint.number) for checkpoint in known)
    raise BadInput(f"{session} has no checkpoint {number}; it has {numbers} (`shoal rewind {session} --list`)")


def _find_session(run: RunState, name: str) -> tuple[StepState, SessionState]:
    for step in run.steps.values():
        if name in step.sessions:
            return step, step.sessions[name]
    raise BadInput(f"{run.run} has no session {name!r}; `shoal status {run.run}` lists them")


def _comes_after(other: SessionState, session: SessionState) -> bool:
    """Return whether *other* is a later attempt of the same worker, or in a later round of the same step."""
    is_later = (other.visit, other.attempt, other.seq) > (session.visit, session.attempt, session.seq)
    return is_later and (other.index == session.index or other.visit > session.visit)


async def _list_built_on(
    repository: Repository, run: RunState, session: SessionState
) -> AsyncIterator[tuple[str, str]]:
    commit = session.result.commit if session.result is not None else None
    for step in run.steps.values():
        for other in step.sessions.values():
            if commit is not None and other.base != session.base and await is_ancestor(repository, commit, other.base):
                yield step.step, other.session


def dependants(stages: Sequence[Stage], names: set[str]) -> set[str]:
    """List the stages that depend on any of *names*, with everything inside them, at every level."""
    found: set[str] = set()
    for stage in stages:
        inner = {item.name for item in walk_stages([stage])}
        if isinstance(stage, PipelineGroup):
            found |= dependants(stage.stages, names)
        if set(stage.needs) & (names | found) or (inner & (names | found) and stage.loop is not None):
            found |= inner
        elif inner & names:
            found |= {stage.name}
    return found if found <= names else found | dependants(stages, names | found)


def _sessions_of(run: RunState, steps: set[str]) -> Iterator[tuple[str, str]]:
    for step in run.steps.values():
        if step.step in steps:
            yield from ((step.step, session) for session in step.sessions)


def _list_failed(step: StepState) -> list[SessionState]:
    """List the sessions of workers whose last attempt failed, with the attempts before it."""
    counted = [session for session in step.sessions.values() if not session.is_discarded]
    last = {session.index: session for session in sorted(counted, key=lambda session: session.seq)}
    failed = {(session.index, session.visit) for session in last.values() if _is_failed(session)}
    return [session for session in counted if _is_failed(session) and (session.index, session.visit) in failed]


def _is_failed(session: SessionState) -> bool:
    is_stopped = session.result is not None and session.result.stopped_by is not None
    return is_stopped or (session.status in FINISHED and not session.status.is_good)


def _nothing_failed(run: RunState, word: str | None) -> str:
    if word is None:
        return f"no session of {run.run} has failed; `shoal resume {run.run}` continues what was interrupted"
    return f"{word!r} names no failed step or session of {run.run}; `shoal retry {run.run} --from STEP` reruns any step"


def is_complete(run: RunState) -> bool:
    """Return whether there is nothing to resume: the run ended, and nothing was cancelled."""
    stopped = (Status.CANCELLED, Status.LOST, Status.INTERRUPTED)
    open_statuses = (*stopped, Status.RUNNING, Status.PENDING, Status.PAUSED)
    open_steps = [
        step for step in run.steps.values() if step.status in open_statuses or (step.ended and step.ended.is_stopped)
    ]
    return run.status.is_ended and run.status not in open_statuses and not open_steps


def with_discarded(
    resumable: ResumableRun, discard: tuple[SessionDiscarded, ...], *, is_fresh: bool = False
) -> ResumableRun:
    """Return *resumable* without the sessions in *discard*."""
    resume = replace(resumable.request.resume or Resume(), is_fresh=is_fresh, discard=discard)
    return replace(resumable, request=replace(resumable.request, resume=resume))
