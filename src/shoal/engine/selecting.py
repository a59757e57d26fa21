"""Best of several: the workers of one step compared, and the one found whose work is gone on with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.adapters.host import this_host
from shoal.adapters.registry import adapter_of
from shoal.engine.contracts.hold import TRIAL
from shoal.engine.contracts.reading import patch
from shoal.engine.dispatch import Dispatch
from shoal.engine.job import Job
from shoal.engine.site import Site
from shoal.engine.stage_end import GOOD_ENOUGH
from shoal.git.difference import changed_files
from shoal.model.assignment import Assignment
from shoal.model.events import StepEnded, StepStarted
from shoal.model.plan import INNER, Step
from shoal.model.results import StepResult, WorkerResult
from shoal.model.select import Candidate, Select, contenders, judged, ranked, score_of
from shoal.model.status import Status

PATCH_BYTES = 64 * 1024
BINARY_LINES = 1000
"""What a binary file counts for among changed lines."""

JUDGE = """Several agents did the same task. Compare their changes, and say whose is best.

The task:
{task}

{criteria}{candidates}

End your answer with one JSON object on a line of its own: {{"ranking": [best, second, …]}} with their numbers."""


async def chosen(
    dispatch: Dispatch, step: Step, told: StepResult, base: str | None, reviewers: Mapping[str, Assignment]
) -> StepResult:
    """Rank the workers of *step* and pick the best; without one that will do, the step has failed."""
    select = step.select
    if select is None or told.status not in GOOD_ENOUGH:  # its own rule was not kept: there is nothing to choose from
        return told
    start = base or dispatch.site.base.commit
    candidates = [await _candidate(dispatch.site, one, start) for one in told.worker_results]
    verdict = None
    if "agent" in select.by and len(tied := contenders(select.by, candidates)) > 1:
        these = [one for one in told.worker_results if one.index in tied]
        verdict = await _verdict(dispatch, step, select, these, start, reviewers)
    ranking = ranked(select.by, candidates, verdict)
    status = Status.FAILED if ranking.winner is None else Status.SUCCEEDED
    why = ranking.why if ranking.winner is None else None
    return replace(told, status=status, selected=ranking.winner, ranking=ranking.rows, error=why)


async def _candidate(site: Site, one: WorkerResult, start: str) -> Candidate:
    trial = next((check for check in one.checks if check.type == TRIAL), None)
    contracts = [check for check in one.checks if check.type != TRIAL]
    return Candidate(
        index=one.index,
        is_good=one.status.is_good,
        exit_code=None if trial is None else 0 if trial.is_met else 1,
        score=score_of(trial.message) if trial is not None and trial.is_met else None,
        contracts_met=sum(check.is_met for check in contracts),
        contracts=len(contracts),
        lines_changed=await _lines(site, one, start),
    )


async def _lines(site: Site, one: WorkerResult, start: str) -> int | None:
    if one.commit is None:
        return 0 if one.status.is_good else None
    files = await changed_files(site.repository.git, start, one.commit)
    return sum(BINARY_LINES if file.added is None else file.added + (file.deleted or 0) for file in files)


async def _verdict(
    dispatch: Dispatch,
    step: Step,
    select: Select,
    tied: Sequence[WorkerResult],
    start: str,
    reviewers: Mapping[str, Assignment],
) -> list[int] | None:
    """Ask the judge; its answer is read, and nothing else of it counts."""
    task = reviewers[f"persona {select.persona}" if select.persona else f"agent {select.agent}"]
    name = f"{step.name}{INNER}judge"
    shown = [await _shown(dispatch.site, one, start) for one in tied]
    criteria = f"What counts: {select.criteria}\n\n" if select.criteria else ""
    prompt = JUDGE.format(task=step.task.prompt, criteria=criteria, candidates="\n\n".join(shown))
    job = Job(
        step=name,
        index=0,
        count=1,
        task=replace(task, name=name, prompt=prompt, timeout=select.timeout or task.timeout),
        adapter=adapter_of(task.agent, this_host()),
        base=start,
    )
    site = dispatch.site
    await site.ledger.append(StepStarted(run=site.run, step=name, workers=1, on_failure="fail_fast"))
    over = Status.CANCELLED
    try:
        result = await dispatch.done(job)
        over = Status.SUCCEEDED if result.status.is_good else Status.FAILED
    finally:
        await site.ledger.append(StepEnded(run=site.run, step=name, status=over))
    return judged(result.output, [one.index for one in tied]) if result.status.is_good else None


async def _shown(site: Site, one: WorkerResult, start: str) -> str:
    """Show one worker's changes, quoted line by line: they are material, and must not pass for our own words."""
    text = "" if one.commit is None else await patch(site.repository.git, start, one.commit, PATCH_BYTES)
    quoted = "\n".join(f"> {line}" for line in text.splitlines())
    return f"## Worker {one.index}\n\n{quoted or '(no changes)'}"
