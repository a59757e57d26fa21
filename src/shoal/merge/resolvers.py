"""Resolving conflicts by the rule that was asked for; what the rule cannot do is left to a person, with the reason."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter_of
from shoal.contracts.quoting import list_paths
from shoal.errors import FAULTS
from shoal.git.commits import Commit
from shoal.git.conflict_sides import find_markers, has_sides, merge_favouring
from shoal.git.difference import list_changed_paths
from shoal.git.merge import MergeRepository
from shoal.merge.candidates import INSIDE
from shoal.merge.queue import Verified, Verify
from shoal.merge.resolver_prompt import Dispute, is_resolvable, prompt
from shoal.merge.verify import Stopped
from shoal.model.conflict_rule import ConflictRule
from shoal.model.events import StepEnded, StepStarted
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.retry import Retry
from shoal.model.status import Status
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import WorkerKey, WorkerRunner
from shoal.steps.prompt import again

TRIES = 2
RESOLVE, REDO = f"{INSIDE}resolve", f"{INSIDE}redo"
"""After the name of a step: what is done about its conflicts."""

Land = Callable[[str, str], str]
"""Makes the commit that lands a tree on the tip; the second word is the commit whose history comes with it."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The conflict is gone in *commit*, which no ref holds; *source* is the work that it brings."""

    commit: str
    source: str
    results: tuple[WorkerResult, ...] = ()
    """The sessions that worked on it; what the last of them flags as executable came with it."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """It is left to a person, because of *why*; what was tried is on the branches of *results*."""

    why: str
    results: tuple[WorkerResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a conflict is resolved with; what a rule does not need may be missing."""

    bench: MergeRepository
    land: Land
    verify: Verify[str] | None = None
    runner: WorkerRunner | None = None
    resolver: ResolvedTask | None = None
    """Who resolves, for `agent`."""
    place: WorkerKey | None = None
    """Whose work is in conflict: that names what is done about it."""
    worker: WorkerSpec | None = None
    """The job whose work is in conflict, for `redo`."""
    before: WorkerResult | None = None
    """What came of that job, for `redo`."""


async def resolve(rule: ConflictRule, dispute: Dispute, means: Means) -> Resolved | Unresolved:
    """Try to resolve *dispute* by *rule*; whatever goes wrong with that is a reason, and nothing is lost."""
    try:
        match rule:
            case ConflictRule.OURS | ConflictRule.THEIRS:
                return await _by_side(rule, dispute, means)
            case ConflictRule.AGENT if means.runner and means.resolver:
                return await _by_agent(dispute, means, means.runner, means.resolver)
            case ConflictRule.REDO if means.runner and means.worker and means.before:
                return await _by_redoing(dispute, means, means.runner, again_on(means.worker, means.before, dispute))
            case ConflictRule.REPORT:
                return Unresolved("it is left to a person")
            case _:
                return Unresolved(f"`on_conflict: {rule.value}` needs the pipeline that the work comes from")
    except Stopped:
        raise
    except FAULTS as error:
        return Unresolved(f"it could not be resolved: {str(error) or type(error).__name__}")


async def _by_side(rule: ConflictRule, dispute: Dispute, means: Means) -> Resolved | Unresolved:
    """Let one side win, as far as there are two sides of the same files."""
    is_open = has_sides(dispute.found)
    tree = await merge_favouring(means.bench, dispute.merged_with, dispute.theirs, rule) if is_open else None
    if tree is None:
        return Unresolved(f"`{rule.value}` says nothing about files that a side deleted, renamed or made a link")
    commit = await _commit_resolution(dispute, means, tree, dispute.theirs)
    if left := await find_markers(means.bench, commit, dispute.found.paths, dispute.sides):
        return Unresolved(f"`{rule.value}` leaves conflict markers in {list_paths(left)}")
    verdict = await _verify(means, commit)
    return Resolved(commit, dispute.theirs) if verdict.ok else Unresolved(_failure_line(verdict))


