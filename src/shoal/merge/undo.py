"""Take sessions out again: rebuild the integration branch without them, and revert what was delivered."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.errors import BadInput, Broken
from shoal.git.commits import Commit, is_ancestor, since
from shoal.git.conflicts import Clean, Conflicted
from shoal.git.merge import MergeRepository, workbench
from shoal.git.refs import value
from shoal.merge.candidates import ALL_ALLOWED, Candidate
from shoal.merge.commits import Chain, CommitBuilder, revert_message
from shoal.merge.deliver import deliver, find_target, move_integration, remove_integration
from shoal.merge.queue import land_candidates
from shoal.merge.request import HEADS, ConflictOptions, MergeContext, MergeHistory, hold_merge_lock, record_merge_ended
from shoal.merge.tree_check import TreeCheck, Verdicts
from shoal.model.merge import (
    Delivery,
    DeliveryIntended,
    DeliveryStatus,
    MergeRecorded,
    MergeReport,
    MergeResult,
    MergeStatus,
    Preview,
)

MAX_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Removal:
    """The sessions to take out, and the integration branch they are in."""

    sessions: tuple[str, ...]
    history: MergeHistory
    branch_tip: str

    @property
    def kept(self) -> list[MergeResult]:
        return [result for result in self.history.results if result.session not in self.sessions]

    @property
    def all_removed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.history.removed, *self.sessions)))


async def undo(context: MergeContext, sessions: Sequence[str] = ()) -> MergeReport:
    """Take *sessions*, or all of the run, out of the integration branch and the branch that it was delivered into."""
    async with hold_merge_lock(context):
        for _ in range(MAX_TRIES):
            if (report := await _try_undo(context, sessions)) is not None:
                is_stuck = any(result.status is MergeStatus.CONFLICTS for result in report.results)
                return report if is_stuck else await record_merge_ended(context, report)
    raise Broken(f"{context.branch} was moved {MAX_TRIES} times while it was changed; try again")


async def _try_undo(context: MergeContext, sessions: Sequence[str]) -> MergeReport | None:
    branch_tip = await context.read_branch_tip()
    history = context.read_history(branch_tip)
    if history.unrecorded is not None:
        await context.ledger.append(MergeRecorded(run=context.run, new=history.unrecorded))
    merged, removed = [result.session for result in history.results], history.removed
    removal = _Removal(sessions=tuple(sessions), history=history, branch_tip=branch_tip)
    if (started := _find_started_revert(history, branch_tip, sessions)) is not None:
        return await _finish_revert(context, replace(removal, sessions=tuple(sessions or removed)), started)
    if removed and set(sessions or removed) <= set(removed) - set(merged) and (sessions or not merged):
        return _report_already_undone(context, removal)
    if not merged:
        raise BadInput(f"nothing of {context.run} is merged, so there is nothing to take out")
    for session in sessions:
        if session not in merged:
            raise BadInput(f"{session} is not merged; merged sessions: {', '.join(merged[:10])}")
    removal = replace(removal, sessions=tuple(sessions or merged))
    async with workbench(context.repository) as bench:
        chain = await _rebuild_without(context, bench, removal)
        into = await _find_delivered_branch(context, history)
        if into is not None:
            return await _revert(context, bench, removal, chain, into)
    if branch_tip != history.tip:
        raise BadInput(f"{context.branch} has commits of your own; take the work out there with `git revert`")
    is_moved = (
        await move_integration(context, chain, branch_tip, strategy=history.strategy, removed=removal.all_removed)
        if removal.kept
        else await remove_integration(context, branch_tip, strategy=history.strategy, removed=removal.all_removed)
    )
    return _report(context, removal, chain, chain.tip if removal.kept else None) if is_moved else None


async def _rebuild_without(context: MergeContext, bench: MergeRepository, removal: _Removal) -> Chain:
    """Merge the remaining sessions again, in the same order; raise `BadInput` if they build on removed ones."""
    history = removal.history
    kept = [Candidate(session=result.session, source=str(result.source)) for result in removal.kept]
    gone = [result for result in history.results if result.session in removal.sessions]
    ancestry = await since(
        context.repository, (history.start, context.report.base), [str(result.source) for result in history.results]
    )
    for candidate in kept:
        below = ancestry.reach([candidate.source])
        if on := [other.session for other in gone if other.source in below]:
            raise BadInput(f"{candidate.session} builds on {', '.join(on)}; name it too, or leave both")
    tree = await bench.tree(history.start)
    empty = Chain(
        run=context.run,
        form=history.strategy.form,
        start=history.start,
        origin=history.start,
        tip=history.start,
        history_commit=history.start,
        tree=tree,
    )
    builder = CommitBuilder(bench, ancestry, Preview(run=context.run, sessions=()))
    chain = await land_candidates(builder, empty, kept, Verdicts())
    if chain.refused:
        chain = await _resolve_again(context, builder, chain, kept, history)
    if chain.refused:
        lost = ", ".join(result.session for result in chain.refused)
        raise BadInput(f"{lost} cannot be merged without what is to be taken out; name it too, or leave both")
    return chain


async def _resolve_again(
    context: MergeContext, builder: CommitBuilder, chain: Chain, kept: Sequence[Candidate], history: MergeHistory
) -> Chain:
    """Resolve what was resolved before in the same way."""
    from shoal.merge.conflicts import ConflictContext, resolve_conflicts  # imports everything that sessions need

    conflict_context = ConflictContext(
        merge=context,
        builder=builder,
        tree_check=TreeCheck(builder.bench, chain.tree, Verdicts()),
        resolving=ConflictOptions(),
        allowed=ALL_ALLOWED,
        candidates={candidate.session: candidate for candidate in kept},
        workers={},
        earlier={result.session: result for result in history.results},
    )

    async def keep_nothing(_: Chain) -> bool:
        return True

    return await resolve_conflicts(conflict_context, chain, keep_nothing) or chain


async def _find_delivered_branch(context: MergeContext, history: MergeHistory) -> str | None:
    """Find the user's branch that contains the integration branch; raise `BadInput` if several do."""
    holding: list[str] = []
    for into in history.deliveries:
        here = await value(context.repository, f"{HEADS}{into}")  # it may have been deleted
        if here is not None and await is_ancestor(context.repository, history.tip, here):
            holding.append(into)
    if len(holding) > 1:
        problem = f"{' and '.join(holding)} both contain it, and one revert cannot be in both"
        raise BadInput(f"{problem}; take it out of each with `git revert`")
    return next(iter(holding), None)


