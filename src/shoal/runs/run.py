"""A whole run: its stages by their needs, its workers by their rules under one limit, and a report at the end."""

import asyncio
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.errors import ShoalError, first_of
from shoal.git.repository import dirt
from shoal.model.events import RunEnded, RunStarted
from shoal.model.limits import ResourceLimits
from shoal.model.merge import MergeReport
from shoal.model.network import NETWORKS
from shoal.model.overlap import Overlap
from shoal.model.plan import INNER, Approval, Plan, Stage, Step, everything
from shoal.model.results import RunBroken, RunReport, StepResult
from shoal.model.rule import Rule
from shoal.model.status import Status
from shoal.proc.spawn import raise_file_limit
from shoal.runs.auto_merge import auto_merge, resolving_steps
from shoal.runs.context import open_run
from shoal.runs.overlaps import alternatives_of, overlaps_told
from shoal.runs.request import RunRequest
from shoal.sandboxes.registry import confines
from shoal.sessions.context import RunContext
from shoal.sessions.limit_watch import spelt
from shoal.sessions.policy import outside_notes
from shoal.sessions.session import name_short_secrets
from shoal.sessions.setup.project import setup_notes
from shoal.steps.admission import Admission, admitting
from shoal.steps.attempts import WorkerRunner
from shoal.steps.gate import door_of
from shoal.steps.outcome import GOOD_ENOUGH, record_stage_ended, record_stages_started
from shoal.steps.stages import StageRunner
from shoal.steps.step import StepRunner, all_jobs
from shoal.steps.template_scope import TemplateScope
from shoal.steps.workers import Equipment, together, verdict
from shoal.store.fold import fold
from shoal.store.fold import report as folded
from shoal.store.ledger import Listener
from shoal.store.reader import read_events

STATUS_SECONDS = 3.0


async def record_start(context: RunContext, plan: Plan, limits: ResourceLimits | None = None) -> RunStarted:
    """Record that the run begins; *limits* are those of tasks that are not known yet."""
    dirty = await _dirty(context)
    started = RunStarted(
        run=context.run,
        name=plan.name,
        base=context.base.commit,
        wall=context.sandbox.name,
        workspace=context.kind.name,
        owner=os.getpid(),
        notes=(
            *plan.notes,
            *setup_notes(context, plan),
            *dirty,
            *_gaps(context, plan),
            *_other_walls(context, plan),
            *outside_notes(plan),
            *name_short_secrets(context.mask),
        ),
        limits=_limits(context, plan, limits),
    )
    await context.ledger.append(started)
    return started


async def _dirty(context: RunContext) -> tuple[str, ...]:
    """Say what of the user's checkout is not in the base; a huge one is not waited for."""
    if not (context.repository.top / ".git").exists():
        return ()
    try:
        async with asyncio.timeout(STATUS_SECONDS):
            uncommitted = await dirt(context.repository)
    except TimeoutError:
        return ("whether your checkout has uncommitted changes is not known: `git status` takes long here",)
    if uncommitted == 1:
        return ("1 uncommitted change is not in the base: agents do not see it",)
    return (f"{uncommitted} uncommitted changes are not in the base: agents do not see them",) if uncommitted else ()


def _limits(context: RunContext, plan: Plan, otherwise: ResourceLimits | None) -> str:
    """Say in one line what holds the agents, and to what."""
    asked = [task.limits for task in plan.assignments] or [otherwise]
    each = {spelt(limits or ResourceLimits.unnamed()) for limits in asked}
    how = " (not exact: `shoal doctor` says what it holds)" if context.enforcer.gaps else ""
    return f"{context.enforcer.name}{how}: {'; or '.join(sorted(each))} each"


def _other_walls(context: RunContext, plan: Plan) -> tuple[str, ...]:
    """Name the steps that are not behind the run's wall, and gates that nothing keeps agents away from."""
    other = [step for step in plan.working if step.sandbox not in (None, context.sandbox.name)]
    told = [f"step {step.name}: wall {step.sandbox}, in place of the run's" for step in other]
    has_gates = any(isinstance(stage, Approval) for stage in everything(plan.steps))
    names = (context.sandbox.name, *(step.sandbox for step in other if step.sandbox))
    if has_gates and not all(map(confines, names)):
        told.append("an agent without a sandbox can answer gates itself")
    return tuple(told)


