"""What conflicts, after all the rest has landed: each by the rule that was asked for, or as it was resolved before."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from shoal.errors import FAULTS, first_of
from shoal.git.conflicts import Clean, Conflicted
from shoal.merge.candidates import Allowed, Candidate, hold_back
from shoal.merge.commits import Chain, CommitBuilder
from shoal.merge.queue import Verified
from shoal.merge.request import MergeContext, Resolving
from shoal.merge.resolver_prompt import Dispute, Intent
from shoal.merge.resolvers import Means, Resolved, Unresolved, resolve
from shoal.merge.tree_check import TreeCheck, describe_fault
from shoal.merge.verify import Stopped
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
    """What the conflicts of one merge are settled with."""

    context: MergeContext
    smith: CommitBuilder
    look: TreeCheck
    how: Resolving
    allowed: Allowed
    candidates: Mapping[str, Candidate]
    workers: Mapping[str, WorkerResult]
    past: Mapping[str, MergeResult]
    """What was merged before, and how."""

    def rule(self, session: str) -> ConflictRule:
        """Say what is done with the work of *session*: a side that won before wins again."""
        before = self.past.get(session)
        if before is not None and before.resolved_by in (ConflictRule.OURS, ConflictRule.THEIRS):
            return ConflictRule(before.resolved_by)
        return self.how.rule

    def was_resolved(self, session: str) -> bool:
        """Say whether the work of *session* was merged before although it conflicted."""
        return session in self.past and self.past[session].resolved_by is not None

    def land(self, chain: Chain, one: Candidate, tree: str) -> Chain:
        """Add *one* by a tree that somebody made of both sides."""
        return self.smith.finish(self.smith.join(chain.has(one.session), one, tree))

    def place(self, session: str) -> WorkerKey:
        """Say which worker of which step *session* was."""
        for step in self.context.report.steps:
            for worker in step.worker_results:
                if worker.session == session:
                    return WorkerKey(step.step, worker.index)
        return WorkerKey(session.rpartition("-")[0] or "merge", 0)

    def job(self, session: str) -> WorkerSpec | None:
        """Give the job that *session* was the last attempt of, where this very process ran it."""
        runner, place = self.how.runner, self.place(session)
        last = runner.results.get(place) if runner else None
        return runner.workers.get(place) if runner and last and last.session == session else None

    def intent(self, session: str) -> Intent:
        """Say what a session was asked for, whole where that is still known."""
        job, worker = self.job(session), self.workers.get(session)
        return Intent(session=session, prompt=job.task.prompt if job else worker.prompt if worker else "")


def credit(chain: Chain, said: str, rule: str, resolver: str | None) -> Chain:
    """Say of the session that was added last how it could be."""
    *others, last = chain.results
    return replace(chain, results=(*others, replace(last, message=said, resolved_by=rule, resolver=resolver)))


STOPPED = "resolving it was stopped"
LONGEST_WHY = 1000

Work = Awaitable[Resolved | Unresolved]


async def resolve_conflict(
    table: ConflictContext, chain: Chain, refused: MergeResult, found: Conflicted, rule: ConflictRule
) -> Chain:
    """Resolve what was *found* between *chain* and the work of a session by *rule*, or say why not."""
    landing = _Landing(table, chain, table.candidates[refused.session])
    doing = resolve(rule, _dispute(table, chain, refused, found), _means(table, landing))
    match await _unless_stopped(table.how, doing):
        case None:
            return chain.without(replace(refused, message=f"{refused.message}; {STOPPED}"))
        case Unresolved() as left:
            return chain.without(replace(refused, message=_describe_left(refused, rule, left)))
        case Resolved() as done:
            return _land(landing, refused, rule, done)


@dataclass(frozen=True, slots=True)
class _Landing:
    """Where the work of *one* would land; *made* are the chains that were tried, by their tips."""

    table: ConflictContext
    chain: Chain
    one: Candidate
    made: dict[str, Chain] = field(default_factory=dict)

    def land(self, tree: str, source: str) -> str:
        after = self.table.land(self.chain, replace(self.one, source=source), tree)
        self.made[after.tip] = after
        return after.tip

    async def verify(self, commit: str) -> Verified:
        fault = await self.table.look.fault(self.made[commit])
        return Verified(ok=fault is None, log=describe_fault(fault))


def _dispute(table: ConflictContext, chain: Chain, refused: MergeResult, found: Conflicted) -> Dispute:
    partners = dict.fromkeys(name for conflict in refused.conflicts for name in conflict.partners)
    return Dispute(
        tip=chain.tip,
        theirs=table.candidates[refused.session].source,
        found=found,
        loser=table.intent(refused.session),
        partners=tuple(map(table.intent, partners)),
        truth=chain.truth,
    )


def _means(table: ConflictContext, landing: _Landing) -> Means:
    session = landing.one.session
    return Means(
        bench=table.smith.bench,
        land=landing.land,
        verify=landing.verify,
        runner=table.how.runner,
        resolver=table.how.resolver,
        place=table.place(session),
        worker=table.job(session),
        before=table.workers.get(session),
    )


def _land(landing: _Landing, refused: MergeResult, rule: ConflictRule, done: Resolved) -> Chain:
    """Let it land, unless who resolved it changed what runs on a person's machine."""
    last = done.results[-1] if done.results else None
    if last is not None and landing.table.allowed.bars(last):
        aside = hold_back(last)
        said = f"resolved by `{rule.value}`, {aside.message}"
        return landing.chain.without(replace(aside, session=refused.session, source=refused.source, message=said))
    by = f"by {last.session} (`{rule.value}`)" if last else f"by `{rule.value}`"
    resolver = last.session if last else None
    return credit(landing.made[done.commit], f"{refused.message}, resolved {by}", rule.value, resolver)