async def _by_agent(
    dispute: Dispute, means: Means, runner: WorkerRunner, resolver: ResolvedTask
) -> Resolved | Unresolved:
    """Give both sides to an agent, and once more with the reason if its result does not count."""
    said = f"Conflict of {dispute.loser.session} with what landed before it\n"
    base = means.bench.commit(Commit(tree=dispute.found.tree, parents=dispute.sides, message=said))
    if not await is_resolvable(means.bench, dispute, base):
        return Unresolved("an agent is given only conflicts in the lines of text files")
    await means.bench.publish(base, dispute.sides)
    worker = _resolving(resolver, means.place or WorkerKey("merge", 0), base, await prompt(means.bench, dispute))
    results: list[WorkerResult] = []
    async with _told(runner, worker.step) as step:
        for number in range(1, TRIES + 1):
            results.append(await runner.run(worker))
            verdict = await _judge_resolution(dispute, means, base, results[-1])
            if isinstance(verdict, str):
                step.status = Status.SUCCEEDED
                return Resolved(verdict, dispute.theirs, tuple(results))
            told = replace(results[-1], status=Status.FAILED, error=_failure_line(verdict), output=verdict.log)
            worker = again(worker, number + 1, told)
    return Unresolved(
        f"the work of {resolver.agent.name or 'the resolver'} does not count: {told.error}", tuple(results)
    )


async def _judge_resolution(dispute: Dispute, means: Means, base: str, result: WorkerResult) -> str | Verified:
    """Give the commit that lands a resolver's work, or say why it does not count."""
    if not result.status.is_good or result.commit is None:
        return Verified(ok=False, log=f"it {result.status.value}: {result.error or 'it changed nothing'}")
    paths = {*dispute.found.paths, *await list_changed_paths(means.bench.repository.git, base, result.commit)}
    if left := await find_markers(means.bench, result.commit, sorted(paths), dispute.sides):
        return Verified(ok=False, log=f"conflict markers are left in {list_paths(left)}")
    commit = await _commit_resolution(dispute, means, await means.bench.tree(result.commit), dispute.theirs)
    verdict = await _verify(means, commit)
    return commit if verdict.ok else verdict


async def _by_redoing(
    dispute: Dispute, means: Means, runner: WorkerRunner, worker: WorkerSpec
) -> Resolved | Unresolved:
    """Do the task once more, on what the others made: what comes of that stands on the tip, and cannot conflict."""
    async with _told(runner, worker.step) as step:
        result = await runner.run(worker)
        if not result.status.is_good or result.commit is None:
            return Unresolved(
                f"done again, it {result.status.value}: {result.error or 'it changed nothing'}", (result,)
            )
        commit = await _commit_resolution(dispute, means, await means.bench.tree(result.commit), result.commit)
        verdict = await _verify(means, commit)
        if not verdict.ok:
            return Unresolved(f"done again, {_failure_line(verdict)}", (result,))
        step.status = Status.SUCCEEDED
        return Resolved(commit, result.commit, (result,))


def again_on(worker: WorkerSpec, before: WorkerResult, dispute: Dispute) -> WorkerSpec:
    """Make the job that does the losing task again, on the tip, told what it conflicted with."""
    partners = ", ".join(one.session for one in dispute.partners) or "what was merged before it"
    why = f"its work conflicts with {partners} in {list_paths(dispute.found.paths)}; you start from that work now"
    made = again(worker, before.attempts + 1, replace(before, error=why))
    trusts = worker.task.allow_executable_config
    return replace(made, step=f"{worker.step}{REDO}", base=dispute.tip, trusts_base=trusts, needs=())


def _resolving(resolver: ResolvedTask, loser: WorkerKey, base: str, asked: str) -> WorkerSpec:
    step = f"{loser.step}{RESOLVE}"
    task = replace(resolver, name=step, prompt=asked, expect="changes", retry=Retry(), title="resolve a conflict")
    kind = adapter_of(task.agent, this_host())
    trusts = task.allow_executable_config
    return WorkerSpec(step=step, index=loser.index, count=1, task=task, adapter=kind, base=base, trusts_base=trusts)


async def _commit_resolution(dispute: Dispute, means: Means, tree: str, source: str) -> str:
    """Make the commit that lands *tree*, where a verification can see it."""
    commit = means.land(tree, source)
    await means.bench.publish(commit, (*dispute.sides, source))
    return commit


async def _verify(means: Means, commit: str) -> Verified:
    return Verified(ok=True) if means.verify is None else await means.verify(commit)


def _failure_line(verdict: Verified) -> str:
    """Say in one line why something does not count; the rest of the log is an agent's words."""
    return verdict.log.partition("\n")[0] or "its verification failed"


class _Step:
    """How a step that is under way will have ended."""

    status = Status.FAILED


@contextlib.asynccontextmanager
async def _told(runner: WorkerRunner, name: str) -> AsyncIterator[_Step]:
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
