"""Select the best of several workers: compare their work, and choose the one to continue with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter_of
from shoal.contracts.committed_files import patch
from shoal.contracts.workbench import quote_lines
from shoal.git.diff import ChangedFile, list_changed_files
from shoal.model.events import StepEnded, StepStarted
from shoal.model.plan import INNER, Step
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import StepResult, WorkerResult
from shoal.model.select import SelectCandidate, contenders, parse_judgement, rank_results, score_of
from shoal.model.status import Status, single_status
from shoal.sessions.context import RunContext
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import WorkerKey, WorkerRunner
from shoal.steps.template_scope import TemplateScope
from shoal.steps.workers import fill_in, trusts_base

PATCH_BYTES = 64 * 1024
BINARY_LINES = 1000
"""A binary file counts as this many changed lines."""

ASKED = """Several agents did the same task. Compare their changes, and say whose is best.

The task:
{task}

{criteria}{candidates}

End your answer with one JSON object on a line of its own: {{"ranking": [best, second, …]}} with their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """The judging agent and its criteria, with all texts filled in."""

    task: ResolvedTask
    criteria: str | None


def judge_of(step: Step, scope: TemplateScope, reviewers: Mapping[str, ResolvedTask]) -> Judge | None:
    """Prepare the judge of *step*, if it has one; raises `BadInput` for a text that cannot be filled in."""
    if step.select is None or step.select.judge is None:
        return None
    here = scope.having(worker={"index": 0, "count": step.workers})
    task = fill_in(reviewers[step.select.judge], here)
    criteria = None if step.select.criteria is None else here.render(step.select.criteria)
    return Judge(task=replace(task, timeout=step.select.timeout or task.timeout), criteria=criteria)


async def select_worker(
    runner: WorkerRunner, step: Step, result: StepResult, base: str | None, judge: Judge | None
) -> StepResult:
    """Rank the workers of *step* and choose the best; if none qualifies, the step has failed."""
    select = step.select
    if select is None or not result.status.is_usable:  # its own rule was not met: there is nothing to choose from
        return result
    start = base or runner.context.base.commit
    candidates = [await _candidate(runner.context, worker, start) for worker in result.worker_results]
    verdict = None
    if judge is not None and "agent" in select.by and len(tied := contenders(select.by, candidates)) > 1:
        these = [worker for worker in result.worker_results if worker.index in tied]
        verdict = await _verdict(runner, step, judge, these, start)
    ranking = rank_results(select.by, candidates, verdict)
    status = Status.FAILED if ranking.winner is None else Status.SUCCEEDED
    why = ranking.why if ranking.winner is None else None
    return replace(result, status=status, selected=ranking.winner, ranking=ranking.rows, error=why)


async def _candidate(context: RunContext, result: WorkerResult, start: str) -> SelectCandidate:
    trial = next((check for check in result.checks if check.is_trial), None)
    contracts = [check for check in result.checks if not check.is_trial]
    files = () if result.commit is None else await list_changed_files(context.repository.git, start, result.commit)
    return SelectCandidate(
        index=result.index,
        is_good=result.status.is_good,
        exit_code=None if trial is None else 0 if trial.is_met else 1,
        failure=None if trial is None or trial.is_met else trial.message,
        score=score_of(trial.message) if trial is not None and trial.is_met else None,
        contracts_met=sum(check.is_met for check in contracts),
        contracts=len(contracts),
        lines_changed=_lines(files) if result.commit or result.status.is_good else None,
        has_changes=bool(files),
    )


def _lines(files: Sequence[ChangedFile]) -> int:
    return sum(BINARY_LINES if file.added is None else file.added + (file.deleted or 0) for file in files)


async def _verdict(
    runner: WorkerRunner, step: Step, judge: Judge, tied: Sequence[WorkerResult], start: str
) -> list[int] | None:
    """Ask the judge; only its answer counts."""
    name = f"{step.name}{INNER}judge"
    shown = [await _quote_changes(runner.context, worker, start) for worker in tied]
    criteria = f"What counts: {judge.criteria}\n\n" if judge.criteria else ""
    prompt = ASKED.format(task=_quote_prompts(runner, step, tied), criteria=criteria, candidates="\n\n".join(shown))
    worker = WorkerSpec(
        step=name,
        index=0,
        count=1,
        task=replace(judge.task, name=name, prompt=prompt),
        adapter=adapter_of(judge.task.agent, this_host()),
        base=start,
        trusts_base=trusts_base(step, start),
        visit=runner.workers[WorkerKey(step.name, tied[0].index)].visit,
    )
    context = runner.context
    await context.ledger.append(StepStarted(run=context.run, step=name, workers=1, on_failure="fail_fast"))
    over, error = Status.CANCELLED, None
    try:
        result = await runner.run(worker)
        over, error = single_status(result.status), result.error
    finally:
        await context.ledger.append(StepEnded(run=context.run, step=name, status=over, error=error))
    return parse_judgement(result.output, [worker.index for worker in tied]) if result.status.is_good else None


def _quote_prompts(runner: WorkerRunner, step: Step, tied: Sequence[WorkerResult]) -> str:
    """Quote the workers' prompts, each its own if they differ: they may contain words of earlier agents."""
    tasks = {worker.index: runner.workers[WorkerKey(step.name, worker.index)].task for worker in tied}
    asked = {index: quote_lines(task.title if step.is_command else task.prompt) for index, task in tasks.items()}
    if len(set(asked.values())) == 1:
        return asked[tied[0].index]
    return "\n\n".join(f"Worker {index}:\n{words}" for index, words in asked.items())


async def _quote_changes(context: RunContext, result: WorkerResult, start: str) -> str:
    """Quote a worker's changes line by line: they are material, and must not look like our own words."""
    text = "" if result.commit is None else await patch(context.repository.git, start, result.commit, PATCH_BYTES)
    return f"## Worker {result.index}\n\n{quote_lines(text) or '(no changes)'}"
