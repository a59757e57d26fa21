"""Read the store of a repository, which any process may do at any time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.model.events import Recorded, ResourcesSampled
from shoal.model.resources import ResourceSample
from shoal.store.choice import open_chosen, read_choice
from shoal.store.kind import Store
from shoal.store.paths import StatePaths
from shoal.store.rebuild import OnRebuilt
from shoal.store.sqlite import SqliteStore

MAX_SAMPLES = 300


def store_at(paths: StatePaths, on_rebuilt: OnRebuilt | None = None) -> Store:
    """Choose the store of the repository at *paths*; nothing is created.

    *on_rebuilt* is called, on the writer's thread, when the ledger was lost or damaged and had to be rebuilt.
    """
    if (choice := read_choice(paths)) is not None:
        return open_chosen(choice)
    return SqliteStore(paths) if on_rebuilt is None else SqliteStore(paths, on_rebuilt)


def read_events(paths: StatePaths, run: str | None = None, after: int = 0) -> Iterator[Recorded]:
    """Read the ledger in order, for one *run* or for all, with numbers above *after*."""
    return store_at(paths).read_events(run, after)


def read_unended(paths: StatePaths, run: str) -> Iterator[Recorded]:
    """Read the start events of those sessions of *run* that have no end, in order."""
    return store_at(paths).read_unended(run)


def read_session(paths: StatePaths, session: str, after: int = 0) -> Iterator[Recorded]:
    """Read the log of *session* in order."""
    return store_at(paths).read_session(session, after)


@dataclass(frozen=True, slots=True)
class SampleAt:
    """A sample of what a session used, and when it was taken, in seconds since the epoch."""

    at: float
    sample: ResourceSample


def read_samples(paths: StatePaths, session: str, most: int = MAX_SAMPLES) -> list[SampleAt]:
    """Read what *session* used over time, in order; of more than *most* samples, evenly spaced ones and the last."""
    found = [
        SampleAt(recorded.at, recorded.event.sample)
        for recorded in store_at(paths).read_session(session, kind=ResourcesSampled.__name__)
        if isinstance(recorded.event, ResourcesSampled)
    ]
    if len(found) <= most:
        return found
    return [*found[: -1 : math.ceil(len(found) / max(1, most - 1))], found[-1]]


def list_runs(paths: StatePaths) -> list[str]:
    """List the ids of all runs, newest first."""
    return store_at(paths).list_runs()
