"""Where notes are kept: a small database of its own, with an index of all their words."""

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from shoal.errors import BadInput, Broken
from shoal.model.notes import MOST_NOTE_CHARS, MOST_NOTE_KEY_CHARS, MOST_NOTES, MOST_VERSIONS, Note, NoteKey
from shoal.store.paths import StatePaths

NOTES_FILE = "notes.db"
VERSION = 1
BUSY_SECONDS = 2.0
MOST_WORDS = 32
_KEY = re.compile(r"\w[\w./:@+-]*")
_WORD = re.compile(r"\w+")
_SCHEMA = """
CREATE TABLE notes (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL, is_trusted INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL,
    text TEXT NOT NULL, agent TEXT NOT NULL, session TEXT NOT NULL, from_run TEXT NOT NULL, base TEXT NOT NULL,
    time REAL NOT NULL, is_last INTEGER NOT NULL, UNIQUE (run, is_trusted, key, version)
);
CREATE INDEX last_notes ON notes (run, is_trusted, key) WHERE is_last;
CREATE VIRTUAL TABLE note_words USING fts5 (key, text, tokenize = 'unicode61');
"""
_COLUMNS = "notes.run, is_trusted, notes.key, version, notes.text, agent, session, from_run, base, time"


class NoteStore(Protocol):
    """Keeps the notes of one repository; another kind of store is one class."""

    def write(self, note: Note, expected: int | None = None) -> Note:
        """Keep *note* as the next version, and return it; *expected* is what the version before must be, 0 for none.

        Raises `BadInput` for another version, and beyond the limits.
        """

    def read(self, at: NoteKey) -> list[Note]:
        """Return the kept versions of a note, the latest first."""

    def list_latest(self, run: str | None, most: int) -> list[Note]:
        """List the notes of the repository, and those of *run*: a person's first, then the latest."""

    def search(self, query: str, run: str | None, most: int) -> list[Note]:
        """Find notes by their words, in the same places: a person's first, then the best."""

    def remove(self, at: NoteKey) -> bool:
        """Remove a note with all its versions; return whether there was one."""

    def forget_run(self, run: str) -> None:
        """Remove all notes of a run whose history is removed."""


def notes_at(paths: StatePaths) -> NoteStore:
    """Choose the store of the notes of the repository at *paths*; nothing is created before the first note."""
    return SqliteNotes(paths.root / NOTES_FILE)


def assert_note(note: Note) -> None:
    """Refuse a note that is too large, or has no name that can be typed."""
    key = note.at.key
    if not _KEY.fullmatch(key) or len(key) > MOST_NOTE_KEY_CHARS:
        known = f"letters, digits and ./:@+-_, at most {MOST_NOTE_KEY_CHARS}"
        raise BadInput(f"{key[:60]!r} is not a valid key for a note ({known})")
    if not note.text.strip():
        raise BadInput("a note needs a text")
    if len(note.text) > MOST_NOTE_CHARS:
        raise BadInput(f"a note may have {MOST_NOTE_CHARS} characters, and this has {len(note.text)}")


