"""Resolving conflicts by the rule that was asked for; what the rule cannot do is left to a person, with the reason."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from shoal.adapters.host import this_host
from shoal.adapters.registry import adapter_of
from shoal.engine.briefing import again
from shoal.engine.contracts.wording import named
from shoal.engine.dispatch import Dispatch, Place
from shoal.engine.job import Job
from shoal.engine.merge.ahead import Verified, Verify
from shoal.engine.merge.candidates import INSIDE
from shoal.engine.merge.dispute import Dispute, is_resolvable, prompt
from shoal.engine.merge.markers import left_in
from shoal.engine.merge.sides import favoured
from shoal.engine.merge.verify import Stopped
from shoal.engine.session import FAULTS
from shoal.git.commits import Commit
from shoal.git.difference import changed_paths
from shoal.git.merge import Bench
from shoal.model.assignment import Assignment
from shoal.model.conflict_rule import ConflictRule
from shoal.model.events import StepEnded, StepStarted
from shoal.model.merge import ConflictKind
from shoal.model.results import WorkerResult
from shoal.model.retry import Retry
from shoal.model.status import Status

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

    bench: Bench
    land: Land
    verify: Verify[str] | None = None
    dispatch: Dispatch | None = None
    resolver: Assignment | None = None
    """Who resolves, for `agent`."""
    place: Place | None = None
    """Whose work is in conflict: that names what is done about it."""
    job: Job | None = None
    """The job whose work is in conflict, for `redo`."""
    before: WorkerResult | None = None
    """What came of that job, for `redo`."""


async def resolved(rule: ConflictRule, dispute: Dispute, means: Means) -> Resolved | Unresolved:
    """Try to resolve *dispute* by *rule*; whatever goes wrong with that is a reason, and nothing is lost."""
    try:
        match rule:
            case ConflictRule.OURS | ConflictRule.THEIRS:
                return await _by_side(rule, dispute, means)
            case ConflictRule.AGENT if means.dispatch and means.resolver:
                return await _by_agent(dispute, means, means.dispatch, means.resolver)
            case ConflictRule.REDO if means.dispatch and means.job and means.before:
                return await _by_redoing(dispute, means, means.dispatch, again_on(means.job, means.before, dispute))
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
    has_sides = all(one.kind in (ConflictKind.CONTENT, ConflictKind.BINARY) for one in dispute.found.conflicts)
    tree = await favoured(means.bench, dispute.merged_with, dispute.theirs, rule) if has_sides else None
    if tree is None:
        return Unresolved(f"`{rule.value}` says nothing about files that a side deleted, renamed or made a link")
    commit = await _landed(dispute, means, tree, dispute.theirs)
    if left := await left_in(means.bench, commit, dispute.found.paths, dispute.sides):
        return Unresolved(f"`{rule.value}` leaves conflict markers in {named(left)}")
    verdict = await _verified(means, commit)
    return Resolved(commit, dispute.theirs) if verdict.ok else Unresolved(_failed(verdict))


async def _by_agent(dispute: Dispute, means: Means, dispatch: Dispatch, resolver: Assignment) -> Resolved | Unresolved:
    """Give both sides to an agent, and once more with the reason if its result does not count."""
    said = f"Conflict of {dispute.loser.session} with what landed before it\n"
    base = means.bench.commit(Commit(tree=dispute.found.tree, parents=dispute.sides, message=said))
    if not await is_resolvable(means.bench, dispute, base):
        return Unresolved("an agent is given only conflicts in the lines of text files")
    await means.bench.publish(base, dispute.sides)
    job = _resolving(resolver, means.place or Place("merge", 0), base, await prompt(means.bench, dispute))
    results: list[WorkerResult] = []
    async with _told(dispatch, job.step) as step:
        for number in range(1, TRIES + 1):
            results.append(await dispatch.done(job))
            verdict = await _judged(dispute, means, base, results[-1])
            if isinstance(verdict, str):
                step.status = Status.SUCCEEDED
                return Resolved(verdict, dispute.theirs, tuple(results))
            told = replace(results[-1], status=Status.FAILED, error=_failed(verdict), output=verdict.log)
            job = again(job, number + 1, told)
    return Unresolved(
        f"the work of {resolver.agent.name or 'the resolver'} does not count: {told.error}", tuple(results)
    )


async def _judged(dispute: Dispute, means: Means, base: str, result: WorkerResult) -> str | Verified:
    """Give the commit that lands a resolver's work, or say why it does not count."""
    if not result.status.is_good or result.commit is None:
        return Verified(ok=False, log=f"it {result.status.value}: {result.error or 'it changed nothing'}")
    paths = {*dispute.found.paths, *await changed_paths(means.bench.repository.git, base, result.commit)}
    if left := await left_in(means.bench, result.commit, sorted(paths), dispute.sides):
        return Verified(ok=False, log=f"conflict markers are left in {named(left)}")
    commit = await _landed(dispute, means, await means.bench.tree(result.commit), dispute.theirs)
    verdict = await _verified(means, commit)
    return commit if verdict.ok else verdict


