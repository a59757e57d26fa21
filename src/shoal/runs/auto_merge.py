"""Merge a run's work at its end, verified as it lands."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

from shoal.errors import BadInput
from shoal.merge.merge import merge
from shoal.merge.request import ConflictOptions, MergeContext, MergeRequest, Verify
from shoal.merge.verify import VerificationStopped, find_recorded_worker, open_verifier, setup_worker
from shoal.model.conflict_rule import Merging
from shoal.model.contract import CommandContract
from shoal.model.merge import MergeReport
from shoal.model.plan import Plan
from shoal.model.resolved_task import ResolvedTask
from shoal.proc.spawn import raise_file_limit
from shoal.runs.context import home_of, open_run
from shoal.runs.request import RunRequest
from shoal.steps.admission import Admission, admitting
from shoal.steps.attempts import WorkerRunner
from shoal.store.fold import fold, report
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.store.run_state import RunState

AT_ONCE = 3
"""How many verifications run at the same time: all but the first run ahead of need."""


async def auto_merge(
    runner: WorkerRunner, how: Merging, stop: asyncio.Event, resolver: ResolvedTask | None = None
) -> MergeReport | None:
    """Merge what succeeded, as *how* says; `None` when it was stopped before anything was decided."""
    context = runner.context
    run = report(fold(read_events(context.paths, context.run)).runs[context.run])
    merge_context = MergeContext(repository=context.repository, paths=context.paths, ledger=context.ledger, report=run)
    request = MergeRequest(
        strategy=how.strategy,
        into=how.into,
        allow_executable=how.allow_executable_config,
        allow_secrets=how.allow_secrets,
        resolving=ConflictOptions(rule=how.on_conflict, resolver=resolver, stop=stop),
    )
    async with prepare_merge_request(runner, request, how.verify) as whole:
        try:
            return await merge(merge_context, whole)
        except VerificationStopped:
            return None


@contextlib.asynccontextmanager
async def prepare_merge_request(
    runner: WorkerRunner, request: MergeRequest, verify: CommandContract | None
) -> AsyncIterator[MergeRequest]:
    """Let a merge run sessions with *runner*, within its limiter."""
    limiter, stop = runner.limiter, request.resolving.stop
    async with open_verify(runner, verify, stop) as check:
        width = min(AT_ONCE, limiter.max_concurrent)
        yield replace(request, verify=check, width=width, resolving=replace(request.resolving, runner=runner))


@contextlib.asynccontextmanager
async def open_verify(
    runner: WorkerRunner, command: CommandContract | None, stop: asyncio.Event | None = None
) -> AsyncIterator[Verify | None]:
    """Yield a function that returns why a commit fails verification; `None` without a *command*."""
    if command is None:
        yield None
        return
    worker = setup_worker(runner)
    how = open_verifier(runner.context, command, limiter=runner.limiter, worker=worker, stop=stop)
    async with how as verifier:

        async def verify(commit: str) -> str | None:
            found = await verifier(commit)
            return None if found.ok else found.log

        yield verify


@contextlib.asynccontextmanager
async def open_recorded_run(
    folder: Path, environ: Mapping[str, str], run: RunState, at_once: int, resolver: ResolvedTask | None = None
) -> AsyncIterator[WorkerRunner]:
    """Yield what runs sessions for *run*, up to *at_once*; whatever they leave is recorded as the run's."""
    if not run.status.is_ended:
        raise BadInput(f"{run.run} has not ended yet; wait with `shoal wait`, then merge it")
    plan = Plan(name=run.name, steps=(), reviewers={} if resolver is None else {"resolver": resolver})
    request = RunRequest(folder=folder, environ=environ, name=run.name, run=run.run, is_reopened=True, base=run.base)
    request = replace(request, sandbox=run.wall or request.sandbox)
    worker = find_recorded_worker(StatePaths.of(await home_of(request)), run.run, environ)
    if worker is not None:  # the output of set-up may contain its secrets
        request = replace(request, secrets=worker.task.secret_values)
    async with open_run(request, plan) as opened:
        context = opened.context
        admission = Admission(context.paths.root, objects=context.repository.git)
        yield WorkerRunner(context, admitting(context, admission, min(at_once, raise_file_limit())), admission)
