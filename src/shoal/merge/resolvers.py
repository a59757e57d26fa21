"""Resolve conflicts by the requested rule; what the rule cannot resolve is left to a person, with the reason."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter_of
from shoal.contracts.workbench import list_paths
from shoal.errors import FAULTS
from shoal.git.commits import Commit
from shoal.git.conflict_sides import find_markers, has_sides, merge_favouring
from shoal.git.diff import list_changed_paths
from shoal.git.merge import MergeRepository
from shoal.merge.resolver_prompt import SessionConflict, is_resolvable, write_prompt
from shoal.merge.tree_check import Verified
from shoal.merge.verify import VerificationStopped
from shoal.model.conflict_rule import ConflictRule
from shoal.model.events import StepEnded, StepStarted
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import Purpose, WorkerResult
from shoal.model.retry import Retry
from shoal.model.status import Status
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import WorkerKey, WorkerRunner
from shoal.steps.prompt import next_attempt

MAX_TRIES = 2
RESOLVE, REDO = "__resolve", "__redo"
"""Suffixes of the steps that resolve a step's conflicts."""

Land = Callable[[str, str], str]
"""Makes the commit that lands a tree on the tip; the second argument is the commit whose history comes with it."""
VerifyCommit = Callable[[str], Awaitable[Verified]]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The conflict is resolved in *commit*, which no ref holds; *source* is the work that it contains."""

    commit: str
    source: str
    results: tuple[WorkerResult, ...] = ()
    """The sessions that worked on it; the flags of the last one apply to the resolution."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The conflict is left to a person, because of *why*; the attempts are on the branches of *results*."""

    why: str
    results: tuple[WorkerResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolverInputs:
    """What a rule may need to resolve a conflict; unneeded parts may be missing."""

    bench: MergeRepository
    land: Land
    verify: VerifyCommit | None = None
    runner: WorkerRunner | None = None
    resolver: ResolvedTask | None = None
    """The agent that resolves, for `agent`."""
    key: WorkerKey | None = None
    """The worker whose work conflicts, after which the resolving step is named."""
    worker: WorkerSpec | None = None
    """That worker, for `redo`."""
    before: WorkerResult | None = None
    """The result of that worker, for `redo`."""


async def resolve(rule: ConflictRule, conflict: SessionConflict, inputs: ResolverInputs) -> Resolved | Unresolved:
    """Try to resolve *conflict* by *rule*; any failure becomes the reason, and nothing is lost."""
    try:
        match rule:
            case ConflictRule.OURS | ConflictRule.THEIRS:
                return await _favour_side(rule, conflict, inputs)
            case ConflictRule.AGENT if inputs.runner and inputs.resolver:
                return await _ask_agent(conflict, inputs, inputs.runner, inputs.resolver)
            case ConflictRule.REDO if inputs.runner and inputs.worker and inputs.before:
                return await _redo_task(
                    conflict, inputs, inputs.runner, redo_worker(inputs.worker, inputs.before, conflict)
                )
            case ConflictRule.REPORT:
                return Unresolved("it is left to a person")
            case _:
                return Unresolved(f"`on_conflict: {rule.value}` needs the pipeline that the work comes from")
    except VerificationStopped:
        raise
    except FAULTS as error:
        return Unresolved(f"it could not be resolved: {str(error) or type(error).__name__}")


async def _favour_side(rule: ConflictRule, conflict: SessionConflict, inputs: ResolverInputs) -> Resolved | Unresolved:
    """Let one side win, where both sides changed the contents of the same files."""
    is_open = has_sides(conflict.found)
    tree = await merge_favouring(inputs.bench, conflict.merged_with, conflict.theirs, rule) if is_open else None
    if tree is None:
        return Unresolved(f"`{rule.value}` does not apply to files that a side deleted, renamed or replaced by a link")
    commit = await _commit_resolution(conflict, inputs, tree, conflict.theirs)
    if left := await find_markers(inputs.bench, commit, conflict.found.paths, conflict.sides):
        return Unresolved(f"`{rule.value}` leaves conflict markers in {list_paths(left)}")
    verdict = await _verify(inputs, commit)
    return Resolved(commit, conflict.theirs) if verdict.ok else Unresolved(_failure_line(verdict))


async def _ask_agent(
    conflict: SessionConflict, inputs: ResolverInputs, runner: WorkerRunner, resolver: ResolvedTask
) -> Resolved | Unresolved:
    """Give both sides to an agent, and try once more with the reason if its result is not accepted."""
    message = f"Conflict of {conflict.later.session} with what landed before it\n"
    base = inputs.bench.commit(Commit(tree=conflict.found.tree, parents=conflict.sides, message=message))
    if not await is_resolvable(inputs.bench, conflict, base):
        return Unresolved("an agent can only resolve conflicts in the lines of text files")
    await inputs.bench.publish(base, conflict.sides)
    task = await write_prompt(inputs.bench, conflict)
    worker = _resolver_worker(resolver, inputs.key or WorkerKey("merge", 0), base, task)
    results: list[WorkerResult] = []
    async with _record_step(runner, worker.step) as step:
        for number in range(1, MAX_TRIES + 1):
            results.append(await runner.run(worker))
            verdict = await _judge_resolution(conflict, inputs, base, results[-1])
            if isinstance(verdict, str):
                step.status = Status.SUCCEEDED
                return Resolved(verdict, conflict.theirs, tuple(results))
            failed = replace(results[-1], status=Status.FAILED, error=_failure_line(verdict), output=verdict.log)
            worker = next_attempt(worker, number + 1, failed)
    return Unresolved(
        f"the work of {resolver.agent.name or 'the resolver'} was not accepted: {failed.error}", tuple(results)
    )


async def _judge_resolution(
    conflict: SessionConflict, inputs: ResolverInputs, base: str, result: WorkerResult
) -> str | Verified:
    """Return the commit that lands a resolver's work, or why it is not accepted."""
    if not result.status.is_good or result.commit is None:
        return Verified(ok=False, log=f"it {result.status.value}: {result.error or 'it changed nothing'}")
    paths = {*conflict.found.paths, *await list_changed_paths(inputs.bench.repository.git, base, result.commit)}
    if left := await find_markers(inputs.bench, result.commit, sorted(paths), conflict.sides):
        return Verified(ok=False, log=f"conflict markers are left in {list_paths(left)}")
    commit = await _commit_resolution(conflict, inputs, await inputs.bench.tree(result.commit), conflict.theirs)
    verdict = await _verify(inputs, commit)
    return commit if verdict.ok else verdict


async def _redo_task(
    conflict: SessionConflict, inputs: ResolverInputs, runner: WorkerRunner, worker: WorkerSpec
) -> Resolved | Unresolved:
    """Run the task again on the others' work: the result builds on the tip, and cannot conflict."""
    async with _record_step(runner, worker.step) as step:
        result = await runner.run(worker)
        if not result.status.is_good or result.commit is None:
            return Unresolved(f"run again, it {result.status.value}: {result.error or 'it changed nothing'}", (result,))
        commit = await _commit_resolution(conflict, inputs, await inputs.bench.tree(result.commit), result.commit)
        verdict = await _verify(inputs, commit)
        if not verdict.ok:
            return Unresolved(f"done again, {_failure_line(verdict)}", (result,))
        step.status = Status.SUCCEEDED
        return Resolved(commit, result.commit, (result,))


def redo_worker(worker: WorkerSpec, before: WorkerResult, conflict: SessionConflict) -> WorkerSpec:
    """Make the worker that runs the task again on the tip, with the conflict in its prompt."""
    partners = ", ".join(partner.session for partner in conflict.partners) or "what was merged before it"
    why = f"its work conflicts with {partners} in {list_paths(conflict.found.paths)}; you start from that work now"
    redone = next_attempt(worker, before.attempts + 1, replace(before, error=why))
    trusts = worker.task.allow_executable_config
    step, label = f"{worker.step}{REDO}", f"{worker.label}{REDO}" if worker.label else ""
    return replace(
        redone, step=step, label=label, purpose=Purpose.RESOLVE, base=conflict.tip, trusts_base=trusts, needs=()
    )


def _resolver_worker(resolver: ResolvedTask, key: WorkerKey, base: str, prompt: str) -> WorkerSpec:
    step = f"{key.step}{RESOLVE}"
    task = replace(resolver, name=step, prompt=prompt, expect="changes", retry=Retry(), title="resolve a conflict")
    kind = adapter_of(task.agent, this_host())
    trusts = task.allow_executable_config
    return WorkerSpec(
        step=step,
        index=key.index,
        count=1,
        task=task,
        adapter=kind,
        purpose=Purpose.RESOLVE,
        base=base,
        trusts_base=trusts,
    )


async def _commit_resolution(conflict: SessionConflict, inputs: ResolverInputs, tree: str, source: str) -> str:
    """Make the commit that lands *tree*, so that it can be verified."""
    commit = inputs.land(tree, source)
    await inputs.bench.publish(commit, (*conflict.sides, source))
    return commit


async def _verify(inputs: ResolverInputs, commit: str) -> Verified:
    return Verified(ok=True) if inputs.verify is None else await inputs.verify(commit)


def _failure_line(verdict: Verified) -> str:
    """Return the reason, one line; the rest of the log is an agent's output."""
    return verdict.log.partition("\n")[0] or "its verification failed"


class _Step:
    """The status with which a running step will end."""

    status = Status.FAILED


@contextlib.asynccontextmanager
async def _record_step(runner: WorkerRunner, name: str) -> AsyncIterator[_Step]:
    """Record a step for the sessions inside."""
    context, step = runner.context, _Step()
    await context.ledger.append(StepStarted(run=context.run, step=name, workers=1, on_failure="fail_fast"))
    try:
        yield step
    except BaseException:
        step.status = Status.CANCELLED
        raise
    finally:
        await context.ledger.append(StepEnded(run=context.run, step=name, status=step.status))
