"""Resolve conflicts after everything else has landed: by the requested rule, or as they were resolved before."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from shoal.errors import FAULTS, first_error
from shoal.git.conflicts import Clean, Conflicted
from shoal.merge.candidates import Candidate, MergeWaivers, hold_back
from shoal.merge.commits import Chain, CommitBuilder
from shoal.merge.request import ConflictOptions, MergeContext
from shoal.merge.resolver_prompt import Intent, SessionConflict
from shoal.merge.resolvers import Resolved, ResolverInputs, Unresolved, resolve
from shoal.merge.tree_check import TreeCheck, Verified, describe_fault
from shoal.merge.verify import VerificationStopped
from shoal.model.conflict_rule import ConflictRule
from shoal.model.merge import ConflictKind, MergeResult, MergeStatus
from shoal.model.results import WorkerResult
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import WorkerKey
from shoal.store.fold import fold
from shoal.store.lookup import find_session
from shoal.store.reader import read_events


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictContext:
    """What is needed to resolve the conflicts of a merge."""

    merge: MergeContext
    builder: CommitBuilder
    tree_check: TreeCheck
    resolving: ConflictOptions
    allowed: MergeWaivers
    candidates: Mapping[str, Candidate]
    workers: Mapping[str, WorkerResult]
    earlier: Mapping[str, MergeResult]
    """Earlier results by session."""

    def rule_for(self, session: str) -> ConflictRule:
        """Return the rule for *session*: a side that won before wins again."""
        before = self.earlier.get(session)
        if before is not None and before.resolved_by in (ConflictRule.OURS, ConflictRule.THEIRS):
            return ConflictRule(before.resolved_by)
        return self.resolving.rule

    def was_resolved(self, session: str) -> bool:
        """Return whether the work of *session* was merged before although it conflicted."""
        return session in self.earlier and self.earlier[session].resolved_by is not None

    def land(self, chain: Chain, candidate: Candidate, tree: str) -> Chain:
        """Add *candidate* as a tree in which the conflict is resolved."""
        return self.builder.finish(self.builder.join(chain.forget_refusal(candidate.session), candidate, tree))

    def worker_key(self, session: str) -> WorkerKey:
        """Return the worker of *session*."""
        for step in self.merge.report.steps:
            for worker in step.worker_results:
                if worker.session == session:
                    return WorkerKey(step.step, worker.index)
        return WorkerKey(session.rpartition("-")[0] or "merge", 0)

    def worker_spec(self, session: str) -> WorkerSpec | None:
        """Return the worker whose last attempt was *session*, if this process ran it."""
        runner, key = self.resolving.runner, self.worker_key(session)
        last = runner.results.get(key) if runner else None
        return runner.workers.get(key) if runner and last and last.session == session else None

    def intent(self, session: str) -> Intent:
        """Return the prompt of a session, in full if it is still known."""
        spec, worker = self.worker_spec(session), self.workers.get(session)
        return Intent(session=session, prompt=spec.task.prompt if spec else worker.prompt if worker else "")


def record_resolution(chain: Chain, message: str, rule: str, resolver: str | None) -> Chain:
    """Record how the conflict of the last added session was resolved."""
    *others, last = chain.results
    return replace(chain, results=(*others, replace(last, message=message, resolved_by=rule, resolver=resolver)))


STOPPED = "resolving it was stopped"
MAX_REASON_CHARS = 1000

Resolution = Awaitable[Resolved | Unresolved]


async def resolve_conflict(
    context: ConflictContext, chain: Chain, refused: MergeResult, found: Conflicted, rule: ConflictRule
) -> Chain:
    """Resolve what was *found* between *chain* and the work of a session by *rule*, or record why not."""
    landing = _Landing(context, chain, context.candidates[refused.session])
    resolution = resolve(rule, _describe_conflict(context, chain, refused, found), _resolver_inputs(context, landing))
    match await _unless_stopped(context.resolving, resolution):
        case None:
            return chain.without(replace(refused, message=f"{refused.message}; {STOPPED}"))
        case Unresolved() as left:
            return chain.without(replace(refused, message=_describe_left(refused, rule, left)))
        case Resolved() as done:
            return _land(landing, refused, rule, done)


@dataclass(frozen=True, slots=True)
class _Landing:
    """Where the work of *candidate* would land; *tried* are the chains that were built, by their tips."""

    context: ConflictContext
    chain: Chain
    candidate: Candidate
    tried: dict[str, Chain] = field(default_factory=dict)

    def land(self, tree: str, source: str) -> str:
        after = self.context.land(self.chain, replace(self.candidate, source=source), tree)
        self.tried[after.tip] = after
        return after.tip

    async def verify(self, commit: str) -> Verified:
        fault = await self.context.tree_check.find_fault(self.tried[commit])
        return Verified(ok=fault is None, log=describe_fault(fault))


def _describe_conflict(
    context: ConflictContext, chain: Chain, refused: MergeResult, found: Conflicted
) -> SessionConflict:
    partners = dict.fromkeys(name for conflict in refused.conflicts for name in conflict.partners)
    return SessionConflict(
        tip=chain.tip,
        theirs=context.candidates[refused.session].source,
        found=found,
        later=context.intent(refused.session),
        partners=tuple(map(context.intent, partners)),
        history_commit=chain.history_commit,
    )


def _resolver_inputs(context: ConflictContext, landing: _Landing) -> ResolverInputs:
    session = landing.candidate.session
    return ResolverInputs(
        bench=context.builder.bench,
        land=landing.land,
        verify=landing.verify,
        runner=context.resolving.runner,
        resolver=context.resolving.resolver,
        key=context.worker_key(session),
        worker=context.worker_spec(session),
        before=context.workers.get(session),
    )


def _land(landing: _Landing, refused: MergeResult, rule: ConflictRule, done: Resolved) -> Chain:
    """Land the resolution, unless it changes files that run on a person's machine."""
    last = done.results[-1] if done.results else None
    if last is not None and landing.context.allowed.bars(last):
        held = hold_back(last)
        message = f"resolved by `{rule.value}`, {held.message}"
        return landing.chain.without(replace(held, session=refused.session, source=refused.source, message=message))
    by = f"by {last.session} (`{rule.value}`)" if last else f"by `{rule.value}`"
    resolver = last.session if last else None
    return record_resolution(landing.tried[done.commit], f"{refused.message}, resolved {by}", rule.value, resolver)