class SqliteNotes:
    """Notes in a file of SQLite, opened for each call, so that any process may write at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, note: Note, expected: int | None = None) -> Note:
        """Keep a note; see `NoteStore`."""
        assert_note(note)
        at = note.at
        with self._open() as connection, _transact(connection):
            place = (at.run, at.is_trusted, at.key)
            found = connection.execute(
                "SELECT id, version FROM notes WHERE run = ? AND is_trusted = ? AND key = ? AND is_last", place
            ).fetchone()
            now = 0 if found is None else found[1]
            if expected is not None and expected != now:
                was = f"version {now}" if now else "no such note"
                raise BadInput(f"the note {at.key} is not at version {expected}: there is {was}; read it again")
            if found is None:
                self._assert_room(connection, at)
            else:
                connection.execute("DELETE FROM note_words WHERE rowid = ?", found[:1])
                connection.execute("UPDATE notes SET is_last = 0 WHERE id = ?", found[:1])
            kept = replace(note, version=now + 1, time=note.time or time.time())
            self._insert(connection, kept)
            connection.execute(
                "DELETE FROM notes WHERE run = ? AND is_trusted = ? AND key = ? AND version <= ?",
                (*place, kept.version - MOST_VERSIONS),
            )
        return kept

    def read(self, at: NoteKey) -> list[Note]:
        """Return the versions of a note; see `NoteStore`."""
        query = f"SELECT {_COLUMNS} FROM notes WHERE run = ? AND is_trusted = ? AND key = ? ORDER BY version DESC"  # noqa: S608
        return self._select(query, (at.run, at.is_trusted, at.key))

    def list_latest(self, run: str | None, most: int) -> list[Note]:
        """List notes; see `NoteStore`."""
        query = (
            f"SELECT {_COLUMNS} FROM notes WHERE is_last AND run IN ('', ?)"  # noqa: S608
            " ORDER BY is_trusted DESC, time DESC LIMIT ?"
        )
        return self._select(query, (run or "", most))

    def search(self, query: str, run: str | None, most: int) -> list[Note]:
        """Find notes; see `NoteStore`."""
        # each word is quoted: what an agent asks for is never an expression of the index
        words = " OR ".join(f'"{word}"' for word in _WORD.findall(query)[:MOST_WORDS])
        if not words:
            return []
        select = (
            f"SELECT {_COLUMNS} FROM note_words JOIN notes ON notes.id = note_words.rowid"  # noqa: S608
            " WHERE note_words MATCH ? AND notes.run IN ('', ?)"
            " ORDER BY is_trusted DESC, bm25(note_words, 4.0, 1.0) LIMIT ?"
        )
        return self._select(select, (words, run or "", most))

    def remove(self, at: NoteKey) -> bool:
        """Remove a note; see `NoteStore`."""
        return self._remove("run = ? AND is_trusted = ? AND key = ?", (at.run, at.is_trusted, at.key))

    def forget_run(self, run: str) -> None:
        """Remove the notes of a run; see `NoteStore`."""
        if run and self._path.exists():
            self._remove("run = ?", (run,))

    def _remove(self, which: str, values: Sequence[object]) -> bool:
        if not self._path.exists():
            return False
        with self._open() as connection, _transact(connection):
            rows = connection.execute(f"SELECT id FROM notes WHERE {which}", values).fetchall()  # noqa: S608 - our words
            connection.executemany("DELETE FROM note_words WHERE rowid = ?", rows)
            connection.executemany("DELETE FROM notes WHERE id = ?", rows)
        return bool(rows)

    def _assert_room(self, connection: sqlite3.Connection, at: NoteKey) -> None:
        count = "SELECT count(*) FROM notes WHERE run = ? AND is_trusted = ? AND is_last"
        (number,) = connection.execute(count, (at.run, at.is_trusted)).fetchone()
        if number >= MOST_NOTES:
            raise BadInput(f"there are {number} notes already, which is the limit; change one, or remove some")

    def _insert(self, connection: sqlite3.Connection, note: Note) -> None:
        row = (note.at.run, note.at.is_trusted, note.at.key, note.version, note.text, note.agent, note.session)
        cursor = connection.execute(
            "INSERT INTO notes (run, is_trusted, key, version, text, agent, session, from_run, base, time, is_last)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)",
            (*row, note.from_run, note.commit, note.time),
        )
        words = (cursor.lastrowid, note.at.key, note.text)
        connection.execute("INSERT INTO note_words (rowid, key, text) VALUES (?, ?, ?)", words)

    def _select(self, query: str, values: Sequence[object]) -> list[Note]:
        if not self._path.exists():
            return []
        with self._open() as connection:
            return [_note(row) for row in connection.execute(query, values)]

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._path.is_symlink():
                raise Broken(f"{self._path} is a link; remove it")
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
            with contextlib.closing(connection):
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                _prepare(connection)
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise Broken(f"the notes in {self._path} cannot be used: {error}") from error


def _prepare(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise Broken("the notes were written by a newer Shoal")
    if version < VERSION:
        with _transact(connection):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            for statement in _SCHEMA.split(";") if version < VERSION else ():
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")


@contextlib.contextmanager
def _transact(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _note(row: Sequence[object]) -> Note:
    run, is_trusted, key, version, text, agent, session, from_run, commit, at = row
    return Note(
        at=NoteKey(key=str(key), run=str(run), is_trusted=bool(is_trusted)),
        version=int(str(version)),
        text=str(text),
        agent=str(agent),
        session=str(session),
        from_run=str(from_run),
        commit=str(commit),
        time=float(str(at)),
    )
