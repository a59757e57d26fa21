"""`shoal ps`: the running agents of this user, in all repositories."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shoal.cli import output
from shoal.cli.options import Json
from shoal.cli.output import Paint, escape
from shoal.cli.render.columns import beginning, columns, heading, join_cells, seconds
from shoal.errors import ShoalError
from shoal.model.events import AgentStarted
from shoal.store.documents import text
from shoal.store.fold import fold
from shoal.store.known_repositories import list_repositories
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, read_session
from shoal.store.run_state import RunState, SessionState

NAME = 28
PLACE = 30


@dataclass(frozen=True, slots=True)
class RunningSession:
    """A running session; *pid* is that of its agent once it has started."""

    paths: StatePaths
    run: RunState
    step: str
    session: SessionState
    pid: int | None

    @property
    def state(self) -> str:
        """Return its state."""
        return "starting" if self.pid is None else "frozen" if self.run.is_frozen else "running"


def command(json: Json = False) -> int:
    """List the running agents of all your repositories."""
    found = [running for paths in list_repositories(os.environ) for running in _list_safely(paths)]
    now = time.time()
    lines = list(_lines(found, now, output.paint())) if found else ["no agents are running"]
    output.print_out(text([_row(running, now) for running in found]) if json else "\n".join(lines))
    return 0


def _list_safely(paths: StatePaths) -> list[RunningSession]:
    """List the sessions of one repository; an unreadable one does not hide the others."""
    try:
        return list(_list_running(paths))
    except (ShoalError, OSError) as error:
        output.print_err(f"shoal: {escape(str(paths.root.parent))} cannot be read: {escape(str(error))}")
        return []


def _list_running(paths: StatePaths) -> Iterator[RunningSession]:
    for lock in sorted(paths.runs.glob("*.lock")):
        if not is_locked(lock):
            continue
        for run in fold(read_events(paths, lock.stem)).runs.values():
            for step in run.steps.values():
                for session in step.sessions.values():
                    if not session.status.is_ended:
                        yield RunningSession(paths, run, step.step, session, _find_pid(paths, session.session))


def _find_pid(paths: StatePaths, session: str) -> int | None:
    started = (recorded.event for recorded in read_session(paths, session))
    return next((event.pid for event in started if isinstance(event, AgentStarted)), None)


def _row(running: RunningSession, now: float) -> dict[str, object]:
    return {
        "repository": str(running.paths.root.parent),
        "run": running.run.run,
        "run_status": running.run.status.value,
        "run_pid": running.run.owner,
        "step": running.step,
        "session": running.session.session,
        "agent": running.session.agent,
        "state": running.state,
        "elapsed_seconds": round(max(0.0, now - running.session.started_at), 3),
        "pid": running.pid,
    }


def _lines(found: Sequence[RunningSession], now: float, paint: Paint) -> Iterator[str]:
    titles = ("session", "agent", "state", "time", "pid", "run", "repository")
    head, *rows = columns([titles, *(_cells(running, now) for running in found)])
    yield heading(head, paint)
    yield from map(join_cells, rows)


def _cells(running: RunningSession, now: float) -> tuple[str, ...]:
    session, run = running.session, running.run
    paused = " (paused)" if run.status.value == "paused" else ""
    return (
        beginning(session.session, NAME),
        beginning(session.agent or "-", NAME),
        running.state,
        seconds(max(0.0, now - session.started_at)),
        str(running.pid or "-"),
        beginning(run.run, NAME) + paused,
        _shorten(str(running.paths.root.parent)),
    )


def _shorten(path: str) -> str:
    """Return the end of a long path, which distinguishes repositories."""
    shown = escape(path)
    return shown if len(shown) <= PLACE else f"…{shown[1 - PLACE :]}"
