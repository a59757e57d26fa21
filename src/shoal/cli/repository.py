"""The repository that a command works on, and the state of its runs."""

import os
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import BadRepository
from shoal.git.repository import inspect
from shoal.git.snapshot import repository_of_snapshot
from shoal.model.repository import Repository
from shoal.store.fold import fold
from shoal.store.killed_runs import read_state
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.store.run_state import RunState, SessionState, State


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """A repository and its state; for a plain folder, *repository* is a hidden one of ours."""

    repository: Repository
    paths: StatePaths

    def state(self) -> State:
        """Read the current state of all runs."""
        return read_state(self.paths)


async def find_place(folder: Path) -> RepositoryState:
    """Find the repository of *folder*, or the state that a run left in a plain folder."""
    try:
        repository = await inspect(folder, os.environ)
    except BadRepository:
        paths = StatePaths.of(folder.resolve())
        hidden = paths.root / "snapshot.git"
        if not (hidden / "HEAD").is_file():
            raise
        return RepositoryState(repository_of_snapshot(folder.resolve(), hidden), paths)
    return RepositoryState(repository, StatePaths.of(repository.home))


def run_of(state: State, session: SessionState) -> RunState:
    """Find the run that *session* belongs to."""
    return next(
        run
        for run in state.with_session(session.session)
        if any(session.session in step.sessions for step in run.steps.values())
    )


def is_dead(place: RepositoryState, run: str) -> bool:
    """Return whether *run*, whose lock is free, never recorded an end."""
    return not fold(read_events(place.paths, run)).runs[run].status.is_ended
