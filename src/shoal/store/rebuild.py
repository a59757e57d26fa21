"""Rebuild a ledger that was lost or damaged, from what can still be read of it and from the sessions' own logs."""

import contextlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from shoal.model.events import Event, RunEnded, RunStarted, SessionEnded, SessionStarted
from shoal.model.status import Status, run_status
from shoal.store.codec import UnknownEvent, decode
from shoal.store.kind import LASTING, EventRow
from shoal.store.paths import StatePaths

_COLUMNS = "SELECT at, run, session, kind, body FROM events"
NAMED = 5
OnRebuilt = Callable[[str], None]
"""Called on the writer's thread with a sentence about what could be rebuilt, and what could not."""


def rebuild(paths: StatePaths, damaged: Path | None, on_rebuilt: OnRebuilt) -> Iterator[EventRow]:
    """Yield the rows of a new ledger; none if there never was one."""
    logs = sorted(paths.sessions.glob("*.db")) if paths.sessions.is_dir() else []
    if damaged is None and not logs:
        return
    salvaged = [] if damaged is None else _salvage(paths.ledger)
    yield from salvaged
    found = _Found.of(logs, {(row.kind, row.session) for row in salvaged})
    known = {row.run for row in salvaged if row.kind == "RunStarted"}
    yield from found.rows
    for run in dict.fromkeys(row.run for row in found.rows):
        yield from _describe_run(paths, run, [row for row in found.rows if row.run == run], is_known=run in known)
    on_rebuilt(_sentence(paths, damaged, len(salvaged), found))


def find_lost(paths: StatePaths, sessions: Iterable[str], runs: Container[str]) -> list[Event]:
    """Return the events in the logs of *sessions* that the ledger lacks; it may know their *runs*."""
    logs = [log for log in map(paths.session_db, sorted(sessions)) if log.exists()]
    found = _Found.of(logs, set())
    events: list[Event | UnknownEvent] = []
    for run in dict.fromkeys(row.run for row in found.rows):
        rows = [row for row in found.rows if row.run == run]
        described = list(_describe_run(paths, run, rows, is_known=run in runs))
        events += [decode(row.kind, row.body) for row in (*described[:1], *rows, *described[1:])]
    return [event for event in events if not isinstance(event, UnknownEvent)]


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows that the sessions' logs add, and the sessions whose logs do not name their run."""

    rows: list[EventRow]
    unknown: list[str]

    @classmethod
    def of(cls, logs: Sequence[Path], known: Container[tuple[str, str | None]]) -> "_Found":
        rows: list[EventRow] = []
        unknown: list[str] = []
        for log in logs:
            own = _read_rows(log, f"WHERE kind IN {LASTING} ORDER BY seq")
            if not own and ("SessionStarted", log.stem) not in known:
                unknown.append(log.stem)
            rows += [row for row in own if (row.kind, row.session) not in known]
        return cls(sorted(rows, key=lambda row: row.at), unknown)


def _describe_run(paths: StatePaths, run: str, rows: Sequence[EventRow], *, is_known: bool) -> Iterator[EventRow]:
    """Begin a run whose start is lost, and end it if all of its sessions have ended.

    A run with an unfinished session is made to look killed: the next recovery imports its work.
    """
    events = [decode(row.kind, row.body) for row in rows]
    starts = [event for event in events if isinstance(event, SessionStarted)]
    results = {event.session: event.result.status for event in events if isinstance(event, SessionEnded)}
    if not is_known and starts:
        first = starts[0]
        notes = ("its ledger was lost: it is rebuilt from the logs of its sessions",)
        name = run.rsplit("-", 2)[0]
        begun = RunStarted(run=run, name=name, base=first.base, wall="", workspace=first.strategy, owner=0, notes=notes)
        yield EventRow.of(begun, rows[0].at)
    if any(start.session not in results for start in starts):
        paths.runs.mkdir(mode=0o700, exist_ok=True)
        paths.run_lock(run).touch(mode=0o600)
    elif not is_known and not paths.run_lock(run).exists():
        status = run_status(list(results.values())) if results else Status.INTERRUPTED
        yield EventRow.of(RunEnded(run=run, status=status, duration_seconds=rows[-1].at - rows[0].at), rows[-1].at)


def _salvage(ledger: Path) -> list[EventRow]:
    """Read what is readable of a damaged ledger: from its start up to the damage, and from its end down to it."""
    with tempfile.TemporaryDirectory(prefix="salvage-", dir=ledger.parent) as folder:
        copy = Path(folder, ledger.name)  # SQLite would change the original
        for suffix in ("", "-wal", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{ledger}{suffix}", f"{copy}{suffix}")
        upward = _read_pages(copy, "seq > ? ORDER BY seq", 0)
        downward = _read_pages(copy, "seq < ? ORDER BY seq DESC", 2**62)
        return [row for _, row in sorted({**dict(upward), **dict(downward)}.items())]


def _read_pages(path: Path, which: str, start: int) -> Iterator[tuple[int, EventRow]]:
    query = f"SELECT seq, at, run, session, kind, body FROM events WHERE {which}"  # noqa: S608
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_open(path)) as connection:
        for seq, *rest in connection.execute(query, (start,)):
            if _is_row(rest):
                yield seq, EventRow(*rest)


def _read_rows(path: Path, which: str) -> list[EventRow]:
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_open(path)) as connection:
        return [EventRow(*row) for row in connection.execute(f"{_COLUMNS} {which}") if _is_row(row)]
    return []


def _open(path: Path) -> sqlite3.Connection:
    # with its log beside it, if there is one, under a matching name
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None)
    connection.text_factory = lambda text: text.decode(errors="replace")
    connection.execute("PRAGMA query_only = 1")
    return connection


def _is_row(row: Iterable[object]) -> bool:
    """Return whether *row* is one of ours, not an artifact of the damage."""
    match tuple(row):
        case (float() | int(), str(), str() | None, str(), str(body)):
            with contextlib.suppress(ValueError, RecursionError):
                return isinstance(json.loads(body), dict)
    return False


def _sentence(paths: StatePaths, damaged: Path | None, salvaged: int, found: _Found) -> str:
    sessions = len({row.session for row in found.rows})
    what = "was missing" if damaged is None else f"was damaged and is kept as {damaged}"
    read = "" if damaged is None else f"{salvaged} of its events could be read; "
    text = f"the ledger {paths.ledger} {what}; {read}{sessions} sessions were rebuilt from their own logs"
    if found.unknown:
        names = ", ".join(found.unknown[:NAMED]) + (", …" if len(found.unknown) > NAMED else "")
        text += f"; the runs of these are unknown: {names}"
    lost = "plans of runs, merges and answers to gates" if damaged is None else "plans, merges and answers to gates"
    return f"{text}; {lost} are lost unless stored elsewhere"
