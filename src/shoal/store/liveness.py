"""The state of all runs as it is now: what a killed Shoal left without an end is `interrupted`."""

from collections.abc import Mapping
from dataclasses import replace

from shoal.model.status import Status
from shoal.store.fold import fold
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.store.state import RunState, State, StepState


def read_state(paths: StatePaths) -> State:
    """Fold the recorded events; sessions of a killed run are `interrupted`, although nothing recorded it."""
    first = fold(read_events(paths))
    doubtful = find_dead(paths, first.runs)
    if not doubtful:
        return first
    # Read again: a run records its end before it releases its lock, so the end is there now or never.
    return interrupt_runs(fold(read_events(paths)), doubtful)


def find_dead(paths: StatePaths, runs: Mapping[str, RunState]) -> set[str]:
    """Find the runs that have no recorded end, and nobody who could still record it."""
    return {name for name, run in runs.items() if _is_open(run) and not is_locked(paths.run_lock(name))}


def interrupt_runs(state: State, names: set[str]) -> State:
    """Return *state* with the runs of these *names* as their killed Shoal left them."""
    return State({name: _interrupt(run) if name in names else run for name, run in state.runs.items()})


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
