"""The writer's thread: it takes what is waiting, commits it, and reports to the event loop."""

import time
from asyncio import Future
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, assert_never

from shoal.errors import BadInput, Blocked, Broken, RunTaken, ShoalError
from shoal.model.events import Recorded
from shoal.store.kind import LASTING, EventLog, EventRow, Store
from shoal.store.write_queue import Append, Appends, Notes, WriteQueue, WriteQueueEntry

MAX_OPEN_LOGS = 64
BLOCKED_SECONDS = 3600.0
CLOSING_SECONDS = 10.0
PAUSE = 0.1
Answer = TypeVar("Answer")


OnBlocked = Callable[[str], None]
"""Called on the writer's thread with the reason why the ledger cannot be written, and with "" when that is over."""


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What the loop's thread does after a transaction: answer waiters, then call listeners."""

    answers: tuple[Callable[[], None], ...]
    recorded: tuple[Recorded, ...]


class Writer:
    """Everything that runs on the writer's thread."""

    def __init__(
        self, store: Store, backlog: WriteQueue, on_outcome: Callable[[WriteOutcome], None], on_blocked: OnBlocked
    ) -> None:
        self._backlog = backlog
        self._on_blocked = on_blocked
        self._on_outcome = on_outcome
        self._ledger = store.ledger()
        self._logs = _SessionLogs(store)
        self._failures: dict[str, Exception] = {}
        self.commits = 0
        """How many transactions the ledger has taken."""

    def work(self) -> None:
        """Write until the queue is closed and empty, then close every log."""
        try:
            while (batch := self._backlog.take()) is not None:
                self._on_outcome(self._write(batch))
        finally:
            self._logs.close_all()
            self._ledger.close()

    def _write(self, batch: Appends | Notes) -> WriteOutcome:
        match batch:
            case Appends(appends):
                return self._append(appends)
            case Notes():
                return self._note(batch)
            case _:
                assert_never(batch)

    def _append(self, appends: Sequence[Append]) -> WriteOutcome:
        entries = [entry for append in appends for entry in append.entries]
        claims = [run for append in appends for run in append.claims]
        checks = [run for append in appends for run in append.checks]
        try:
            recorded = _to_recorded(entries, self._commit([entry.row for entry in entries], claims, checks))
        except RunTaken as error:
            if len(appends) > 1:  # what is of other runs is written
                return _join_outcomes([self._append([append]) for append in appends])
            return WriteOutcome((partial(_refuse, appends[0].waiter, error),), ())
        except Exception as error:
            return WriteOutcome(tuple(partial(_refuse, append.waiter, error) for append in appends), ())
        self.commits += bool(entries)
        return WriteOutcome(tuple(_shares(appends, recorded)), recorded)

    def _commit(self, rows: Sequence[EventRow], claims: Sequence[str], checks: Sequence[str]) -> list[int]:
        """Write to the ledger; what keeps it from being written for now is waited for, and said.

        So no agent's work is lost to a full disk or to a backup. At the end of a run, the wait is short.
        """
        end, is_blocked = time.monotonic() + BLOCKED_SECONDS, False
        while True:
            try:
                numbers = self._ledger.write(rows, claims, checks)
                break
            except Blocked as reason:
                if not is_blocked:
                    self._on_blocked(str(reason))
                is_blocked = True
                if self._backlog.wait_for_close(PAUSE):
                    end = min(end, time.monotonic() + CLOSING_SECONDS)
                if time.monotonic() > end:
                    raise
        if is_blocked:
            self._on_blocked("")
        return numbers

    def _note(self, notes: Notes) -> WriteOutcome:
        recorded: tuple[Recorded, ...] = ()
        try:
            if notes.entries:
                recorded = _to_recorded(notes.entries, self._logs.write(notes))
        except Exception as error:
            self._logs.close(notes.session)
            self._failures.setdefault(notes.session, error)
        # listeners got the ledger's events from there
        heard = tuple(entry for entry in recorded if type(entry.event).__name__ not in LASTING)
        return WriteOutcome(self._mark(notes), heard)

    def _mark(self, notes: Notes) -> tuple[Callable[[], None], ...]:
        if notes.mark is None:
            return ()
        if notes.mark.is_last:
            self._logs.close(notes.session)
        failure = self._failures.pop(notes.session, None)
        if failure is not None:
            return (partial(_refuse, notes.mark.waiter, failure),)
        return (partial(_answer, notes.mark.waiter, None),)


class _SessionLogs:
    """The sessions' logs; the least recently written ones are closed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: OrderedDict[str, EventLog] = OrderedDict()

    def write(self, notes: Notes) -> list[int]:
        if notes.session not in self._open:
            self._open[notes.session] = self._store.session_log(notes.session)
        self._open.move_to_end(notes.session)
        if len(self._open) > MAX_OPEN_LOGS:
            self._open.popitem(last=False)[1].close()
        return self._open[notes.session].write([entry.row for entry in notes.entries])

    def close(self, session: str) -> None:
        if session in self._open:
            self._open.pop(session).close()

    def close_all(self) -> None:
        for session in tuple(self._open):
            self.close(session)


def _to_recorded(entries: Sequence[WriteQueueEntry], numbers: Sequence[int]) -> tuple[Recorded, ...]:
    return tuple(Recorded(number, entry.row.at, entry.event) for entry, number in zip(entries, numbers, strict=True))


def _shares(appends: Sequence[Append], recorded: tuple[Recorded, ...]) -> list[Callable[[], None]]:
    answers: list[Callable[[], None]] = []
    start = 0
    for append in appends:
        end = start + len(append.entries)
        answers.append(partial(_answer, append.waiter, recorded[start:end]))
        start = end
    return answers


def _answer(waiter: Future[Answer], answer: Answer) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _refuse(waiter: Future[Answer], error: Exception) -> None:
    """Fail *waiter* with its own error: one exception raised in many tasks would mix their tracebacks."""
    if not waiter.done():
        raised = _to_shoal_error(error)
        raised.__cause__ = error
        waiter.set_exception(raised)


def _join_outcomes(outcomes: Sequence[WriteOutcome]) -> WriteOutcome:
    answers = tuple(answer for outcome in outcomes for answer in outcome.answers)
    return WriteOutcome(answers, tuple(recorded for outcome in outcomes for recorded in outcome.recorded))


def _to_shoal_error(error: Exception) -> ShoalError:
    if isinstance(error, RunTaken):
        return RunTaken(*error.owner)
    if isinstance(error, BadInput):
        return BadInput(str(error))
    if isinstance(error, Broken):
        return Broken(str(error))
    return Broken(f"the disk did not store the events: {error}; free some space or repair it, then run again")
