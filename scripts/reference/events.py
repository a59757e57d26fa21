"""docs/events.md: every event of the ledger and of the logs of sessions, from their classes."""

from collections.abc import Iterator
from typing import get_args

from scripts.reference.source import field_rows, sentence, table
from shoal.model.events import Event

INTRODUCTION = """\
# Every event

Written by `python -m scripts.reference` from `src/shoal/model/events.py`: change that, not this page.

Everything that happens in a run is an event: `shoal run --events` and `shoal attach --events` print them as JSON, one on
a line, with `seq` (a number that only grows), `at` (seconds since 1970) and `event` (the name below) before the fields.
Reports, `shoal status` and the dashboard are made from nothing else. New versions add events and fields; ignore those
that you do not know.
"""


def page() -> str:
    """Make the whole page."""
    return "\n".join([INTRODUCTION, *(line for kind in get_args(Event) for line in _event(kind))])


def _event(kind: type) -> Iterator[str]:
    yield f"## {kind.__name__}\n"
    yield f"{sentence(kind.__doc__)}\n"
    yield from table(("field", "type", "meaning"), field_rows(kind))