def _describe_left(refused: MergeResult, rule: ConflictRule, left: Unresolved) -> str:
    branches = [one.branch for one in left.results if one.branch]
    kept = f"; what was tried is on {', '.join(branches)}" if branches else ""
    return f"{refused.message}; `{rule.value}` did not resolve it: {left.why[:LONGEST_WHY]}{kept}"


async def _unless_stopped(how: Resolving, work: Work) -> Resolved | Unresolved | None:
    """Wait for *work*; stopped, what its sessions wrote is kept, and nothing is decided."""
    try:
        async with asyncio.TaskGroup() as group:
            doing, told = group.create_task(_earlier_resolution(work)), group.create_task(how.stop.wait())
            await asyncio.wait((doing, told), return_when=asyncio.FIRST_COMPLETED)
            doing.cancel()
            told.cancel()
            try:
                await asyncio.wait((doing,))
            except asyncio.CancelledError:
                # Cancelled once more: task groups that are ending already would not pass that on.
                if how.runner is not None:
                    how.runner.end_at_once()
                raise
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return None if doing.cancelled() else doing.result()


async def _earlier_resolution(work: Work) -> Resolved | Unresolved | None:
    try:
        return await work
    except Stopped:
        return None


Keep = Callable[[Chain], Awaitable[bool]]
"""Lets the integration branch go to a chain; `False` when somebody else moved it."""


async def resolve_conflicts(table: ConflictContext, chain: Chain, keep: Keep) -> Chain | None:
    """Resolve what can be resolved, and keep all that has landed; `None` when somebody moved the branch meanwhile.

    What was resolved before is so again before anything is kept: a kill would else have that forgotten. Each of the
    others is kept as soon as it is resolved.
    """
    line = _in_turn(table, chain.refused)
    for refused in line:
        if table.was_resolved(refused.session):
            chain = await _resolve_one(table, chain, refused)
            if table.how.stop.is_set():
                raise Stopped
    if not await keep(chain):
        return None
    with suppress(Stopped):
        for refused in line:
            if table.how.stop.is_set():
                break
            if not table.was_resolved(refused.session):
                after = await _resolve_one(table, chain, refused)
                if after.tip != chain.tip and not await keep(after):
                    return None
                chain = after
    return chain


def _in_turn(table: ConflictContext, refused: Sequence[MergeResult]) -> list[MergeResult]:
    """Put those first that others stand on: whoever stands on what was resolved may not conflict any more."""

    def depth(one: MergeResult) -> int:
        return len(table.smith.ancestry.reach([str(one.source)]))

    return sorted((one for one in refused if _is_in_conflict(one)), key=depth)


def _is_in_conflict(one: MergeResult) -> bool:
    is_by_case = any(conflict.kind is ConflictKind.CASE for conflict in one.conflicts)
    return one.status is MergeStatus.CONFLICTS and not is_by_case


async def _resolve_one(table: ConflictContext, chain: Chain, refused: MergeResult) -> Chain:
    before = table.past.get(refused.session)
    rule = table.rule(refused.session)
    if rule is ConflictRule.REPORT and not table.was_resolved(refused.session):
        return chain
    one = table.candidates[refused.session]
    match await table.smith.bench.try_merge(chain.truth, one.source):
        case Clean(tree):
            return await _now_clean(table, chain, one, tree)
        case Conflicted() as found:
            again = await _as_before(table, chain, one, before)
            if again is not None or rule is ConflictRule.REPORT:
                return again or chain
            return await resolve_conflict(table, chain, refused, found, rule)


async def _now_clean(table: ConflictContext, chain: Chain, one: Candidate, tree: str) -> Chain:
    """Take what came to fit by the others' landing, or fits as a whole where its single commits do not."""
    if tree == chain.tree:
        return chain.without(_aside(one, MergeStatus.NO_CHANGES, "what it changes is there already"))
    after = table.land(chain, one, tree)
    fault = await table.look.fault(after)
    if fault is not None:
        return chain.without(
            _aside(one, MergeStatus.HELD, f"together with the others it fails: {describe_fault(fault)}")
        )
    await table.smith.bench.publish(after.tip, after.known)
    return after


async def _as_before(table: ConflictContext, chain: Chain, one: Candidate, before: MergeResult | None) -> Chain | None:
    """Bring in again what an agent made of this conflict earlier, where it still fits."""
    if before is None or before.resolver is None or before.resolved_by != ConflictRule.AGENT:
        return None
    with suppress(*FAULTS):  # its branch may be gone, and then it is resolved anew
        work = find_session(fold(read_events(table.context.paths)), before.resolver).result
        if work is None:
            return None
        # It was given both sides with markers: the first parent of that is what had landed before.
        trees = [await table.smith.bench.tree(name) for name in (f"{work.base}^1", str(work.commit))]
        tried = await table.smith.carry_change(chain.tree, *trees)
        after = table.land(chain, one, tried.tree)
        if isinstance(tried, Conflicted) or await table.look.fault(after) is not None:
            return None
        await table.smith.bench.publish(after.tip, after.known)
        said = f"it conflicts, and was resolved before by {before.resolver}"
        return credit(after, said, ConflictRule.AGENT.value, before.resolver)
    return None


def _aside(one: Candidate, status: MergeStatus, said: str) -> MergeResult:
    return MergeResult(session=one.session, status=status, source=one.source, message=said)
