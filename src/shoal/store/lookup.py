"""Find the run or session that a person names: the latest, or by id, branch, step or part of an id."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shoal.errors import BadInput, UnknownName
from shoal.store.run_state import RunState, SessionState, State

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _KnownSession:
    """A session with its step and run."""

    run: str
    step: str
    session: SessionState


def find_run(state: State, word: str | None = None) -> RunState:
    """Find a run: without a *word* the latest; otherwise by its name, its ending, or a unique beginning.

    A pipeline's name means its latest run.
    """
    names = list(state.runs)
    if not names:
        raise _none_yet("run")
    if word is None or word in state.runs:
        return state.runs[names[-1] if word is None else word]
    # in a long history, a run is read only if it may match
    likely = (state.runs[name] for name in reversed(names) if name.startswith(f"{word}-"))
    named = next((run for run in likely if run.name == word), None)
    if named is None and len(_fitting(names, word)) != 1:
        named = next((run for run in reversed(list(state.runs.values())) if word and run.name == word), None)
    return named or state.runs[_find_name("run", names, word)]


def find_session(state: State, word: str | None = None) -> SessionState:
    """Find a session: without a *word* the latest; otherwise by name, branch, step, ending or beginning.

    A word that matches sessions of several runs means the latest of these runs, and the last attempt.
    """
    likely = _list_sessions(state.with_session(word))
    if word is None:
        if not likely:
            raise _none_yet("session")
        return likely[-1].session
    fitting = _match(likely, word)
    if not fitting:
        known = [entry.session.session for entry in _list_sessions(state.runs.values())]
        raise _unknown("session", word, known) if known else _none_yet("session")
    run = fitting[-1].run
    last = {(entry.step, entry.session.index): entry.session for entry in fitting if entry.run == run}
    names = [entry.session for entry in last.values()]
    if len(names) > 1:
        raise _ambiguous("session", word, names)
    return next(iter(last.values()))


def find_run_or_session(state: State, word: str) -> RunState | SessionState:
    """Find what *word* names: a run by its id, pipeline or ending, else a session, else a run by its beginning."""
    names = [name for name in state.runs if name == word or name.endswith(f"-{word}")]
    names_run = bool(names) or any(state.runs[name].name == word for name in state.runs if name.startswith(f"{word}-"))
    if not names_run and _match(_list_sessions(state.with_session(word)), word):
        return find_session(state, word)
    return find_run(state, word)


def _list_sessions(runs: Iterable[RunState]) -> list[_KnownSession]:
    known = [
        _KnownSession(run.run, step.step, session)
        for run in runs
        for step in run.steps.values()
        for session in step.sessions.values()
    ]
    return sorted(known, key=lambda entry: entry.session.seq)


def _match(known: Sequence[_KnownSession], word: str) -> list[_KnownSession]:
    """Return the closest kind of match: `task-1` is a step before it is a part of `task-10`."""
    ways: tuple[Callable[[_KnownSession], bool], ...] = (
        lambda entry: word in (entry.session.session, entry.session.branch),
        lambda entry: word == entry.step,
        lambda entry: entry.session.session.endswith(f"-{word}"),
        lambda entry: entry.session.session.startswith(word),
    )
    return next((found for way in ways if (found := [entry for entry in known if way(entry)])), [])


def _find_name(kind: str, names: Sequence[str], word: str) -> str:
    match fitting := _fitting(names, word):
        case []:
            raise _unknown(kind, word, names)
        case [name]:
            return name
        case _:
            raise _ambiguous(kind, word, fitting)


def _fitting(names: Sequence[str], word: str) -> list[str]:
    ends = [name for name in names if name.endswith(f"-{word}")]
    return [word] if word in names else ends or [name for name in names if name.startswith(word)]


def _none_yet(kind: str) -> BadInput:
    return BadInput(f"there is no {kind} yet; start one with `shoal run`")


def _unknown(kind: str, word: str, names: Sequence[str]) -> BadInput:
    if len(names) <= _SHOWN or difflib.get_close_matches(word, names, n=1):
        return UnknownName(kind, word, names)
    return BadInput(f"no {kind} named {word!r}; the latest are {', '.join(names[-_SHOWN:])}")


def _ambiguous(kind: str, word: str, fitting: Sequence[str]) -> BadInput:
    return BadInput(f"{word!r} matches {len(fitting)} {kind}s: {', '.join(fitting[-_SHOWN:])}; give more of the name")