def _describe_left(refused: MergeResult, rule: ConflictRule, left: Unresolved) -> str:
    branches = [result.branch for result in left.results if result.branch]
    attempts = f"; the attempts are on {', '.join(branches)}" if branches else ""
    return f"{refused.message}; `{rule.value}` did not resolve it: {left.why[:MAX_REASON_CHARS]}{attempts}"


async def _unless_stopped(resolving: ConflictOptions, work: Resolution) -> Resolved | Unresolved | None:
    """Wait for *work*; on a stop, keep what its sessions wrote and decide nothing."""
    try:
        async with asyncio.TaskGroup() as group:
            resolution = group.create_task(_catch_stop(work))
            stop = group.create_task(resolving.stop.wait())
            await asyncio.wait((resolution, stop), return_when=asyncio.FIRST_COMPLETED)
            resolution.cancel()
            stop.cancel()
            try:
                await asyncio.wait((resolution,))
            except asyncio.CancelledError:
                # Cancelled again: task groups that are already ending would not pass that on.
                if resolving.runner is not None:
                    resolving.runner.end_at_once()
                raise
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return None if resolution.cancelled() else resolution.result()


async def _catch_stop(work: Resolution) -> Resolved | Unresolved | None:
    try:
        return await work
    except VerificationStopped:
        return None


Keep = Callable[[Chain], Awaitable[bool]]
"""Moves the integration branch to a chain; returns `False` if somebody else moved it."""


