"""`shoal approve`: approve or reject a gate of a waiting run."""

import asyncio
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.control import wait_for_event
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.render.approve import how_to_answer, one_line, quote_message
from shoal.cli.repository import find_place
from shoal.errors import BadInput
from shoal.model.events import GateAnswered, RunEnded, StepEnded
from shoal.model.gate import GateAnswer, GateVerdict
from shoal.model.status import Status
from shoal.runs.resume import answer_interrupted
from shoal.store.documents import text
from shoal.store.fold import latest
from shoal.store.lock import is_locked
from shoal.store.lookup import find_run
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.store.requests import ControlRequest, post, user_name, withdraw
from shoal.store.run_state import GateState, RunState, State, StepState

TAKEN_SECONDS = 3.0
_GateEnd = GateAnswered | StepEnded | RunEnded
SHOWN = 5
SHORT = 60

Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="A waiting run: its name, pipeline, or a unique prefix or suffix; default: the latest."
    ),
]
Step = Annotated[str | None, typer.Argument(metavar="STEP", help="The gate; needed only if several are waiting.")]
Reject = Annotated[bool, typer.Option("--reject", help="Reject: the step fails and its dependants are skipped.")]
Message = Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="A comment for the record.")]


def command(
    run: Run = None,
    step: Step = None,
    reject: Reject = False,
    message: Message = "",
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """Approve or --reject a gate that a run is waiting at.

    `shoal status` shows what is asked. Anyone who can write to the repository's `.shoal` can answer.
    """
    place = asyncio.run(find_place(repo))
    question = _question(_with_open_gates(place.state(), place.paths, run), run, step)
    verdict = GateVerdict.REJECT if reject else GateVerdict.APPROVE
    request = ControlRequest(
        kind="answer",
        run=question.run,
        step=question.step,
        about=question.gate.seq,
        answer=verdict.value,
        message=message,
        by=user_name(),
    )
    if is_locked(place.paths.run_lock(question.run)):
        post(place.paths, request)
        is_taken = _is_taken(place.paths, request)
    else:  # nobody owns the run: the answer is recorded, and counts when the run is resumed
        asyncio.run(answer_interrupted(place.paths, request))
        is_taken = True
    output.print_out(
        text(_document(request, question, is_taken)) if json else _describe_answer(verdict, question, is_taken)
    )
    return 0


def _with_open_gates(state: State, paths: StatePaths, word: str | None) -> State:
    """Let interrupted runs wait at their open gates: the latest run, or the one that is named; live runs come first."""
    if word is None and any(run.waiting for run in state.runs.values()):
        return state
    newest = latest(state)
    return State(
        {
            name: _reopen_gates(run) if _is_open_to_answers(run, paths) and (word or run is newest) else run
            for name, run in state.runs.items()
        }
    )


def _is_open_to_answers(run: RunState, paths: StatePaths) -> bool:
    return run.status in (Status.INTERRUPTED, Status.CANCELLED) and not is_locked(paths.run_lock(run.run))


def _reopen_gates(run: RunState) -> RunState:
    steps = {
        name: replace(step, status=Status.RUNNING)
        for name, step in run.steps.items()
        if step.gate and not step.gate.answer
    }
    return replace(run, status=Status.RUNNING, steps={**run.steps, **steps}) if steps else run


@dataclass(frozen=True, slots=True)
class _Question:
    """A waiting gate, and its run and step."""

    run: str
    step: str
    gate: GateState


def _question(state: State, run: str | None, step: str | None) -> _Question:
    """Find the gate to answer, or raise an error that lists the gates that can be answered."""
    waiting = State({name: candidate for name, candidate in state.runs.items() if candidate.waiting})
    if run is not None and step is None and not _fits(waiting, run):
        run, step = _step_alone(waiting, run) or (run, None)
    if run is None and not waiting.runs:
        raise BadInput(f"no run is waiting for an answer{_describe_latest(state)}")
    owner = find_run(waiting if run is None or _fits(waiting, run) else state, run)
    if step is not None:
        return _find_question(owner, _step(owner, step, waiting), waiting)
    if not owner.waiting:
        raise _refusal(_why_not(owner), waiting)
    if len(owner.waiting) > 1:
        raise BadInput(
            f"{len(owner.waiting)} gates are waiting in {owner.run}; name one: {_list_waiting(State({'': owner}))}"
        )
    return _find_question(owner, owner.waiting[0], waiting)


def _fits(waiting: State, word: str) -> bool:
    """Return whether *word* names at least one waiting run."""
    runs = waiting.runs.values()
    return any(run.name == word or run.run.startswith(word) or run.run.endswith(f"-{word}") for run in runs)


def _step_alone(waiting: State, word: str) -> tuple[str, str] | None:
    """Find the latest run that is waiting at a gate named *word*."""
    runs = [run.run for run in waiting.runs.values() if any(step.step == word for step in run.waiting)]
    return (runs[-1], word) if runs else None


def _step(owner: RunState, word: str, waiting: State) -> StepState:
    if word in owner.steps:
        return owner.steps[word]
    begun = [candidate for candidate in owner.waiting if word and candidate.step.startswith(word)]
    if len(begun) != 1:
        raise _refusal(f"no step named {word!r} is waiting in {owner.run}", waiting)
    return begun[0]


def _find_question(owner: RunState, step: StepState, waiting: State) -> _Question:
    gate = step.gate
    if gate is None:
        raise _refusal(f"{step.step} of {owner.run} has not asked anything", waiting)
    if gate.answer is not None:
        raise _refusal(f"{step.step} of {owner.run} was already {one_line(gate.answer.summary)}", waiting)
    if step not in owner.waiting:
        raise _refusal(_why_not(owner), waiting)
    return _Question(owner.run, step.step, gate)


def _why_not(owner: RunState) -> str:
    if not owner.status.is_ended:
        return f"{owner.run} is not waiting for an answer"
    return f"{owner.run} has ended ({owner.status.value}) and is not waiting for an answer"


def _describe_latest(state: State) -> str:
    """Say what happened to the latest run, if it had a gate."""
    last = latest(state)
    if last is None or not any(step.gate is not None for step in last.steps.values()):
        return ""
    return f": {_why_not(last)}"


def _refusal(why: str, waiting: State) -> BadInput:
    there = f"waiting: {_list_waiting(waiting)}" if waiting.runs else "nothing else is waiting"
    return BadInput(f"{why}; {there}")


def _list_waiting(waiting: State) -> str:
    hints = [
        f"`{how_to_answer(run.run, step.step)}` {quote_message(one_line(step.gate.message, SHORT))}"
        for run in waiting.runs.values()
        for step in run.waiting
        if step.gate is not None
    ]
    more = f" and {len(hints) - SHOWN} earlier" if len(hints) > SHOWN else ""
    return ", ".join(hints[: -SHOWN - 1 : -1]) + more


def _is_taken(paths: StatePaths, request: ControlRequest) -> bool:
    """Wait until the run has recorded the answer; raise if it ended or took another answer."""
    missed = "it read your answer; run it again"
    recorded = wait_for_event(paths, request, lambda: _outcome(paths, request), seconds=TAKEN_SECONDS, missed=missed)
    return recorded is not None and _assert_ours(recorded, paths, request)


def _outcome(paths: StatePaths, request: ControlRequest) -> _GateEnd | None:
    for recorded in read_events(paths, request.run, request.about):
        match recorded.event:
            case RunEnded() as event:
                return event
            case (GateAnswered(step=request.step) | StepEnded(step=request.step)) as event:
                return event
    return None


def _assert_ours(recorded: _GateEnd, paths: StatePaths, request: ControlRequest) -> bool:
    if isinstance(recorded, GateAnswered) and recorded.request == request.id:
        return True
    withdraw(paths, request)
    if isinstance(recorded, GateAnswered):
        earlier = GateAnswer(verdict=recorded.answer, by=recorded.by, message=recorded.message).summary
        raise BadInput(f"{request.step} of {request.run} was {one_line(earlier)} before your answer arrived")
    raise BadInput(f"{request.step} of {request.run} ended ({recorded.status.value}) before it read your answer")


def _describe_answer(verdict: GateVerdict, question: _Question, is_taken: bool) -> str:
    asked = f"{one_line(question.step)} of {one_line(question.run)}: {quote_message(question.gate.message)}"
    return f"{verdict.done} {asked}" if is_taken else f"sent {verdict.value} to {asked}; the run has not read it yet"


def _document(request: ControlRequest, question: _Question, is_taken: bool) -> dict[str, object]:
    return {
        "run": request.run,
        "step": request.step,
        "gate": question.gate.message,
        "answer": request.answer,
        "message": request.message,
        "by": request.by,
        "taken": is_taken,
    }
