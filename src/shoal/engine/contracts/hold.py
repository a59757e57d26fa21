"""The work of a session held to the contracts of its step, before anybody hears that it is good."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.adapters.host import this_host
from shoal.adapters.registry import adapter_of
from shoal.engine.contracts.bench import Bench
from shoal.engine.contracts.check import check
from shoal.engine.contracts.committed import CommittedBench, Reviewer, Work
from shoal.engine.job import Job
from shoal.engine.site import Site
from shoal.errors import ShoalError
from shoal.model.artifact import Produced
from shoal.model.contract import TRIAL, Checked, Passes, failure
from shoal.model.results import WorkerResult
from shoal.model.select import score_of
from shoal.model.status import Status
from shoal.model.usage import summed


async def held_to_contracts(
    site: Site,
    job: Job,
    result: WorkerResult,
    box: Path,
    stop: asyncio.Event,
    way: Callable[[Job], Work],
    left: Sequence[Produced],
) -> WorkerResult:
    """Check good work by all that its step asks of it; what does not meet that has failed, and says why."""
    if not result.status.is_good or not (job.contracts or job.trial):
        return result
    bench = CommittedBench(
        site=site,
        job=job,
        commit=result.commit,
        box=box,
        stop=stop,
        way=way,
        reviewers=_reviewers(job),
        artifacts={one.name: one.content for one in left},
    )
    checks = await check(job.contracts, bench)
    why = failure(checks)
    if job.trial is not None and why is None:
        checks = (*checks, await _tried(job.trial, bench))
    result = replace(result, usage=summed((result.usage, *bench.spent)))
    if stop.is_set():
        return replace(result, status=Status.CANCELLED, checks=checks, error="it was stopped while it was checked")
    if why is None:
        return replace(result, checks=checks)
    return replace(result, status=Status.FAILED, checks=checks, error=why)


def _reviewers(job: Job) -> dict[str, Reviewer]:
    host = this_host()
    return {name: Reviewer(task=task, adapter=adapter_of(task.agent, host)) for name, task in job.reviewers.items()}


async def _tried(trial: Passes, bench: Bench) -> Checked:
    """Run a selection's command: it only compares, and its last line may be a score."""
    try:
        ran = await bench.run(trial.argv, trial.timeout)
    except (ShoalError, OSError, TimeoutError, ValueError) as error:
        return Checked(TRIAL, is_met=False, message=str(error) or type(error).__name__, is_warning=True)
    is_met = ran.exit_code == 0 and ran.failure is None
    score = score_of(ran.output) if is_met else None
    said = (ran.failure or f"it exited with {ran.exit_code}") if score is None else repr(score)
    return Checked(TRIAL, is_met=is_met, message=said, is_warning=True)
