"""A whole run: its stages by their needs, its workers by their rules under one limit, and a report at the end."""

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace

from shoal.errors import FAULTS, ExitCode, ShoalError, first_error
from shoal.executors.kind import Executor
from shoal.executors.remote import open_executor
from shoal.git.repository import dirt
from shoal.model.events import Event, Recorded, RunEnded, RunStarted
from shoal.model.limits import ResourceLimits
from shoal.model.masking import name_short_secrets
from shoal.model.plan import Approval, Plan, Stage, Step, walk_stages
from shoal.model.policy import NETWORKS, Network
from shoal.model.results import RunBroken, RunReport, StepResult, exit_code
from shoal.model.status import Rule, Status, run_status, step_status
from shoal.patterns.limiter import Limiter
from shoal.proc.spawn import raise_file_limit
from shoal.runs.context import OpenRun, open_run
from shoal.runs.control import RunControl, hold_control
from shoal.runs.history import prune_history
from shoal.runs.overlaps import alternatives_of, watch_overlaps
from shoal.runs.preflight import budget_notes
from shoal.runs.request import RunRequest, StopSignal
from shoal.runs.resume import make_plan_event, record_resumed
from shoal.sandboxes.registry import confines
from shoal.sessions.context import RunContext
from shoal.sessions.limit_watch import describe_limits
from shoal.sessions.policy import list_agents, outside_notes
from shoal.sessions.setup.project import setup_notes
from shoal.steps.admission import Admission, admitting
from shoal.steps.attempts import WorkerRunner
from shoal.steps.gate import open_request_door
from shoal.steps.history import History
from shoal.steps.stage_outcome import record_stage_ended, record_stages_started
from shoal.steps.stages import StageRunner
from shoal.steps.step import StepRunner, make_all_workers
from shoal.steps.task_queue import open_queues
from shoal.steps.template_scope import TemplateScope
from shoal.steps.workers import run_together
from shoal.store.fold import Fold
from shoal.store.fold import report as make_report
from shoal.store.ledger import Listener
from shoal.store.reader import read_events
from shoal.store.requests import RequestDoor

STATUS_SECONDS = 3.0


async def record_start(
    context: RunContext, plan: Plan, *more: Event, limits: ResourceLimits | None = None
) -> RunStarted:
    """Record that the run begins, with everything known at that time; *limits* are those of tasks not known yet."""
    dirty = await _dirty(context)
    started = RunStarted(
        run=context.run,
        name=plan.name,
        base=context.base.commit,
        wall=context.sandbox.name,
        workspace=context.kind.name,
        owner=os.getpid(),
        host=platform.node(),
        notes=(
            *plan.notes,
            *budget_notes(plan),
            *setup_notes(context, plan),
            *dirty,
            *_gaps(context, plan),
            *_networks(plan),
            *_other_sandboxes(context, plan),
            *outside_notes(plan),
            *name_short_secrets(context.mask),
        ),
        limits=_limits(context, plan, limits),
        stages=tuple(stage.name for stage in walk_stages(plan.steps)),
    )
    await context.ledger.append(started, *more)
    return started


async def _dirty(context: RunContext) -> tuple[str, ...]:
    """Describe the uncommitted changes of the user's checkout; a huge checkout is not waited for."""
    if not (context.repository.top / ".git").exists():
        return ()
    try:
        async with asyncio.timeout(STATUS_SECONDS):
            uncommitted = await dirt(context.repository)
    except TimeoutError:
        return ("could not check for uncommitted changes: `git status` takes too long here",)
    if uncommitted == 1:
        return ("1 uncommitted change is not in the base: agents do not see it",)
    return (f"{uncommitted} uncommitted changes are not in the base: agents do not see them",) if uncommitted else ()


def _limits(context: RunContext, plan: Plan, otherwise: ResourceLimits | None) -> str:
    """Describe in one line the agents' limits, and what enforces them."""
    asked = [task.limits for task in plan.assignments] or [otherwise]
    each = {describe_limits(limits or ResourceLimits.default()) for limits in asked}
    how = " (not exact: see `shoal doctor`)" if context.enforcer.gaps else ""
    return f"{context.enforcer.name}{how}: {'; or '.join(sorted(each))} each"


def _other_sandboxes(context: RunContext, plan: Plan) -> tuple[str, ...]:
    """Name the steps in another sandbox than the run's, and warn about gates that agents can answer."""
    other = [step for step in plan.working if step.sandbox not in (None, context.sandbox.name)]
    notes = [f"step {step.name}: sandbox {step.sandbox} instead of the run's" for step in other]
    has_gates = any(isinstance(stage, Approval) for stage in walk_stages(plan.steps))
    names = (context.sandbox.name, *(step.sandbox for step in other if step.sandbox))
    if has_gates and not all(map(confines, names)):
        notes.append("an agent without a sandbox can answer gates itself")
    return tuple(notes)