def _gaps(context: RunContext, plan: Plan) -> tuple[str, ...]:
    """Say what the sandbox does not protect, as far as it matters to this run."""
    networks = {network for task in plan.assignments for network in (task.network, task.agent.network) if network}
    on_host = any(NETWORKS[network].shares_host for network in networks)
    return context.sandbox.gaps if on_host or context.sandbox.has_gaps_offline else ()


async def collect_results(performance: StageRunner, plan: Plan) -> tuple[StepResult, ...]:
    """Say how each stage ended; one that was stopped or never began is recorded only here."""
    found: list[StepResult] = []
    for stage in everything(plan.steps):
        if (outcome := performance.outcomes.get(stage.name)) is not None:
            found.append(outcome.result)
        elif not _is_inner(stage.name) or performance.steps.has_begun(stage.name):
            notes = performance.notes.get(stage.name, ())
            result = replace(_stopped_result(performance, plan, stage), notes=notes)
            visit = performance.steps.visits.get(stage.name, 1)
            await record_stage_ended(performance.steps.context, result, visit, is_stopped=True)
            found.append(result)
    return (*found, *_judges(performance, {one.step for one in found}))


def _judges(performance: StageRunner, known: set[str]) -> list[StepResult]:
    """Give the sessions of those who chose between workers: no step of the plan, but their usage is the run's."""
    return [
        StepResult(
            step=place.step,
            on_failure="fail_fast",
            status=Status.SUCCEEDED if one.status.is_good else Status.FAILED,
            worker_results=(one,),
            error=one.error,
        )
        for place, one in performance.steps.runner.results.items()
        if place.step not in known and place.step.endswith(f"{INNER}judge")
    ]


def run_status(plan: Plan, performance: StageRunner, ended: tuple[StepResult, ...]) -> Status:
    """Say how the whole run ended."""
    if plan.rule is not None:
        return verdict(plan.rule, [worker for step in ended for worker in step.worker_results])
    spared = {stage.name for stage in plan.steps if stage.is_optional}
    spared |= {name for name, one in performance.outcomes.items() if one.is_passed_over or _is_inner(name)}
    statuses = {one.status for one in ended if one.step not in spared and not _is_inner(one.step)}
    if statuses <= {Status.SUCCEEDED}:
        return Status.SUCCEEDED
    if Status.SUCCEEDED in statuses or Status.DEGRADED in statuses:
        return Status.DEGRADED
    return Status.CANCELLED if statuses == {Status.CANCELLED} else Status.FAILED


def _is_inner(name: str) -> bool:
    return INNER in name


def _stopped_result(performance: StageRunner, plan: Plan, stage: Stage) -> StepResult:
    rounds = performance.rounds.get(stage.name, 1)
    if not isinstance(stage, Step):
        status = Status.CANCELLED
        return StepResult(step=stage.name, on_failure="fail_fast", status=status, worker_results=(), rounds=rounds)
    results = performance.steps.results(stage)
    # By the plan's own rule a step is not judged alone: its workers were stopped for the sake of others.
    rule = Rule("settled") if plan.rule else Rule.on_failure(stage.on_failure)
    status = verdict(rule, results)
    if plan.rule is None and status in GOOD_ENOUGH:  # its workers had ended, and the step had not
        status = Status.CANCELLED
    return StepResult(
        step=stage.name, on_failure=stage.on_failure, status=status, worker_results=results, rounds=rounds
    )


async def run(plan: Plan, request: RunRequest, *, stop: asyncio.Event, listen: Listener | None = None) -> RunReport:
    """Run *plan* and report; setting *stop* ends the agents, keeps their work and reports what there is.

    Raises `RunBroken`, which has the report, for whatever goes wrong after the first agent may have begun.
    """
    began, report = time.monotonic(), None
    try:
        async with open_run(replace(request, on_event=listen), plan) as opened:
            context, plan = opened.context, opened.plan
            work = _Work(plan, await record_start(context, plan), _dispatch(context, plan))
            try:
                await work.do(opened.equipment, stop, approve_all=request.approve_all)
            except Exception as error:
                work.break_off(error)
                raise
            finally:
                report = work.report(round(time.monotonic() - began, 3))
                await context.ledger.append(work.ended(report))
    except Exception as error:
        if report is None:
            raise
        raise RunBroken(replace(report, error=report.error or _sentence(error)), error) from error
    return report