async def _by_redoing(dispute: Dispute, means: Means, dispatch: Dispatch, job: Job) -> Resolved | Unresolved:
    """Do the task once more, on what the others made: what comes of that stands on the tip, and cannot conflict."""
    async with _told(dispatch, job.step) as step:
        result = await dispatch.done(job)
        if not result.status.is_good or result.commit is None:
            return Unresolved(
                f"done again, it {result.status.value}: {result.error or 'it changed nothing'}", (result,)
            )
        commit = await _landed(dispute, means, await means.bench.tree(result.commit), result.commit)
        verdict = await _verified(means, commit)
        if not verdict.ok:
            return Unresolved(f"done again, {_failed(verdict)}", (result,))
        step.status = Status.SUCCEEDED
        return Resolved(commit, result.commit, (result,))


def again_on(job: Job, before: WorkerResult, dispute: Dispute) -> Job:
    """Make the job that does the losing task again, on the tip, told what it conflicted with."""
    partners = ", ".join(one.session for one in dispute.partners) or "what was merged before it"
    why = f"its work conflicts with {partners} in {named(dispute.found.paths)}; you start from that work now"
    made = again(job, before.attempts + 1, replace(before, error=why))
    return replace(made, step=f"{job.step}{REDO}", base=dispute.tip, needs=())


def _resolving(resolver: Assignment, loser: Place, base: str, asked: str) -> Job:
    step = f"{loser.step}{RESOLVE}"
    task = replace(resolver, name=step, prompt=asked, expect="changes", retry=Retry(), title="resolve a conflict")
    kind = adapter_of(task.agent, this_host())
    return Job(step=step, index=loser.index, count=1, task=task, adapter=kind, base=base)


async def _landed(dispute: Dispute, means: Means, tree: str, source: str) -> str:
    """Make the commit that lands *tree*, where a verification can see it."""
    commit = means.land(tree, source)
    await means.bench.publish(commit, (*dispute.sides, source))
    return commit


async def _verified(means: Means, commit: str) -> Verified:
    return Verified(ok=True) if means.verify is None else await means.verify(commit)


def _failed(verdict: Verified) -> str:
    """Say in one line why something does not count; the rest of the log is an agent's words."""
    return verdict.log.partition("\n")[0] or "its verification failed"


class _Step:
    """How a step that is under way will have ended."""

    status = Status.FAILED


@contextlib.asynccontextmanager
async def _told(dispatch: Dispatch, name: str) -> AsyncIterator[_Step]:
    """Record a step for the sessions inside."""
    site, step = dispatch.site, _Step()
    await site.ledger.append(StepStarted(run=site.run, step=name, workers=1, on_failure="fail_fast"))
    try:
        yield step
    except BaseException:
        step.status = Status.CANCELLED
        raise
    finally:
        await site.ledger.append(StepEnded(run=site.run, step=name, status=step.status))