def _networks(plan: Plan) -> tuple[str, ...]:
    """Say what agents on the gateway can reach, and which are on the host's network instead."""
    found: dict[Network, list[str]] = {}
    for agent in list_agents(plan.working):
        if agent.adapter.client is not None or agent.task.permitted.hosts:
            found.setdefault(agent.network, []).append(agent.step)
    hosts = dict.fromkeys(host for task in plan.assignments for host in task.permitted.hosts or ())
    reach = f"their models and {', '.join(hosts)}" if hosts else "their models and no other host"
    notes = []
    if Network.GATEWAY in found:
        notes.append(f"network gateway: agents reach {reach}, through a process of Shoal that holds the keys")
    if Network.HOST in found:
        notes.append(
            f"network host: the agents of {', '.join(found[Network.HOST])} reach every host, and get your login"
        )
    return tuple(notes)


def _gaps(context: RunContext, plan: Plan) -> tuple[str, ...]:
    """Describe what the sandbox does not protect, as far as it matters to this run."""
    networks = {network for task in plan.assignments for network in (task.network, task.agent.network) if network}
    on_host = any(NETWORKS[network].shares_host for network in networks)
    return context.sandbox.gaps if on_host or context.sandbox.has_gaps_offline else ()


async def record_stopped(stages: StageRunner, plan: Plan) -> None:
    """Record the end of each stage that was stopped or never began."""
    outer = {stage.name for stage in plan.steps}
    for stage in walk_stages(plan.steps):
        if stage.name in stages.outcomes or not (stage.name in outer or stages.steps.has_begun(stage.name)):
            continue
        result = replace(_result_of_stopped(stages, plan, stage), notes=stages.notes.get(stage.name, ()))
        visit = stages.steps.visits.get(stage.name, 1)
        await record_stage_ended(stages.steps.context, result, visit, is_stopped=True)


def judge_run(plan: Plan, stages: StageRunner, ended: Mapping[str, StepResult]) -> Status:
    """Return the status of the whole run: by the plan's own rule, or from its outer stages."""
    if plan.rule is not None:
        workers = [result for step in plan.working for result in ended[step.name].worker_results]
        return step_status(plan.rule, [result.status_for_step for result in workers])
    passed_over = {name for name, outcome in stages.outcomes.items() if outcome.is_passed_over}
    counted = [stage.name for stage in plan.steps if not stage.is_optional and stage.name not in passed_over]
    return run_status([ended[name].status for name in counted])


def _result_of_stopped(stages: StageRunner, plan: Plan, stage: Stage) -> StepResult:
    rounds = stages.rounds.get(stage.name, 1)
    if not isinstance(stage, Step):
        status = Status.CANCELLED
        return StepResult(step=stage.name, on_failure="fail_fast", status=status, worker_results=(), rounds=rounds)
    results = stages.steps.results(stage)
    # With a rule of the plan, a step is not judged alone: its workers were stopped for the sake of others.
    rule = Rule("settled") if plan.rule else Rule.on_failure(stage.on_failure)
    status = step_status(rule, [result.status_for_step for result in results])
    if plan.rule is None and status.is_usable:  # its workers had ended, but not the step
        status = Status.CANCELLED
    return StepResult(
        step=stage.name, on_failure=stage.on_failure, status=status, worker_results=results, rounds=rounds
    )


async def run(plan: Plan, request: RunRequest, *, stop: asyncio.Event, listen: Listener | None = None) -> RunReport:
    """Run *plan* and report; setting *stop* ends the agents, keeps their work and reports the results so far.

    Raises `RunBroken`, with the report, for any error after the first agent may have started.
    """
    began, work = time.monotonic(), None
    try:
        async with (
            open_run(replace(request, on_event=listen), plan) as opened,
            open_executor(opened.context, opened.plan) as executor,
        ):
            with open_request_door(opened.context) as door:
                record = RunRecord(opened.context)
                history = await _begin(opened, request)
                if executor is not None:
                    executor.fleet.announce()
                work = _Work(opened, record, _make_runner(opened.context, opened.plan, history, executor), door)
                try:
                    async with hold_control(_control(work, stop)):
                        await work.run(stop, approve_all=request.approve_all)
                except Exception as error:
                    work.break_off(error)
                    raise
                finally:
                    await record.end(work.status, time.monotonic() - began, work.error, work.code(stop))
                with contextlib.suppress(*FAULTS):  # the next run tries again
                    await prune_history(opened.context.repository, opened.context.paths, opened.plan.history)
    except Exception as error:
        if work is None:
            raise
        report = work.record.report()
        raise RunBroken(replace(report, error=report.error or _sentence(error)), error) from error
    return work.record.report()


