"""What a program hands over to be merged: results, names of sessions, or sessions themselves, of one run or several."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from shoal.engine.merge.desk import Desk
from shoal.engine.site import Site
from shoal.errors import BadInput
from shoal.git.repository import inspect
from shoal.model.results import RunReport, WorkerResult
from shoal.store import ledger
from shoal.store.find import find_run, find_session
from shoal.store.fold import RunState, State, fold, report
from shoal.store.paths import StatePaths
from shoal.store.read import events


@contextlib.asynccontextmanager
async def desk_of(
    repo: Path, environ: Mapping[str, str], site: Site | None, workers: Sequence[str]
) -> AsyncIterator[Desk]:
    """Open a desk for the run that is under way, or for the one that the last of *workers* belongs to."""
    if site is not None:
        run = report(fold(events(site.paths, site.run)).runs[site.run])
        yield Desk(repository=site.repository, paths=site.paths, ledger=site.ledger, report=run)
        return
    repository = await inspect(repo, environ)
    paths = StatePaths.of(repository.home)
    chosen = _run(fold(events(paths)), workers)
    async with ledger.opened(paths) as book:
        yield Desk(repository=repository, paths=paths, ledger=book, report=chosen)


def handed(paths: StatePaths, given: Sequence[object]) -> list[WorkerResult]:
    """Find the result of each session that was *given*, in any of the ways in which a program names one."""
    return [one if isinstance(one, WorkerResult) else _result(paths, session_name(one)) for one in given]


def session_name(given: object) -> str:
    """Say which session is meant."""
    name = given if isinstance(given, str) else getattr(given, "session", None) or getattr(given, "session_id", None)
    if not isinstance(name, str):
        raise BadInput(f"{given!r:.80} is no session; give a result, a session, or the name of one")
    return name


def _result(paths: StatePaths, word: str) -> WorkerResult:
    state = find_session(fold(events(paths)), word)
    if state.result is None:
        raise BadInput(f"{state.session} has not ended yet; wait for it, then merge it")
    return state.result


def _run(state: State, workers: Sequence[str]) -> RunReport:
    if not workers:
        return report(find_run(state))
    session = find_session(state, workers[-1]).session
    return next(report(run) for run in state.runs.values() if _has(run, session))


def _has(run: RunState, session: str) -> bool:
    return any(session in step.sessions for step in run.steps.values())
