"""Reading the databases, as anybody may at any time: nothing is written, made or held up."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from shoal.errors import Broken
from shoal.model.events import Recorded
from shoal.store.codec import UnknownEvent, decode
from shoal.store.database import BUSY_SECONDS, check_version
from shoal.store.paths import StatePaths

_PAGE = 1000
_Row = tuple[int, float, str, str]
_UNENDED = (
    "SELECT seq, at, kind, body FROM events WHERE run = ? AND kind = 'SessionStarted' AND session NOT IN"
    " (SELECT session FROM events WHERE run = ? AND kind = 'SessionEnded' AND session IS NOT NULL) ORDER BY seq"
)


def events(paths: StatePaths, run: str | None = None, after: int = 0) -> Iterator[Recorded]:
    """Give the ledger's events in order, of one *run* or of all, with numbers above *after*.

    Events of kinds that this Shoal does not know are passed over; they stay in the database.
    """
    return _read_events(paths.ledger, run, after)


def read_unended(paths: StatePaths, run: str) -> Iterator[Recorded]:
    """Give the starts of those sessions of *run* that have no end, in order; the others are not even decoded."""
    with _connected(paths.ledger) as connection:
        rows = [] if connection is None else connection.execute(_UNENDED, (run, run)).fetchall()
    return _decode_rows(rows)


def session_events(paths: StatePaths, session: str, after: int = 0) -> Iterator[Recorded]:
    """Give what was noted for *session*, in order."""
    return _read_events(paths.session_db(session), None, after)


def run_ids(paths: StatePaths) -> list[str]:
    """Name all runs, newest first."""
    with _connected(paths.ledger) as connection:
        if connection is None:
            return []
        return [name for (name,) in connection.execute("SELECT run FROM events GROUP BY run ORDER BY min(seq) DESC")]


def _read_events(path: Path, run: str | None, after: int) -> Iterator[Recorded]:
    with _connected(path) as connection:
        while connection is not None and (page := _page(connection, run, after)):
            yield from _decode_rows(page)
            after = page[-1][0]


def _decode_rows(rows: Sequence[_Row]) -> Iterator[Recorded]:
    for seq, at, kind, body in rows:
        event = decode(kind, body)
        if not isinstance(event, UnknownEvent):
            yield Recorded(seq, at, event)


def _page(connection: sqlite3.Connection, run: str | None, after: int) -> Sequence[_Row]:
    # whole pages: an open cursor would keep the writer from ever resetting its log
    query = f"SELECT seq, at, kind, body FROM events WHERE {'run = ? AND' if run else ''} seq > ? ORDER BY seq LIMIT ?"  # noqa: S608
    values = (run, after, _PAGE) if run else (after, _PAGE)
    return connection.execute(query, values).fetchall()


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Connect for reading; `None` where there is no database yet, or nothing in it."""
    if not path.exists():
        yield None
        return
    try:
        with contextlib.closing(_connection(path)) as connection:
            yield connection if check_version(path, connection) else None
    except sqlite3.Error as error:
        raise Broken(f"{path} cannot be read: {error}") from error


def _connection(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path))}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
