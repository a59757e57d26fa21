"""The run or session that a person means: the latest one, or the one whose name begins so."""

from collections.abc import Mapping
from typing import TypeVar

from shoal.errors import BadInput, UnknownName
from shoal.store.fold import RunState, SessionState, State

_SHOWN = 10
Found = TypeVar("Found")


def find_run(state: State, prefix: str | None = None) -> RunState:
    """Find a run by a unique beginning of its name; without one, the latest."""
    return _found("run", state.runs, prefix)


def find_session(state: State, prefix: str | None = None) -> SessionState:
    """Find a session by a unique beginning of its name; without one, the latest."""
    sessions = [
        session for run in state.runs.values() for step in run.steps.values() for session in step.sessions.values()
    ]
    return _found("session", {one.session: one for one in sorted(sessions, key=lambda one: one.seq)}, prefix)


def _found(kind: str, known: Mapping[str, Found], prefix: str | None) -> Found:
    if not known:
        raise BadInput(f"there is no {kind} yet; start one with `shoal run`")
    if prefix is None:
        return list(known.values())[-1]
    if prefix in known:
        return known[prefix]
    return known[_only(kind, known, prefix)]


def _only(kind: str, known: Mapping[str, Found], prefix: str) -> str:
    fitting = [name for name in known if name.startswith(prefix)]
    match fitting:
        case []:
            raise UnknownName(kind, prefix, known)
        case [name]:
            return name
        case _:
            shown = ", ".join(fitting[-_SHOWN:])
            raise BadInput(f"{prefix!r} fits {len(fitting)} {kind}s: {shown}; say more of the name")
