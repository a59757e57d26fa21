"""A gate waits for a person, records the answer before anything acts on it, and neither loses nor repeats one."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.model.events import Event, GateAnswered, GateOpened, Recorded, RequestIgnored
from shoal.model.gate import Gate, GateAnswer, GateVerdict
from shoal.model.masking import Mask
from shoal.model.status import Status
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.sessions.context import RunContext
from shoal.steps.gate import MOST_CHARS, ask_person, open_request_door
from shoal.store.fold import fold
from shoal.store.reader import read_events
from shoal.store.requests import ControlRequest, post, read_posted, user_name
from shoal.store.run_state import StepState

ASK = Gate(message="Ship it?")


@contextlib.asynccontextmanager
async def opened(repo: Path) -> AsyncIterator[RunContext]:
    """Hold the site of a real run."""
    request = RunRequest(folder=repo, environ=os.environ, sandbox="none", strategy="worktree")
    async with open_run(request) as opened_run:
        yield opened_run.context


def heard(context: RunContext, kind: type[Event], act: Callable[[Recorded], object]) -> None:
    """Act as soon as an event of that kind is recorded."""

    def listen(recorded: Recorded) -> None:
        if isinstance(recorded.event, kind):
            act(recorded)

    context.ledger.subscribe(listen)


def answer(
    context: RunContext, about: int, verdict: str = "approve", message: str = "", by: str = "ada"
) -> ControlRequest:
    return ControlRequest(
        kind="answer", run=context.run, step="ship", about=about, answer=verdict, message=message, by=by
    )


def step_of(context: RunContext) -> StepState:
    return fold(read_events(context.paths, context.run)).runs[context.run].steps["ship"]


@pytest.mark.parametrize(
    ("verdict", "status", "error"),
    [("approve", Status.SUCCEEDED, None), ("reject", Status.FAILED, "rejected by ada: because")],
)
async def test_the_answer_of_a_person_is_recorded_and_handed_on(
    repo: Path, verdict: str, status: Status, error: str | None
) -> None:
    waited: list[StepState] = []
    async with opened(repo) as context, asyncio.timeout(20):
        heard(context, GateOpened, lambda one: waited.append(step_of(context)))
        heard(context, GateOpened, lambda one: post(context.paths, answer(context, one.seq, verdict, "because")))
        with open_request_door(context) as door:
            said = await ask_person(ASK, door, context, "ship")
        step = step_of(context)

        assert said == GateAnswer(verdict=GateVerdict(verdict), by="ada", message="because")
        assert (said.status, said.error) == (status, error)
        assert waited[0].is_waiting
        assert (step.is_waiting, step.gate and step.gate.message) == (False, "Ship it?")
        assert step.gate is not None
        assert step.gate.answer == said
        assert list(context.paths.requests.iterdir()) == []


async def test_an_answer_stays_in_its_file_until_it_is_recorded_and_the_first_one_counts(repo: Path) -> None:
    left: list[int] = []
    async with opened(repo) as context, asyncio.timeout(20):

        def both(one: Recorded) -> None:
            post(context.paths, answer(context, one.seq - 1, "reject", "to another question"))
            post(context.paths, answer(context, one.seq, "reject", "first"))
            post(context.paths, answer(context, one.seq, "approve", "second"))

        heard(context, GateOpened, both)
        heard(context, GateAnswered, lambda _: left.append(len(read_posted(context.paths, context.run).requests)))
        with open_request_door(context) as door:
            said = await ask_person(ASK, door, context, "ship")
            after = read_posted(context.paths, context.run).requests

    assert said.message == "first"
    assert left == [3], "all were there when it was recorded"
    assert [one.message for one in after] == ["to another question"]


@pytest.mark.parametrize(
    ("verdict", "status", "error"),
    [(GateVerdict.REJECT, Status.TIMED_OUT, "rejected because the gate timed out"), (GateVerdict.APPROVE, Status.SUCCEEDED, None)],
)  # fmt: skip
async def test_without_an_answer_in_time_the_gate_says_itself_what_it_is(
    repo: Path, verdict: GateVerdict, status: Status, error: str | None
) -> None:
    async with opened(repo) as context, asyncio.timeout(20):
        with open_request_door(context) as door:
            said = await ask_person(replace(ASK, timeout=0.01, on_timeout=verdict), door, context, "ship")

        assert (said.verdict, said.by, said.status, said.error) == (verdict, "", status, error)
        assert step_of(context).gate is not None
        assert not step_of(context).is_waiting


async def test_an_answer_of_the_last_moment_counts(repo: Path) -> None:
    async with opened(repo) as context, asyncio.timeout(20):
        waiting = asyncio.get_running_loop().call_later

        def late(one: Recorded) -> None:
            waiting(0.05, lambda: post(context.paths, answer(context, one.seq)))

        heard(context, GateOpened, late)
        with open_request_door(context) as door:
            said = await ask_person(replace(ASK, timeout=0.12), door, context, "ship")

    assert said.by == "ada", "it came after the last look, and before the time was over"


async def test_all_gates_can_be_approved_beforehand(repo: Path) -> None:
    async with opened(repo) as context:
        with open_request_door(context) as door:
            said = await ask_person(ASK, door, context, "ship", approve_all=True)
        kinds = [type(one.event) for one in read_events(context.paths, context.run)]

        assert said == GateAnswer(verdict=GateVerdict.APPROVE, by=user_name(), message="--yes")
        assert kinds == [GateOpened, GateAnswered]
        assert list(context.paths.requests.iterdir()) == [], "nobody had to be waited for"


async def test_a_cancelled_gate_has_no_answer_and_leaves_nothing(repo: Path) -> None:
    async with opened(repo) as context, asyncio.timeout(20):
        with open_request_door(context) as door:
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(ask_person(ASK, door, context, "ship"))
                heard(context, GateOpened, lambda _: waiting.cancel())

        assert waiting.cancelled()
        assert step_of(context).gate is not None
        assert [type(one.event) for one in read_events(context.paths, context.run)] == [GateOpened]
        assert list(context.paths.requests.iterdir()) == []


async def test_secrets_are_masked_before_a_long_message_is_cut(repo: Path) -> None:
    secret = "not-a-real-key-but-long-enough"
    async with opened(repo) as ground:
        context = replace(ground, mask=Mask.of({"KEY": secret}))
        with open_request_door(context) as door:
            await ask_person(Gate(message="x" * (MOST_CHARS - 9) + secret), door, context, "ship", approve_all=True)
        gate = step_of(context).gate

    assert gate is not None
    assert len(gate.message) <= MOST_CHARS
    assert secret[:5] not in gate.message


async def test_what_is_no_request_is_named_in_the_log(repo: Path) -> None:
    async with opened(repo) as context, asyncio.timeout(20):

        def disturb(one: Recorded) -> None:
            (context.paths.requests_of(context.run) / "x\x1b.txt").write_text("approve")
            post(context.paths, answer(context, one.seq))

        heard(context, GateOpened, disturb)
        with open_request_door(context) as door:
            await ask_person(ASK, door, context, "ship")
        ignored = [
            one.event for one in read_events(context.paths, context.run) if isinstance(one.event, RequestIgnored)
        ]

    assert ignored == [RequestIgnored(run=context.run, file="x\x1b.txt", why="its name is not one of ours")]
