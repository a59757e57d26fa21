"""What every kind of store must do; a new kind is added to `STORES`."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import RunTaken
from shoal.model.events import Event, Output, Recorded, SessionEnded, SessionStarted, StepStarted
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.store.kind import EventRow, Store
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.postgres import PostgresStore
from shoal.store.sqlite import SqliteStore
from tests.postgres import Server

Open = Callable[[], Store]
"""Open the same store again, as another process does."""


def sqlite(folder: Path, request: pytest.FixtureRequest) -> Store:
    return SqliteStore(StatePaths.of(folder))


def postgres(folder: Path, request: pytest.FixtureRequest) -> Store:
    server: Server = request.getfixturevalue("server")
    return PostgresStore(server.url, str(folder))


STORES: Sequence[Callable[[Path, pytest.FixtureRequest], Store]] = (sqlite, postgres)


@pytest.fixture(params=STORES)
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    make: Callable[[Path, pytest.FixtureRequest], Store] = request.param
    make(tmp_path, request)  # a server is started before any thread asks for it
    return lambda: make(tmp_path, request)


def step(number: int, run: str = "r") -> StepStarted:
    return StepStarted(run=run, step=f"step-{number}", workers=number, on_failure="fail_fast")


def output(text: str, session: str = "s") -> Output:
    return Output(run="r", session=session, stream="out", text=text)


def started(session: str) -> SessionStarted:
    return SessionStarted(
        run="r", step="x", session=session, index=0, branch="b", base="c", strategy="overlay", workspace="/w"
    )


def ended(session: str) -> SessionEnded:
    result = WorkerResult(index=0, session=session, status=Status.SUCCEEDED)
    return SessionEnded(run="r", step="x", session=session, result=result)


def rows(*events: Event) -> list[EventRow]:
    return [EventRow.of(event, 1.5) for event in events]


def test_an_empty_store_reads_as_nothing(reopen: Open) -> None:
    store = reopen()

    assert list(store.read_events()) == list(store.read_session("s")) == list(store.read_unended("r")) == []
    assert store.list_runs() == []


def test_what_was_written_is_read_in_order_with_its_time_by_another_process(reopen: Open) -> None:
    log = reopen().ledger()

    first, second = log.write(rows(step(1), step(2)))
    (third,) = log.write(rows(step(3, "other")))

    assert first < second < third
    wanted = [Recorded(first, 1.5, step(1)), Recorded(second, 1.5, step(2)), Recorded(third, 1.5, step(3, "other"))]
    assert list(reopen().read_events()) == wanted
    log.close()
    assert list(reopen().read_events()) == wanted


def test_reading_goes_by_run_and_number(reopen: Open) -> None:
    log = reopen().ledger()
    numbers = log.write(rows(*(step(number, f"run-{number % 3}") for number in range(2500))))
    log.close()

    assert [entry.seq for entry in reopen().read_events(after=numbers[-3])] == numbers[-2:]
    assert [entry.seq for entry in reopen().read_events("run-1", after=numbers[2490])] == numbers[2491::3]
    assert len(list(reopen().read_events())) == 2500
    assert reopen().list_runs() == ["run-2", "run-1", "run-0"]


def test_sessions_without_an_end_are_found(reopen: Open) -> None:
    log = reopen().ledger()
    log.write(rows(started("a"), started("b"), ended("a"), started("c")))
    log.close()

    assert [entry.event for entry in reopen().read_unended("r")] == [started("b"), started("c")]
    assert list(reopen().read_unended("another")) == []


@pytest.mark.parametrize(
    ("word", "found"),
    [
        *(("s-1", ["r"]), ("s", ["q", "r"]), ("1", ["r"]), ("x", ["q", "r"]), ("b", ["q", "r"])),
        *((None, ["q"]), ("nothing", []), ("%", []), ("\udcff", []), ("", ["q", "r"])),
    ],
)
def test_the_runs_of_a_session_are_found_by_what_it_is_called(reopen: Open, word: str | None, found: list[str]) -> None:
    assert reopen().find_runs(word) == reopen().list_sessions() == []
    log = reopen().ledger()
    log.write(rows(started("s-1"), replace(started("s-2"), run="q"), step(1, "other")))
    log.close()

    assert sorted(reopen().find_runs(word)) == found
    assert sorted(reopen().list_sessions()) == ["s-1", "s-2"]


def test_the_log_of_a_session_is_its_own_and_goes_on_after_it_was_closed(reopen: Open) -> None:
    store = reopen()
    store.ledger().write([])
    log, other = store.session_log("s"), store.session_log("t")

    log.write(rows(output("a")))
    other.write(rows(output("x", "t")))
    log.close()
    (last,) = log.write(rows(output("b")))
    log.close()

    assert [entry.event for entry in reopen().read_session("s")] == [output("a"), output("b")]
    assert [entry.event for entry in reopen().read_session("t")] == [output("x", "t")]
    assert list(reopen().read_session("s", after=last)) == []
    assert list(reopen().read_session("s", kind="Output")) == list(reopen().read_session("s"))
    assert list(reopen().read_session("s", kind="AgentActed")) == []
    assert list(reopen().read_events()) == []


def test_any_text_survives(reopen: Open) -> None:
    odd = "NUL \0, a lone surrogate \udcff, é, \U0001f41f, a line\nand a quote \"'"
    log = reopen().ledger()
    log.write(rows(output(odd), StepStarted(run="r", step=odd, workers=1, on_failure="any")))
    log.close()

    assert [entry.event for entry in reopen().read_events()] == [
        output(odd),
        StepStarted(run="r", step=odd, workers=1, on_failure="any"),
    ]


def test_kinds_of_a_newer_shoal_are_skipped_and_kept(reopen: Open) -> None:
    log = reopen().ledger()
    log.write([*rows(step(1)), EventRow(1.0, "r", None, "Dreamt", "{}"), *rows(step(2))])
    log.close()

    found = list(reopen().read_events())
    assert [entry.event for entry in found] == [step(1), step(2)]
    assert found[1].seq - found[0].seq == 2


def test_writers_at_once_lose_nothing_and_keep_their_own_order(reopen: Open) -> None:
    def write(run: str) -> None:
        log = reopen().ledger()
        for number in range(50):
            log.write(rows(step(number, run)))
        log.close()

    threads = [threading.Thread(target=write, args=(f"run-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for run in ("run-0", "run-1", "run-2", "run-3"):
        assert [entry.event for entry in reopen().read_events(run)] == [step(number, run) for number in range(50)]
    numbers = [entry.seq for entry in reopen().read_events()]
    assert numbers == sorted(set(numbers))


async def test_a_ledger_acknowledges_publishes_and_notes(reopen: Open) -> None:
    heard: list[Event] = []
    async with open_ledger(reopen()) as ledger:
        ledger.subscribe(lambda recorded: heard.append(recorded.event))
        recorded = await ledger.append(step(1), step(2))
        assert list(reopen().read_events()) == list(recorded)
        ledger.note(output("a"))
        await ledger.forget("s")

    assert heard == [step(1), step(2), output("a")]
    assert [entry.event for entry in reopen().read_session("s")] == [output("a")]


def test_who_takes_a_run_over_keeps_its_former_owner_from_writing_about_it(reopen: Open) -> None:
    former, later = reopen().ledger(), reopen().ledger()
    former.write(rows(step(1)), ["r"])
    later.write([], ["r"])

    with pytest.raises(RunTaken, match=f"r was taken over by process {os.getpid()} on "):
        former.write([*rows(step(2, "other")), *rows(step(2))])
    with pytest.raises(RunTaken):
        former.write([], checks=["r"])
    former.write(rows(step(3, "other")), checks=["other"])
    later.write(rows(step(4)))
    former.close()
    later.close()

    assert [(entry.event.run, entry.event) for entry in reopen().read_events()] == [
        (event.run, event) for event in (step(1), step(3, "other"), step(4))
    ]


async def test_an_owner_that_was_replaced_is_refused_alone(reopen: Open) -> None:
    store = reopen()
    async with open_ledger(store) as former, open_ledger(store) as later:
        await former.claim("r")
        await later.claim("r")

        refused, kept = await asyncio.gather(
            former.append(step(1)), former.append(step(1, "other")), return_exceptions=True
        )

    assert isinstance(refused, RunTaken)
    assert not isinstance(kept, BaseException)
    assert [entry.event.run for entry in store.read_events()] == ["other"]
