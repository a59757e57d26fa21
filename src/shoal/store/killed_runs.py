"""Killed runs: find them, show what they left without an end as `interrupted`, and record lost sessions."""

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import replace

from shoal.model.events import SessionStarted
from shoal.model.status import Status
from shoal.store.fold import fold
from shoal.store.following import find_live
from shoal.store.ledger import Ledger
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths
from shoal.store.reader import list_runs, read_events, store_at
from shoal.store.rebuild import find_lost
from shoal.store.run_state import RunState, State, StepState


def read_state(paths: StatePaths) -> State:
    """Read the state of all runs, each on demand; sessions of a killed run are `interrupted`."""
    return State(_RunsByName(paths), lambda word: set(store_at(paths).find_runs(word)))


class _RunsByName(Mapping[str, RunState]):
    """The runs in order of their start: names at once, a single run on demand, or all of them in one reading."""

    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._names = dict.fromkeys(reversed(list_runs(paths)))
        self._known: dict[str, RunState] = {}
        self._all: Mapping[str, RunState] | None = None

    def __getitem__(self, name: str) -> RunState:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._known:
            self._known[name] = _read(self._paths, name).get(name) or RunState(run=name)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def items(self) -> ItemsView[str, RunState]:
        return self._read_all().items()

    def values(self) -> ValuesView[RunState]:
        return self._read_all().values()

    def _read_all(self) -> Mapping[str, RunState]:
        if self._all is None:
            self._all = _read(self._paths)
        return self._all


def _read(paths: StatePaths, run: str | None = None) -> Mapping[str, RunState]:
    """Fold the events of *run*, or of all runs."""
    first = fold(read_events(paths, run))
    doubtful = find_dead(paths, first.runs)
    if not doubtful:
        return first.runs
    # Read again: a run records its end before it releases its lock, so the end is there now or never.
    return interrupt_runs(fold(read_events(paths, run)), doubtful).runs


def find_dead(paths: StatePaths, runs: Mapping[str, RunState]) -> set[str]:
    """Find the runs without a recorded end whose owner is dead."""
    free = {name for name, run in runs.items() if _is_open(run) and not is_locked(paths.run_lock(name))}
    return free.difference(find_live(paths)) if free else free


def interrupt_runs(state: State, names: set[str]) -> State:
    """Return *state* with the runs of these *names* marked as interrupted."""
    return State({name: _interrupt(run) if name in names else run for name, run in state.runs.items()})


def _is_open(run: RunState) -> bool:
    """Return whether *run* or one of its sessions has no recorded end."""
    sessions = (session for step in run.steps.values() for session in step.sessions.values())
    return not run.status.is_ended or not all(session.status.is_ended for session in sessions)


def _interrupt(run: RunState) -> RunState:
    """Return *run* marked as interrupted, with its sessions that have no end."""
    steps = {name: _interrupt_step(step) for name, step in run.steps.items()}
    return replace(run, status=run.status if run.status.is_ended else Status.INTERRUPTED, steps=steps)


def _interrupt_step(step: StepState) -> StepState:
    sessions = {
        name: session if session.status.is_ended else replace(session, status=Status.INTERRUPTED)
        for name, session in step.sessions.items()
    }
    return replace(step, status=step.status if step.status.is_ended else Status.INTERRUPTED, sessions=sessions)


async def record_lost_sessions(paths: StatePaths, ledger: Ledger, sessions: Iterable[str]) -> tuple[str, ...]:
    """Record those *sessions* that only their own logs know, and return their names.

    A power failure or a deleted `-wal` file can take the last events of the ledger. Their runs then look killed, or
    ended, like any other.
    """
    wanted = set(sessions)
    if not wanted:
        return ()
    lost = wanted.difference(store_at(paths).list_sessions())
    if not lost:
        return ()
    events = find_lost(paths, lost, list_runs(paths))
    await ledger.append(*events)
    return tuple(sorted({event.session for event in events if isinstance(event, SessionStarted)}))
