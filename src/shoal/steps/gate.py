"""Gates: ask a person, and wait for the answer."""

import asyncio
import contextlib
from collections.abc import Iterator

from shoal.model.events import GateAnswered, GateOpened, RequestIgnored
from shoal.model.gate import Gate, GateAnswer, GateVerdict
from shoal.sessions.context import RunContext
from shoal.store.requests import ControlRequest, Fits, RequestDoor, answers, is_control, requester, user_name

MOST_CHARS = 4000


@contextlib.contextmanager
def open_request_door(context: RunContext) -> Iterator[RequestDoor]:
    """Accept requests of other processes while the run lives; invalid ones are noted in its log."""

    def report(name: str, why: str) -> None:
        context.ledger.post(RequestIgnored(run=context.run, file=name[:MOST_CHARS], why=why))

    with contextlib.closing(RequestDoor(context.paths, context.run, report)) as door:
        door.open()
        if door.now(is_control) is not None:  # sent to the process that owned this run before
            door.settle(is_control)
        yield door


async def ask_person(
    gate: Gate,
    door: RequestDoor,
    context: RunContext,
    step: str,
    *,
    approve_all: bool = False,
    visit: int = 1,
    question: int | None = None,
) -> GateAnswer:
    """Ask a person and wait for the answer, which is recorded before anything acts on it.

    The gate's message has its placeholders filled in. If this is cancelled, the gate stays without an answer.
    *question* is the number of the event that asked before the run was resumed: an answer to it still counts.
    """
    asked = GateOpened(
        run=context.run,
        step=step,
        message=_mask_message(context, gate),
        timeout=gate.timeout,
        on_timeout=gate.on_timeout,
        visit=visit,
    )
    if approve_all:
        answer = GateAnswer(verdict=GateVerdict.APPROVE, by=user_name(), message="--yes")
        await context.ledger.append(asked, _answer_event(context, asked, answer))
        return answer
    door.open()  # a person who reads of the gate may answer at once
    if question is None:
        (opened,) = await context.ledger.append(asked)
        question = opened.seq
    fits = answers(step, question)
    request = await _request(gate, door, fits)
    answer = _answer(gate, context, request)
    await context.ledger.append(_answer_event(context, asked, answer, request))
    door.settle(fits)
    return answer


async def _request(gate: Gate, door: RequestDoor, fits: Fits) -> ControlRequest | None:
    try:
        async with asyncio.timeout(gate.timeout):
            return await door.first(fits)
    except TimeoutError:
        return door.now(fits)


def _answer(gate: Gate, context: RunContext, request: ControlRequest | None) -> GateAnswer:
    if request is None:
        return GateAnswer(verdict=gate.on_timeout)
    by = requester(request)
    return GateAnswer(verdict=GateVerdict(request.answer), by=by, message=context.mask.text(request.message))


def _answer_event(
    context: RunContext, asked: GateOpened, answer: GateAnswer, request: ControlRequest | None = None
) -> GateAnswered:
    return GateAnswered(
        run=context.run,
        step=asked.step,
        visit=asked.visit,
        answer=answer.verdict,
        by=answer.by,
        message=answer.message,
        request=request.id if request else "",
    )


def _mask_message(context: RunContext, gate: Gate) -> str:
    """Return the message without secrets; masked before it is cut, or half of a secret could remain."""
    message = context.mask.text(gate.message)
    return message if len(message) <= MOST_CHARS else f"{message[: MOST_CHARS - 1]}…"
