"""Which sessions of a run have no end in the ledger."""

from dataclasses import dataclass

from shoal.errors import Broken
from shoal.store.fold import SessionState, fold
from shoal.store.paths import StatePaths
from shoal.store.read import unended


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A session that was begun, and its step."""

    step: str
    session: SessionState


def unfinished(paths: StatePaths, run: str) -> list[Unfinished]:
    """List the sessions whose work may still lie where their agents left it."""
    try:
        state = fold(unended(paths, run)).runs.get(run)
    except Broken:
        return []
    return [
        Unfinished(step.step, session)
        for step in (state.steps.values() if state else ())
        for session in step.sessions.values()
        if session.result is None
    ]
