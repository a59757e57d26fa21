"""The one thread that writes: it takes what waits, commits it, and tells the loop."""

import contextlib
from asyncio import Future
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, assert_never

from shoal.errors import BadInput, Broken, ShoalError
from shoal.model.events import Recorded
from shoal.store.backlog import Append, Appends, Backlog, BacklogEntry, Notes
from shoal.store.database import Database, EventRow, Mould
from shoal.store.paths import StatePaths

_KEPT_OPEN = 64
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What the loop's thread has to do after a transaction: answer waiters, then tell listeners."""

    answers: tuple[Callable[[], None], ...]
    recorded: tuple[Recorded, ...]


class Writer:
    """Everything that happens on the writer's thread."""

    def __init__(self, paths: StatePaths, backlog: Backlog, tell: Callable[[WriteOutcome], None]) -> None:
        self._backlog = backlog
        self._tell = tell
        self._ledger = Database(paths.ledger, synchronous="FULL", lock=paths.locks / "ledger.lock")
        self._shelf = _Shelf(paths)
        self._failures: dict[str, Exception] = {}
        self.commits = 0
        """How many transactions the ledger has taken."""

    def work(self) -> None:
        """Write until the backlog is closed and empty, then leave every database at rest."""
        try:
            while (worker := self._backlog.take()) is not None:
                self._tell(self._run_job(worker))
        finally:
            self._shelf.rest_all()
            with contextlib.suppress(ShoalError):  # closed all the same, and nothing is lost
                self._ledger.rest()

    def _run_job(self, worker: Appends | Notes) -> WriteOutcome:
        match worker:
            case Appends(appends):
                return self._append(appends)
            case Notes():
                return self._note(worker)
            case _:
                assert_never(worker)

    def _append(self, appends: Sequence[Append]) -> WriteOutcome:
        entries = [entry for append in appends for entry in append.entries]
        try:
            recorded = _to_recorded(entries, self._ledger.write([entry.row for entry in entries]))
        except Exception as error:
            return WriteOutcome(tuple(partial(_refuse, append.waiter, error) for append in appends), ())
        self.commits += bool(entries)
        return WriteOutcome(tuple(_shares(appends, recorded)), recorded)

    def _note(self, notes: Notes) -> WriteOutcome:
        recorded: tuple[Recorded, ...] = ()
        try:
            if notes.entries:
                recorded = _to_recorded(notes.entries, self._shelf.write(notes))
        except Exception as error:
            self._shelf.drop(notes.session)
            self._failures.setdefault(notes.session, error)
        return WriteOutcome(self._mark(notes), recorded)

    def _mark(self, notes: Notes) -> tuple[Callable[[], None], ...]:
        if notes.mark is None:
            return ()
        if notes.mark.is_last:
            try:
                self._shelf.rest(notes.session)
            except Exception as error:  # raised here, it would end the thread, and all who wait would wait for ever
                self._failures.setdefault(notes.session, error)
        failure = self._failures.pop(notes.session, None)
        if failure is not None:
            return (partial(_refuse, notes.mark.waiter, failure),)
        return (partial(_answer, notes.mark.waiter, None),)


class _Shelf:
    """The sessions' databases, of which the least recently written are closed."""

    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._open: OrderedDict[str, Database] = OrderedDict()
        self._mould: Mould | None = None

    def write(self, notes: Notes) -> list[int]:
        """Write notes; a session's first, and its last, need no open database if they come alone."""
        rows = [entry.row for entry in notes.entries]
        return self._write_at_rest(notes, rows) or self._database(notes.session).write(rows)

    def _write_at_rest(self, notes: Notes, rows: list[EventRow]) -> list[int] | None:
        is_flushed = notes.mark is not None and not notes.mark.is_last  # who waits for them has more to say
        if notes.session in self._open or is_flushed:
            return None
        database = self._make(notes.session)
        self._mould = self._mould or Mould()  # made on the writer's own thread
        return database.write_whole(rows, self._mould) or (database.write_last(rows) if notes.mark else None)

    def _database(self, session: str) -> Database:
        if session not in self._open:
            self._open[session] = self._make(session)
        self._open.move_to_end(session)
        if len(self._open) > _KEPT_OPEN:
            self._rest_one(last=False)
        return self._open[session]

    def drop(self, session: str) -> None:
        if session in self._open:
            self._open.pop(session).close()

    def rest(self, session: str) -> None:
        if session in self._open or self._is_restless(session):
            database = self._open.pop(session, None) or self._make(session)
            database.open()
            database.rest()

    def _is_restless(self, session: str) -> bool:
        """Say whether a database that is not open here still has a log beside it."""
        path = self._paths.session_db(session)
        return path.exists() and path.with_name(f"{path.name}-wal").exists()

    def rest_all(self) -> None:
        while self._open:
            self._rest_one(last=True)
        if self._mould is not None:
            self._mould.close()

    def _rest_one(self, *, last: bool) -> None:
        with contextlib.suppress(ShoalError):  # closed all the same, and nothing is lost
            self._open.popitem(last=last)[1].rest()

    def _make(self, session: str) -> Database:
        return Database(self._paths.session_db(session), synchronous="NORMAL", lock=self._paths.locks / "sessions.lock")


def _to_recorded(entries: Sequence[BacklogEntry], numbers: Sequence[int]) -> tuple[Recorded, ...]:
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
    """Fail *waiter* with an error of its own: one exception raised in many tasks would mix their tracebacks."""
    if not waiter.done():
        told = _to_shoal_error(error)
        told.__cause__ = error
        waiter.set_exception(told)


def _to_shoal_error(error: Exception) -> ShoalError:
    if isinstance(error, BadInput):
        return BadInput(str(error))
    if isinstance(error, Broken):
        return Broken(str(error))
    return Broken(f"the disk did not keep what was to be recorded: {error}; make room or mend it, then run again")
