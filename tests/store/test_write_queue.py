"""The queue to the writer's thread."""

import asyncio
import contextlib
import time

import pytest

from shoal.model.events import Output
from shoal.store import write_queue
from shoal.store.kind import EventRow
from shoal.store.write_queue import (
    NOTE_DELAY_SECONDS,
    Appends,
    NoteBarrier,
    Notes,
    WriteQueue,
    WriteQueueBounds,
    WriteQueueEntry,
)


def entry(session: str, text: str) -> WriteQueueEntry:
    event = Output(run="r", session=session, stream="stdout", text=text)
    return WriteQueueEntry(event, EventRow.of(event, 1.0))


def test_notes_wait_until_they_are_due_and_facts_do_not_wait_for_them() -> None:
    backlog = WriteQueue(WriteQueueBounds())
    began = time.monotonic()
    backlog.note("s", entry("s", "a"))
    backlog.note("t", entry("t", "b"))
    backlog.note("s", entry("s", "c"))

    taken = [backlog.take(), backlog.take()]

    assert time.monotonic() - began >= NOTE_DELAY_SECONDS
    assert [(notes.session, len(notes.entries)) for notes in taken if isinstance(notes, Notes)] == [("s", 2), ("t", 1)]
    assert not any(isinstance(job, Appends) for job in taken)


def test_the_first_note_of_a_session_is_written_with_its_next() -> None:
    backlog = WriteQueue(WriteQueueBounds())
    for session in "st":
        backlog.note_first(session, entry(session, "first"))
    backlog.note("s", entry("s", "next"))

    assert texts(backlog.take()) == ["first", "next"]

    backlog.close()
    assert texts(backlog.take()) == ["first"], "what has no next one is not lost"
    assert backlog.take() is None


def test_the_first_note_of_a_session_is_written_before_the_end_of_its_log() -> None:
    backlog = WriteQueue(WriteQueueBounds())
    backlog.note_first("s", entry("s", "first"))
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        backlog.mark("s", NoteBarrier(loop.create_future(), is_last=True))

    taken = backlog.take()

    assert texts(taken) == ["first"]
    assert isinstance(taken, Notes)
    assert taken.mark is not None


def test_a_first_note_without_another_is_written_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_queue, "FIRST_DELAY_SECONDS", 0.05)
    backlog = WriteQueue(WriteQueueBounds())
    backlog.note_first("s", entry("s", "first"))

    assert texts(backlog.take()) == ["first"]


def texts(taken: Appends | Notes | None) -> list[str]:
    assert isinstance(taken, Notes)
    return [noted.event.text for noted in taken.entries if isinstance(noted.event, Output)]
