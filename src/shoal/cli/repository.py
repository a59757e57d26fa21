"""The repository that a command works on, and the state of its runs."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import BadInput, BadRepository
from shoal.git.repository import inspect
from shoal.git.snapshot import hidden_repository
from shoal.model.repository import Repository
from shoal.model.status import Status
from shoal.store.fold import fold
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.store.state import RunState, SessionState, State, StepState


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """A repository, with its state; *repository* is a hidden one of ours where the folder is no repository."""

    repository: Repository
    paths: StatePaths

    def state(self) -> State:
        """Fold the recorded events; sessions of a killed run are `interrupted`, although nothing recorded it."""
        first = fold(read_events(self.paths))
        doubtful = [run for run in first.runs.values() if self._is_dead(run)]
        if not doubtful:
            return first
        # Read again: a run records its end before it releases its lock, so the end is there now or never.
        second = fold(read_events(self.paths))
        names = {run.run for run in doubtful}
        return State({name: _interrupt(run) if name in names else run for name, run in second.runs.items()})

    def _is_dead(self, run: RunState) -> bool:
        return _is_open(run) and not is_locked(self.paths.run_lock(run.run))


async def find_place(folder: Path) -> RepositoryState:
    """Find the repository of *folder*, or the state that a run left in a plain folder."""
    try:
        repository = await inspect(folder, os.environ)
    except BadRepository:
        paths = StatePaths.of(folder.resolve())
        hidden = paths.root / "snapshot.git"
        if not (hidden / "HEAD").is_file():
            raise
        return RepositoryState(hidden_repository(folder.resolve(), hidden), paths)
    return RepositoryState(repository, StatePaths.of(repository.home))


def run_of(state: State, session: SessionState) -> RunState:
    """Find the run that *session* belongs to."""
    return next(
        run for run in state.runs.values() if any(session.session in step.sessions for step in run.steps.values())
    )


def no_branch_yet(session: SessionState) -> BadInput:
    """Explain why *session*, running or killed, has no branch, and what to do."""
    is_interrupted = session.status.is_interrupted
    then = "`shoal clean` recovers its work" if is_interrupted else "`shoal logs -f` follows it"
    return BadInput(f"{session.session} has no branch yet: it is {session.status.value}; {then}")


def _is_open(run: RunState) -> bool:
    """Say whether *run* or a session of it has no recorded end: an interrupted run still records its own."""
    sessions = (session for step in run.steps.values() for session in step.sessions.values())
    return not run.status.is_ended or not all(session.status.is_ended for session in sessions)


def _interrupt(run: RunState) -> RunState:
    """Return *run* as its killed Shoal left it: a session without an end was interrupted."""
    steps = {name: _interrupt_step(step) for name, step in run.steps.items()}
    return replace(run, status=run.status if run.status.is_ended else Status.INTERRUPTED, steps=steps)


def _interrupt_step(step: StepState) -> StepState:
    sessions = {
        name: session if session.status.is_ended else replace(session, status=Status.INTERRUPTED)
        for name, session in step.sessions.items()
    }
    return replace(step, status=step.status if step.status.is_ended else Status.INTERRUPTED, sessions=sessions)
