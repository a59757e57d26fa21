"""A step without an agent: a person is asked, and the run waits there for the answer."""

import asyncio
import contextlib
from collections.abc import Iterator

from shoal.engine.site import Site
from shoal.model.events import GateAnswered, GateOpened, RequestIgnored
from shoal.model.gate import Answer, Gate, Verdict
from shoal.store.door import Fits, RequestDoor, answers
from shoal.store.requests import Request, user_name

MOST_SIGNS = 4000
MOST_OF_NAME = 100


@contextlib.contextmanager
def door_of(site: Site) -> Iterator[RequestDoor]:
    """Take requests of other processes for as long as the run lives; what is none is named in its log."""

    def tell(name: str, why: str) -> None:
        site.ledger.post(RequestIgnored(run=site.run, file=name[:MOST_SIGNS], why=why))

    with contextlib.closing(RequestDoor(site.paths, site.run, tell)) as door:
        yield door


async def passed(gate: Gate, door: RequestDoor, site: Site, step: str, *, approve_all: bool = False) -> Answer:
    """Ask a person and wait for the answer, which is recorded before anybody acts on it.

    The gate's message is shown as it is: its places are filled in. Cancelled, it leaves the gate without an answer.
    """
    asked = GateOpened(
        run=site.run, step=step, message=_shown(site, gate), timeout=gate.timeout, on_timeout=gate.on_timeout
    )
    if approve_all:
        answer = Answer(verdict=Verdict.APPROVE, by=user_name(), message="--yes")
        await site.ledger.append(asked, _answered(site, step, answer))
        return answer
    door.open()  # who reads of the gate may answer at once
    (opened,) = await site.ledger.append(asked)
    fits = answers(step, opened.seq)
    request = await _request(gate, door, fits)
    answer = _answer(gate, site, request)
    await site.ledger.append(_answered(site, step, answer, request))
    door.settle(fits)
    return answer


async def _request(gate: Gate, door: RequestDoor, fits: Fits) -> Request | None:
    try:
        async with asyncio.timeout(gate.timeout):
            return await door.first(fits)
    except TimeoutError:
        return door.now(fits)


def _answer(gate: Gate, site: Site, request: Request | None) -> Answer:
    if request is None:
        return Answer(verdict=gate.on_timeout)
    by = request.by.strip()[:MOST_OF_NAME] or "somebody"
    return Answer(verdict=Verdict(request.answer), by=by, message=site.mask.text(request.message))


def _answered(site: Site, step: str, answer: Answer, request: Request | None = None) -> GateAnswered:
    return GateAnswered(
        run=site.run,
        step=step,
        answer=answer.verdict,
        by=answer.by,
        message=answer.message,
        request=request.id if request else "",
    )


def _shown(site: Site, gate: Gate) -> str:
    """Give the message without secrets; masked before it is cut, or half of a secret could pass."""
    message = site.mask.text(gate.message)
    return message if len(message) <= MOST_SIGNS else f"{message[: MOST_SIGNS - 1]}…"