def _dispatch(context: RunContext, plan: Plan) -> WorkerRunner:
    admission = Admission(context.paths.root)
    return WorkerRunner(context, admitting(context, admission, min(plan.max_concurrent, raise_file_limit())), admission)


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__


@dataclass(slots=True)
class _Work:
    """The work of one run, and how far it has come."""

    plan: Plan
    words: RunStarted
    runner: WorkerRunner
    status: Status = Status.CANCELLED
    steps: tuple[StepResult, ...] | None = None
    merge: MergeReport | None = None
    overlaps: Sequence[Overlap] = ()
    error: str | None = None

    async def do(self, equipment: Mapping[str, Equipment], stop: asyncio.Event, *, approve_all: bool) -> None:
        """Do all stages, and bring the work together where the plan says so."""
        plan, runner = self.plan, self.runner
        async with overlaps_told(runner.context, alternatives_of(plan)) as overlaps:
            self.overlaps = overlaps.found
            with door_of(runner.context) as door:
                steps = StepRunner(runner, equipment, plan.reviewers, door, approve_all=approve_all)
                performance = StageRunner(steps)
                await _until(stop, runner, _run_stages(performance, plan))
            self.steps = await collect_results(performance, plan)
            self.status = run_status(plan, performance, self.steps)
            if plan.merging is not None and not stop.is_set():
                resolver = plan.reviewers.get(plan.merging.resolver or "")
                self.merge = await auto_merge(runner, plan.merging, stop, resolver)
                self.steps = (*self.steps, *resolving_steps(runner.context))

    def break_off(self, error: Exception) -> None:
        """Note why it cannot go on: agents that all ended well are not the whole of a run."""
        self.error = self.runner.context.mask.text(_sentence(error))
        if self.steps is None:
            self.status = Status.FAILED
        elif self.status is Status.SUCCEEDED:
            self.status = Status.DEGRADED

    def report(self, seconds: float) -> RunReport:
        """Give what is known."""
        context, words = self.runner.context, self.words
        return RunReport(
            run=context.run,
            status=self.status,
            base=context.base.commit,
            duration_seconds=seconds,
            steps=_recorded_steps(context) if self.steps is None else self.steps,
            wall=words.wall,
            workspace=words.workspace,
            limits=words.limits,
            notes=words.notes,
            usage=self.runner.spent,
            merge=self.merge,
            overlaps=tuple(self.overlaps),
            error=self.error,
        )

    def ended(self, report: RunReport) -> RunEnded:
        """Say the same to the ledger."""
        return RunEnded(
            run=report.run, status=report.status, duration_seconds=report.duration_seconds, error=report.error
        )


def _recorded_steps(context: RunContext) -> tuple[StepResult, ...]:
    """Give the steps as far as the ledger knows them."""
    try:
        return folded(fold(read_events(context.paths, context.run)).runs[context.run]).steps
    except (ShoalError, KeyError):  # the ledger itself is what broke
        return ()


async def _run_stages(performance: StageRunner, plan: Plan) -> None:
    """Do all stages: by the plan's own rule if it has one, else each by its own."""
    steps = performance.steps
    if plan.rule is None:
        await performance.run(plan.steps, None, _scope(steps.context, plan))
        return
    await record_stages_started(steps.context, plan.steps)
    await together(steps.runner, all_jobs(steps, plan.working), plan.rule)


def _scope(context: RunContext, plan: Plan) -> TemplateScope:
    given = {} if plan.input is None else {"input": plan.input}
    return TemplateScope({**given, "run": {"id": context.run, "pipeline": plan.name}})


async def _until(stop: asyncio.Event, runner: WorkerRunner, work: Coroutine[None, None, None]) -> None:
    """Do *work* to its end, or cancel it when *stop* is set: each session keeps what its agent did.

    Cancelled after that, it ends the sessions at once: task groups that are ending already would not pass that on.
    """
    try:
        async with asyncio.TaskGroup() as group:
            doing, told = group.create_task(work), group.create_task(stop.wait())
            try:
                await asyncio.wait((doing, told), return_when=asyncio.FIRST_COMPLETED)
                doing.cancel()
                told.cancel()
                await asyncio.wait((doing,))
            except asyncio.CancelledError:
                if stop.is_set():  # it was asked before, if only an instant ago
                    runner.end_at_once()
                raise
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