async def _revert(
    context: MergeContext, bench: MergeRepository, removal: _Removal, without: Chain, into: str
) -> MergeReport | None:
    """Remove the sessions' changes from the branch as it is now, in one commit."""
    old = await find_target(context.repository, into)
    if removal.branch_tip and not await is_ancestor(context.repository, removal.branch_tip, old):
        raise BadInput(
            f"{context.branch} has commits that {into} does not have; deliver them first, or delete that branch"
        )
    base = bench.commit(Commit(tree=await bench.tree(removal.history.tip), parents=(), message="with\n"))
    here, there = (
        bench.commit(Commit(tree=tree, parents=(base,), message="side\n"))
        for tree in (await bench.tree(old), without.tree)
    )
    match await bench.try_merge(here, there):
        case Conflicted() as found:
            return _report_conflict(context, removal, found, into, old)
        case Clean(tree):
            message = revert_message(context.run, removal.sessions)
            tip = bench.commit(Commit(tree=tree, parents=(old,), message=message))
            await bench.publish(tip, (old,))
    chain = replace(without, start=old, origin=old, tip=tip, tree=tree, results=tuple(removal.kept))
    return await _deliver_revert(context, removal, chain, into)


async def _deliver_revert(context: MergeContext, removal: _Removal, chain: Chain, into: str) -> MergeReport | None:
    """Move our branch and then the user's to a revert; a recorded intent tells where to continue after a kill."""
    old, tip = chain.start, chain.tip
    await context.ledger.append(DeliveryIntended(run=context.run, into=into, old=old, new=tip, is_undo=True))
    if not await move_integration(
        context, chain, removal.branch_tip, strategy=removal.history.strategy, removed=removal.all_removed
    ):
        return None
    delivery = await deliver(context, into, old, tip, is_undo=True)
    return None if delivery is None else replace(_report(context, removal, chain, tip), delivery=delivery)