class RunRecord:
    """The events of one run, folded as they are recorded: `report` is made of them."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._fold = Fold()
        self._seq = 0
        self._report: RunReport | None = None
        for recorded in read_events(context.paths, context.run):  # a resumed run
            self._take(recorded)
        context.ledger.subscribe(self._take)

    def _take(self, recorded: Recorded) -> None:
        if recorded.event.run == self._context.run:
            self._seq = max(self._seq, recorded.seq)
            self._fold.take(recorded)
            self._report = None

    async def end(self, status: Status, seconds: float, error: str | None = None, code: int | None = None) -> None:
        """Record the end of the run; the report has it even if the disk takes no more events.

        Without a *code*, the exit code follows from *status*.
        """
        ended = RunEnded(
            run=self._context.run,
            status=status,
            duration_seconds=round(seconds, 3),
            error=error,
            exit_code=exit_code(replace(self.report(), status=status, exit_code=code)),
        )
        self._take(Recorded(self._seq + 1, time.time(), ended))
        await self._context.ledger.append(ended)

    def steps(self) -> dict[str, StepResult]:
        """Return the results of the steps so far, by name."""
        return {result.step: result for result in self.report().steps}

    def report(self) -> RunReport:
        """Report what is recorded so far."""
        if self._report is None:
            self._report = make_report(self._fold.state().runs[self._context.run])
        return self._report


async def _begin(opened: OpenRun, request: RunRequest) -> History:
    """Record that the run starts or is resumed; return its history."""
    if request.resume is not None:
        return await record_resumed(opened.context, request.resume)
    # in one transaction: a run that is killed here either never began or can be resumed
    await record_start(opened.context, opened.plan, make_plan_event(opened.context, opened.plan, request))
    return History()


def _make_runner(context: RunContext, plan: Plan, history: History, executor: Executor | None) -> WorkerRunner:
    admission = Admission(context.paths.root, objects=context.repository.git)
    most = min(plan.max_concurrent, raise_file_limit())
    # Nodes admit sessions themselves: what this machine has free does not matter to them.
    limiter = admitting(context, admission, most) if executor is None else Limiter(most)
    return WorkerRunner(context, limiter, admission, history, executor)


def _control(work: "_Work", stop: asyncio.Event) -> RunControl:
    """Let requests of other processes do to the run what Ctrl-C does."""
    task = asyncio.current_task()
    return RunControl(
        runner=work.runner,
        door=work.door,
        stop_run=lambda by: stop.set(),
        end_run=None if task is None else lambda: task.cancel(),
    )


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__


@dataclass(slots=True)
class _Work:
    """The work of one run, and how far it has come."""

    opened: OpenRun
    record: RunRecord
    runner: WorkerRunner
    door: RequestDoor
    status: Status = Status.CANCELLED
    error: str | None = None
    _has_ended: bool = False
    _error_code: int | None = None

    async def run(self, stop: asyncio.Event, *, approve_all: bool) -> None:
        """Run all stages, and merge their work if the plan says so."""
        plan, runner = self.opened.plan, self.runner
        if plan.merging is not None:  # now, for an upgrade may replace the files while agents work
            from shoal.runs.auto_merge import auto_merge
        async with watch_overlaps(runner.context, alternatives_of(plan)):
            queues = await open_queues(plan, runner)
            steps = StepRunner(
                runner, self.opened.equipment, plan.reviewers, self.door, queues, approve_all=approve_all
            )
            stages = StageRunner(steps)
            await _until(stop, runner, _run_stages(stages, plan))
            await record_stopped(stages, plan)
            self.status, self._has_ended = judge_run(plan, stages, self.record.steps()), True
            if plan.merging is not None and not stop.is_set():
                resolver = plan.reviewers.get(plan.merging.resolver or "")
                await auto_merge(runner, plan.merging, stop, resolver)

    def break_off(self, error: Exception) -> None:
        """Note why the run cannot continue: its status is more than that of its agents."""
        self.error = self.runner.context.mask.text(_sentence(error))
        self._error_code = error.exit_code if isinstance(error, ShoalError) else ShoalError.exit_code
        if not self._has_ended:
            self.status = Status.FAILED
        elif self.status is Status.SUCCEEDED:
            self.status = Status.DEGRADED

    def code(self, stop: asyncio.Event) -> int | None:
        """Return the exit code of a run that failed or was stopped; `None` if it ran to its end."""
        if self._error_code is not None or not stop.is_set():
            return self._error_code
        return stop.exit_code if isinstance(stop, StopSignal) else ExitCode.INTERRUPTED


async def _run_stages(stages: StageRunner, plan: Plan) -> None:
    """Run all stages: by the plan's own rule if it has one, otherwise each by its own."""
    steps = stages.steps
    if plan.rule is None:
        await stages.run(plan.steps, None, _scope(steps.context, plan))
        return
    await record_stages_started(steps.context, plan.steps)
    await run_together(steps.runner, make_all_workers(steps, plan.working), plan.rule)


def _scope(context: RunContext, plan: Plan) -> TemplateScope:
    given = {} if plan.input is None else {"input": plan.input}
    return TemplateScope({**given, "run": {"id": context.run, "pipeline": plan.name}})


async def _until(stop: asyncio.Event, runner: WorkerRunner, work: Coroutine[None, None, None]) -> None:
    """Run *work* until it ends, or cancel it when *stop* is set: each session keeps what its agent did.

    When cancelled after that, it ends the sessions at once: task groups that are already ending would not pass it on.
    """
    try:
        async with asyncio.TaskGroup() as group:
            doing, stopping = group.create_task(work), group.create_task(stop.wait())
            try:
                await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
                doing.cancel()
                stopping.cancel()
                await asyncio.wait((doing,))
            except asyncio.CancelledError:
                if stop.is_set():  # it was set just before
                    runner.end_at_once()
                raise
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