async def resolve_conflicts(context: ConflictContext, chain: Chain, keep: Keep) -> Chain | None:
    """Resolve what can be resolved, and save everything that lands; return `None` if somebody else moved the branch.

    Earlier resolutions are applied again before anything is saved, so that a kill cannot lose them. Each new one is
    saved at once.
    """
    conflicts = _order_conflicts(context, chain.refused)
    for refused in conflicts:
        if context.was_resolved(refused.session):
            chain = await _resolve_session(context, chain, refused)
            if context.resolving.stop.is_set():
                raise VerificationStopped
    if not await keep(chain):
        return None
    with suppress(VerificationStopped):
        for refused in conflicts:
            if context.resolving.stop.is_set():
                break
            if not context.was_resolved(refused.session):
                after = await _resolve_session(context, chain, refused)
                if after.tip != chain.tip and not await keep(after):
                    return None
                chain = after
    return chain


def _order_conflicts(context: ConflictContext, refused: Sequence[MergeResult]) -> list[MergeResult]:
    """Put sessions before those that build on them, whose conflict may disappear once the first is resolved."""

    def depth(result: MergeResult) -> int:
        return len(context.builder.ancestry.reach([str(result.source)]))

    return sorted(filter(_has_resolvable_conflict, refused), key=depth)


def _has_resolvable_conflict(result: MergeResult) -> bool:
    is_by_case = any(conflict.kind is ConflictKind.CASE for conflict in result.conflicts)
    return result.status is MergeStatus.CONFLICTS and not is_by_case


async def _resolve_session(context: ConflictContext, chain: Chain, refused: MergeResult) -> Chain:
    before = context.earlier.get(refused.session)
    rule = context.rule_for(refused.session)
    if rule is ConflictRule.REPORT and not context.was_resolved(refused.session):
        return chain
    candidate = context.candidates[refused.session]
    match await context.builder.bench.try_merge(chain.history_commit, candidate.source):
        case Clean(tree):
            return await _land_clean(context, chain, candidate, tree)
        case Conflicted() as found:
            again = await _reuse_resolution(context, chain, candidate, before)
            if again is not None or rule is ConflictRule.REPORT:
                return again or chain
            return await resolve_conflict(context, chain, refused, found, rule)


async def _land_clean(context: ConflictContext, chain: Chain, candidate: Candidate, tree: str) -> Chain:
    """Land a session that no longer conflicts, or that merges as a whole though its single commits do not."""
    if tree == chain.tree:
        return chain.without(_result_without(candidate, MergeStatus.NO_CHANGES, "its changes are already included"))
    after = context.land(chain, candidate, tree)
    fault = await context.tree_check.find_fault(after)
    if fault is not None:
        return chain.without(
            _result_without(candidate, MergeStatus.HELD, f"it fails together with the others: {describe_fault(fault)}")
        )
    await context.builder.bench.publish(after.tip, after.known)
    return after


async def _reuse_resolution(
    context: ConflictContext, chain: Chain, candidate: Candidate, before: MergeResult | None
) -> Chain | None:
    """Apply an agent's earlier resolution of this conflict, if it still applies."""
    if before is None or before.resolver is None or before.resolved_by != ConflictRule.AGENT:
        return None
    with suppress(*FAULTS):  # if its branch is gone, it is resolved anew
        work = find_session(fold(read_events(context.merge.paths)), before.resolver).result
        if work is None:
            return None
        # Its base has both sides with markers; the first parent of that base is what had landed before.
        trees = [await context.builder.bench.tree(name) for name in (f"{work.base}^1", str(work.commit))]
        tried = await context.builder.carry_change(chain.tree, *trees)
        after = context.land(chain, candidate, tried.tree)
        if isinstance(tried, Conflicted) or await context.tree_check.find_fault(after) is not None:
            return None
        await context.builder.bench.publish(after.tip, after.known)
        message = f"it conflicts, and was resolved before by {before.resolver}"
        return record_resolution(after, message, ConflictRule.AGENT.value, before.resolver)
    return None


def _result_without(candidate: Candidate, status: MergeStatus, message: str) -> MergeResult:
    return MergeResult(session=candidate.session, status=status, source=candidate.source, message=message)