def _find_started_revert(history: MergeHistory, branch_tip: str, sessions: Sequence[str]) -> DeliveryIntended | None:
    """Find a revert of *sessions* that our branch has and the user's did not get."""
    is_removed = set(sessions) <= set(history.removed) if sessions else not history.results
    found = (
        intent for intent in history.pending.values() if intent.is_undo and intent.new == branch_tip == history.tip
    )
    return next(found, None) if branch_tip and is_removed else None


async def _finish_revert(context: MergeContext, removal: _Removal, started: DeliveryIntended) -> MergeReport | None:
    """Deliver a revert into the user's branch, on top of what was added since."""
    now = await find_target(context.repository, started.into)
    async with workbench(context.repository) as bench:
        chain = _current_chain(context, removal.history, start=started.old, tree=await bench.tree(started.new))
        if now in (started.old, started.new):
            delivery = await deliver(context, started.into, now, started.new, is_undo=True)
            return (
                None if delivery is None else replace(_report(context, removal, chain, started.new), delivery=delivery)
            )
        if not await is_ancestor(context.repository, started.old, now):
            raise BadInput(f"{started.into} was rewritten meanwhile; take the work out there with `git revert`")
        match await bench.try_merge(now, started.new):
            case Conflicted() as found:
                return _report_conflict(context, removal, found, started.into, now)
            case Clean(tree):
                message = revert_message(context.run, removal.sessions)
                tip = bench.commit(Commit(tree=tree, parents=(now,), message=message))
                await bench.publish(tip, (now,))
    return await _deliver_revert(
        context, removal, replace(chain, start=now, origin=now, tip=tip, history_commit=tip, tree=tree), started.into
    )


def _current_chain(context: MergeContext, history: MergeHistory, *, start: str, tree: str = "") -> Chain:
    """Return the integration branch as it is."""
    return Chain(
        run=context.run,
        form=history.strategy.form,
        start=start,
        origin=start,
        tip=history.tip,
        history_commit=history.tip,
        tree=tree,
        results=history.results,
    )


def _report_already_undone(context: MergeContext, removal: _Removal) -> MergeReport:
    """Report the current state: the process that took the work out may have been killed before it reported."""
    return _report(
        context,
        removal,
        _current_chain(context, removal.history, start=removal.history.start),
        removal.branch_tip or None,
    )


def _report_conflict(context: MergeContext, removal: _Removal, found: Conflicted, into: str, old: str) -> MergeReport:
    message = f"later commits on {into} change the same places; take it out there with `git revert`"
    results = tuple(
        MergeResult(session=session, status=MergeStatus.CONFLICTS, message=message, conflicts=found.conflicts)
        for session in removal.sessions
    )
    left = Delivery(into=into, status=DeliveryStatus.UNCHANGED, old=old, new=old)
    return MergeReport(
        run=context.run,
        strategy=removal.history.strategy,
        branch=context.branch,
        start=removal.history.start,
        commit=removal.branch_tip or None,
        results=results,
        delivery=left,
    )


def _report(context: MergeContext, removal: _Removal, chain: Chain, tip: str | None) -> MergeReport:
    return MergeReport(
        run=context.run,
        strategy=removal.history.strategy,
        branch=context.branch,
        start=chain.start,
        commit=tip,
        results=(*chain.results, *chain.refused),
        left_out=removal.all_removed,
    )
