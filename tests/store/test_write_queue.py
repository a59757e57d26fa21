"""The queue to the writer's thread."""

import time

from shoal.model.events import Output
from shoal.store.kind import EventRow
from shoal.store.write_queue import NOTE_DELAY_SECONDS, Appends, Notes, WriteQueue, WriteQueueBounds, WriteQueueEntry


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
