"""Replay a recorded run in a test: the same plan and the same answers, without a key, a network or a model."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.git.repository import inspect
from shoal.model.plan import Plan
from shoal.model.results import RunReport
from shoal.pipeline.load import load
from shoal.pipeline.plan import plan as make_plan
from shoal.runs.replay import ReplayComparison, compare_runs, find_recorded, find_replay, name_replay, replay_environ
from shoal.runs.request import RunRequest
from shoal.runs.run import run as run_plan
from shoal.store.killed_runs import read_state
from shoal.store.lookup import find_run
from shoal.store.paths import StatePaths


@dataclass(frozen=True, slots=True)
class Replayed:
    """A finished replay: its report, and how its results compare with the recorded ones."""

    report: RunReport
    comparison: ReplayComparison

    @property
    def is_same(self) -> bool:
        """Return whether every agent asked and left the same as before."""
        return not self.comparison.differences and not self.comparison.divergences


async def replay(
    folder: Path | str = ".",
    run: str | None = None,
    *,
    file: Path | str | None = None,
    pipeline: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Replayed:
    """Replay *run* of the repository at *folder*, the latest by default, as it was or with the pipeline of *file*."""
    place = Path(folder)
    known = replay_environ(environ)
    repository = await inspect(place, known)
    paths = StatePaths.of(repository.home)
    before = find_recorded(paths, read_state(paths), run)
    if file is None:
        plan: Plan = find_replay(paths, before, known, place)
    else:
        plan = make_plan(load(Path(file)), pipeline, environ=known)
    request = RunRequest(
        folder=place,
        environ=known,
        name=plan.name,
        run=name_replay(before),
        replay=before.run,
        base=before.base,
        strategy=plan.isolation_strategy,
        sandbox=plan.sandbox,
        approve_all=True,
    )
    report = await run_plan(plan, request, stop=asyncio.Event())
    after = find_run(read_state(paths), report.run)
    return Replayed(report, await compare_runs(repository, before, after))
