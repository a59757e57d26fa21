"""Replay a recorded run: its plan again, answered from its recording, and what differs from it at the end."""

import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import BadInput
from shoal.gateway.find_upstreams import USUAL
from shoal.gateway.recording import DIVERGED
from shoal.git.run import git_text
from shoal.model.plan import Plan
from shoal.model.repository import Repository
from shoal.runs.resume import find_resumable
from shoal.store.lookup import find_run
from shoal.store.paths import StatePaths
from shoal.store.run_state import RunState, SessionState, State

NO_KEY = "a-replay-needs-no-key"
NO_CHANGES = "no changes"

SessionName = tuple[str, int, int, int]
"""A step, a worker, a visit and an attempt: the same in every run of a plan."""


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """How the results of a replay compare with those of its recording."""

    same: int
    differences: tuple[str, ...]
    divergences: tuple[str, ...] = ()
    """Where agents asked what they had not asked before, the first one first."""

    @property
    def lines(self) -> tuple[str, ...]:
        """What a person should know, line by line."""
        if not self.divergences and not self.differences:
            return (f"replayed: the results of {_count(self.same)} are the same",)
        return *self.divergences[:1], "the replay differs:", *(f"  {line}" for line in self.differences)


def _count(agents: int) -> str:
    return "1 agent" if agents == 1 else f"{agents} agents"


def replay_environ(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment, by default this process's, with a stand-in for every key that is not there."""
    environ = os.environ if environ is None else environ
    return {**{usual.keys[0]: NO_KEY for usual in USUAL if usual.keys}, **environ}


def find_recorded(paths: StatePaths, state: State, word: str | None) -> RunState:
    """Find the run that *word* names, or else the latest that was recorded."""
    if word is not None:
        return find_run(state, word)
    for name in reversed(list(state.runs)):
        if paths.recording(name).is_dir():
            return state.runs[name]
    raise BadInput("no run was recorded here; record a run with `shoal run --record`")


def find_replay(paths: StatePaths, run: RunState, environ: Mapping[str, str], folder: Path) -> Plan:
    """Read the plan of a recorded run; raise `BadInput` for one that was not recorded."""
    if not paths.recording(run.run).is_dir():
        raise BadInput(f"{run.run} was not recorded; record a run with `shoal run --record`")
    return find_resumable(paths, run, environ, folder).plan


def name_replay(run: RunState) -> str:
    """Name a replay after its run."""
    return f"{run.name or 'run'}-replay-{secrets.token_hex(2)}"


async def compare_runs(repository: Repository, before: RunState, after: RunState) -> ReplayComparison:
    """Compare the trees of all sessions of two runs."""
    old, new = [dict(await _trees(repository, run)) for run in (before, after)]
    names = list(dict.fromkeys((*old, *new)))
    differences = [
        f"{_show_name(name)}: {old.get(name, 'not started')} became {new.get(name, 'not started')}"
        for name in names
        if old.get(name) != new.get(name)
    ]
    errors = ((session.seq, session.result.error or "") for session in _sessions(after) if session.result)
    divergences = tuple(error for _, error in sorted(errors) if error.startswith(DIVERGED))
    return ReplayComparison(len(names) - len(differences), tuple(differences), divergences)


async def _trees(repository: Repository, run: RunState) -> list[tuple[SessionName, str]]:
    found: list[tuple[SessionName, str]] = []
    for name, commit in _commits(run):
        tree = NO_CHANGES
        if commit is not None:
            tree = f"tree {(await git_text(repository.git, 'rev-parse', f'{commit}^{{tree}}'))[:12]}"
        found.append((name, tree))
    return found


def _sessions(run: RunState) -> Iterator[SessionState]:
    for step in run.steps.values():
        yield from step.sessions.values()


def _commits(run: RunState) -> Iterator[tuple[SessionName, str | None]]:
    for step in run.steps.values():
        for session in step.sessions.values():
            commit = session.result.commit if session.result else None
            yield (step.step, session.index, session.visit, session.attempt), commit


def _show_name(name: SessionName) -> str:
    step, index, _, attempt = name
    return f"{step} worker {index}" + (f", attempt {attempt}" if attempt > 1 else "")
