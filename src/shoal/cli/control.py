"""`shoal stop`, `send`, `pause`, `continue` and `set`: control a live run from any terminal."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.output import escape, program
from shoal.cli.render.columns import count
from shoal.cli.repository import RepositoryState, find_place, run_of
from shoal.errors import BadInput, ExitCode, NoMessages
from shoal.model.events import AgentMessaged, RequestTaken
from shoal.model.status import Status
from shoal.store.documents import text
from shoal.store.fold import latest
from shoal.store.lock import is_locked
from shoal.store.lookup import find_run, find_run_or_session, find_session
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, read_session
from shoal.store.requests import MAX_BYTES, ControlRequest, RequestKind, post, user_name, withdraw
from shoal.store.run_state import RunState, SessionState, State

TAKEN_SECONDS = 10.0
T = TypeVar("T")
POLL_SECONDS = 0.2
STDIN = "-"

Target = Annotated[
    str | None,
    typer.Argument(metavar="RUN|SESSION", help="A run, or a session of it; default: the latest live run."),
]
LiveRun = Annotated[str | None, typer.Argument(metavar="RUN", help="A live run; default: the latest.")]
AtOnce = Annotated[int, typer.Option("-j", metavar="N", min=1, help="How many agents may run at once from now on.")]
Addressee = Annotated[
    str, typer.Argument(metavar="SESSION", help="A running session: its name, step, or a unique prefix or suffix.")
]
Text = Annotated[str, typer.Argument(metavar="TEXT|-", help="The message; `-` reads it from stdin.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the agent gets it; exit with 1 if it never does.")]
Freeze = Annotated[bool, typer.Option("--freeze", help="Also freeze the running agents.")]
Now = Annotated[bool, typer.Option("--now", help="End a run at once, as the second Ctrl-C does.")]


def stop_command(target: Target = None, now: Now = False, json: Json = False, repo: Repo = HERE) -> int:
    """Stop a run, or one session of it; the work is kept.

    Agents are asked to stop, and killed after a grace period. If you stop a session, the others continue.
    """
    place = asyncio.run(find_place(repo))
    run, session = _find_target(place.state(), target)
    if now and session is not None:
        raise BadInput(f"--now ends a whole run, and {session.session} is one session; leave --now out")
    name = "" if session is None else session.session
    request = ControlRequest(kind=RequestKind.STOP, run=run.run, session=name, is_now=now, by=user_name())
    how = " at once" if now else ""
    what = f"{name} of {run.run}" if name else run.run
    return _ask(place, request, f"stopping {what}{how}", json=json)


def send_command(session: Addressee, text: Text, wait: Wait = False, json: Json = False, repo: Repo = HERE) -> int:
    """Send a message to a running agent.

    The agent finishes its current turn and gets the message as its next prompt. Works with the adapters `claude`,
    `acp`, `python` and `scripted` (by `receive`).
    """
    message = (_read_stdin() if text == STDIN else text).strip()
    if not message:
        raise BadInput("the message is empty; write some text")
    place = asyncio.run(find_place(repo))
    run, found = _find_live_session(place.state(), session)
    if found.adapter and not found.takes_messages:
        raise NoMessages(found.session, found.adapter)
    request = ControlRequest(kind=RequestKind.SEND, run=run.run, session=found.session, message=message, by=user_name())
    code = _ask(place, request, f"sent to {found.session}, which gets it after its current turn", json=json)
    return _await_delivery(place, request) if wait else code


def _read_stdin() -> str:
    return sys.stdin.buffer.read(MAX_BYTES).decode(errors="replace")


def _await_delivery(place: RepositoryState, request: ControlRequest) -> int:
    """Wait until the agent has received the message, or never will."""
    while True:
        is_alive = is_locked(place.paths.run_lock(request.run))
        for recorded in read_session(place.paths, request.session):
            if isinstance(recorded.event, AgentMessaged) and recorded.event.request == request.id:
                if recorded.event.is_delivered:
                    return 0
                output.print_err(f"shoal: {escape(request.session)} ended before it got the message")
                return ExitCode.FAILED
        if not is_alive:
            output.print_err(f"shoal: {escape(request.run)} ended before {escape(request.session)} got the message")
            return ExitCode.FAILED
        time.sleep(POLL_SECONDS)


def pause_command(run: LiveRun = None, freeze: Freeze = False, json: Json = False, repo: Repo = HERE) -> int:
    """Start no more agents until `shoal continue`.

    Running agents go on; --freeze freezes them, too, and stops the clock of their time limits.
    """
    place = asyncio.run(find_place(repo))
    target = _find_live_run(place.state(), run).run
    request = ControlRequest(kind=RequestKind.PAUSE, run=target, is_frozen=freeze, by=user_name())
    what = "no agent runs" if freeze else "no agent starts"
    return _ask(place, request, f"paused {target}: {what} until `{program()} continue {target}`", json=json)


def continue_command(run: LiveRun = None, json: Json = False, repo: Repo = HERE) -> int:
    """Continue a run that was paused."""
    place = asyncio.run(find_place(repo))
    state = place.state()
    paused = State({name: found for name, found in state.runs.items() if found.status is Status.PAUSED})
    target = _find_live_run(state if run is not None or not paused.runs else paused, run)
    if target.status is not Status.PAUSED:
        raise BadInput(f"{target.run} is not paused")
    request = ControlRequest(kind=RequestKind.CONTINUE, run=target.run, by=user_name())
    return _ask(place, request, f"continuing {target.run}", json=json)


def set_command(at_once: AtOnce, run: LiveRun = None, json: Json = False, repo: Repo = HERE) -> int:
    """Change how many agents run at once.

    If more are running already, they finish first. Example: `shoal set -j 8`.
    """
    place = asyncio.run(find_place(repo))
    target = _find_live_run(place.state(), run).run
    request = ControlRequest(kind=RequestKind.SET, run=target, value=at_once, by=user_name())
    return _ask(place, request, f"{target} now runs at most {count(at_once, 'agent')} at once", json=json)


def _find_live_run(state: State, word: str | None) -> RunState:
    """Find the live run that *word* names, or the latest one; refuse others, and say why."""
    live = _live(state)
    if word is None:
        run = latest(live)
        if run is None:
            raise BadInput(f"no run is alive{_describe_last(state)}")
        return run
    try:
        return find_run(live, word)
    except BadInput:
        found = find_run(state, word)
    _assert_live(found.run, found.status)
    return found


def _live(state: State) -> State:
    return State({name: run for name, run in state.runs.items() if not run.status.is_ended})


def _find_target(state: State, word: str | None) -> tuple[RunState, SessionState | None]:
    """Find the live run or session that *word* names; refuse others, and say why."""
    if word is None:
        return _find_live_run(state, None), None
    try:
        found = find_run_or_session(_live(state), word)
    except BadInput:
        found = find_run_or_session(state, word)
    if isinstance(found, RunState):
        _assert_live(found.run, found.status)
        return found, None
    _assert_live(found.session, found.status)
    return run_of(state, found), found


def _find_live_session(state: State, word: str) -> tuple[RunState, SessionState]:
    try:
        found = find_session(_live(state), word)
    except BadInput:
        found = find_session(state, word)
    _assert_live(found.session, found.status)
    return run_of(state, found), found


def _assert_live(name: str, status: Status) -> None:
    if status.is_interrupted:
        raise BadInput(f"{name} is not alive any more: its Shoal was killed")
    if status.is_ended:
        raise BadInput(f"{name} has ended ({status.value})")


def _describe_last(state: State) -> str:
    last = latest(state)
    return "" if last is None else f"; the latest, {last.run}, has ended ({last.status.value})"


def _ask(place: RepositoryState, request: ControlRequest, what: str, *, json: bool) -> int:
    """Leave *request*, wait until the run has recorded it, and print that."""
    post(place.paths, request)
    taken = _wait_until_taken(place.paths, request)
    if taken is not None and taken.refusal:
        raise BadInput(taken.refusal)
    if json:
        output.print_out(text(_document(request, is_taken=taken is not None)))
    else:
        output.print_out(escape(what if taken is not None else f"asked, but not taken yet: {what}"))
    return 0


def _wait_until_taken(paths: StatePaths, request: ControlRequest) -> RequestTaken | None:
    """Wait until the run has recorded the request; `None` if it has not in time. Raises if it never will."""

    def find() -> RequestTaken | None:
        for recorded in read_events(paths, request.run):
            if isinstance(recorded.event, RequestTaken) and recorded.event.request == request.id:
                return recorded.event
        return None

    return wait_for_event(paths, request, find, seconds=TAKEN_SECONDS, missed="it took the request")


def wait_for_event(
    paths: StatePaths, request: ControlRequest, find: Callable[[], T], *, seconds: float, missed: str
) -> T | None:
    """Wait until *find* finds the event that answers *request*; `None` if it does not in time.

    Raises `BadInput`, and withdraws the request, if the run ended before *missed*.
    """
    end, pause = time.monotonic() + seconds, 0.02
    while time.monotonic() < end:
        is_alive = is_locked(paths.run_lock(request.run))  # first: a run records its end before it releases its lock
        if (found := find()) is not None:
            return found
        if not is_alive:
            withdraw(paths, request)
            raise BadInput(f"{request.run} ended before {missed}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)
    return None


def _document(request: ControlRequest, *, is_taken: bool) -> dict[str, object]:
    return {
        "run": request.run,
        "session": request.session or None,
        "kind": request.kind,
        "now": request.is_now,
        "freeze": request.is_frozen,
        "at_once": request.value or None,
        "message": request.message or None,
        "by": request.by,
        "taken": is_taken,
    }
