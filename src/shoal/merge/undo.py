"""Taking sessions out again: the integration is built without them, and what was delivered gets a revert."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.errors import BadInput, Broken
from shoal.git.ancestry import is_ancestor, since
from shoal.git.commits import Commit
from shoal.git.conflicts import Clean, Conflicted
from shoal.git.merge import MergeRepository, workbench
from shoal.git.refs import value
from shoal.merge.candidates import ALL_ALLOWED, Candidate
from shoal.merge.commits import Chain, CommitBuilder, revert_message
from shoal.merge.deliver import deliver, move_integration, remove_integration, target
from shoal.merge.history import MergeHistory
from shoal.merge.queue import build
from shoal.merge.request import HEADS, MergeContext, Resolving, at_work, record_merge_ended
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

TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Out:
    """What is to be taken out of what."""

    sessions: tuple[str, ...]
    past: MergeHistory
    at: str

    @property
    def kept(self) -> list[MergeResult]:
        return [one for one in self.past.results if one.session not in self.sessions]

    @property
    def all_out(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.past.out, *self.sessions)))


async def undo(context: MergeContext, sessions: Sequence[str] = ()) -> MergeReport:
    """Take *sessions*, or all of the run, out of the integration, and of the branch that it was delivered into."""
    async with at_work(context):
        for _ in range(TRIES):
            if (report := await _try_undo(context, sessions)) is not None:
                is_stuck = any(one.status is MergeStatus.CONFLICTS for one in report.results)
                return report if is_stuck else await record_merge_ended(context, report)
    raise Broken(f"{context.branch} was moved {TRIES} times while it was changed; try again")


async def _try_undo(context: MergeContext, sessions: Sequence[str]) -> MergeReport | None:
    at = await context.at()
    past = context.past(at)
    if past.unrecorded is not None:
        await context.ledger.append(MergeRecorded(run=context.run, new=past.unrecorded))
    merged = [one.session for one in past.results]
    if (begun := _find_started_revert(past, at, sessions)) is not None:
        return await _finish_revert(context, _Out(sessions=tuple(sessions or past.out), past=past, at=at), begun)
    if past.out and set(sessions or past.out) <= set(past.out) - set(merged) and (sessions or not merged):
        return _report_already_undone(context, _Out(sessions=tuple(sessions), past=past, at=at))
    if not merged:
        raise BadInput(f"nothing of {context.run} is merged, so there is nothing to take out")
    for session in sessions:
        if session not in merged:
            raise BadInput(f"{session} is not merged; what is: {', '.join(merged[:10])}")
    out = _Out(sessions=tuple(sessions or merged), past=past, at=at)
    async with workbench(context.repository) as bench:
        chain = await _rebuilt(context, bench, out)
        into = await _holder(context, past)
        if into is not None:
            return await _revert(context, bench, out, chain, into)
    if at != past.tip:
        raise BadInput(f"{context.branch} has commits of your own; take the work out there with `git revert`")
    is_moved = (
        await move_integration(context, chain, at, strategy=past.strategy, out=out.all_out)
        if out.kept
        else await remove_integration(context, at, strategy=past.strategy, out=out.all_out)
    )
    return _report(context, out, chain, chain.tip if out.kept else None) if is_moved else None


async def _rebuilt(context: MergeContext, bench: MergeRepository, out: _Out) -> Chain:
    """Merge again what stays, in the same order; raise where it stands on what goes."""
    past = out.past
    kept = [Candidate(session=one.session, source=str(one.source)) for one in out.kept]
    gone = [one for one in past.results if one.session in out.sessions]
    ancestry = await since(
        context.repository, (past.start, context.report.base), [str(one.source) for one in past.results]
    )
    for one in kept:
        below = ancestry.reach([one.source])
        if on := [other.session for other in gone if other.source in below]:
            raise BadInput(f"{one.session} stands on {', '.join(on)}; name it too, or leave both")
    tree = await bench.tree(past.start)
    empty = Chain(
        run=context.run,
        form=past.strategy.form,
        start=past.start,
        origin=past.start,
        tip=past.start,
        truth=past.start,
        tree=tree,
    )
    smith = CommitBuilder(bench, ancestry, Preview(run=context.run, sessions=()))
    chain = await build(smith, empty, kept, Verdicts())
    if chain.refused:
        chain = await _resolve_again(context, smith, chain, kept, past)
    if chain.refused:
        lost = ", ".join(one.session for one in chain.refused)
        raise BadInput(f"{lost} cannot be had without what is to be taken out; name it too, or leave both")
    return chain


async def _resolve_again(
    context: MergeContext, smith: CommitBuilder, chain: Chain, kept: Sequence[Candidate], past: MergeHistory
) -> Chain:
    """Resolve what was resolved before in the same way."""
    from shoal.merge.conflicts import (
        ConflictContext,
        resolve_conflicts,  # brings in all that sessions need
    )

    table = ConflictContext(
        context=context,
        smith=smith,
        look=TreeCheck(smith.bench, chain.tree, Verdicts()),
        how=Resolving(),
        allowed=ALL_ALLOWED,
        candidates={one.session: one for one in kept},
        workers={},
        past={one.session: one for one in past.results},
    )

    async def beside(_: Chain) -> bool:
        return True

    return await resolve_conflicts(table, chain, beside) or chain


async def _holder(context: MergeContext, past: MergeHistory) -> str | None:
    """Name the branch of the user's that holds the integration, if one does; of several, none can be meant."""
    holding: list[str] = []
    for into in past.deliveries:
        here = await value(context.repository, f"{HEADS}{into}")  # it may be deleted by now
        if here is not None and await is_ancestor(context.repository, past.tip, here):
            holding.append(into)
    if len(holding) > 1:
        said = f"{' and '.join(holding)} both hold it, and one revert cannot be in both"
        raise BadInput(f"{said}; take it out of each with `git revert`")
    return next(iter(holding), None)


async def _revert(
    context: MergeContext, bench: MergeRepository, out: _Out, without: Chain, into: str
) -> MergeReport | None:
    """Take the difference between with and without them out of the branch as it is now, by one commit."""
    old = await target(context.repository, into)
    if out.at and not await is_ancestor(context.repository, out.at, old):
        raise BadInput(f"{context.branch} has commits that {into} has not; deliver them first, or delete that branch")
    ground = bench.commit(Commit(tree=await bench.tree(out.past.tip), parents=(), message="with\n"))
    here, there = (
        bench.commit(Commit(tree=tree, parents=(ground,), message="side\n"))
        for tree in (await bench.tree(old), without.tree)
    )
    match await bench.try_merge(here, there):
        case Conflicted() as found:
            return _stuck(context, out, found, into, old)
        case Clean(tree):
            said = revert_message(context.run, out.sessions)
            tip = bench.commit(Commit(tree=tree, parents=(old,), message=said))
            await bench.publish(tip, (old,))
    chain = replace(without, start=old, origin=old, tip=tip, tree=tree, results=tuple(out.kept))
    return await _deliver_revert(context, out, chain, into)


async def _deliver_revert(context: MergeContext, out: _Out, chain: Chain, into: str) -> MergeReport | None:
    """Let our branch and then the user's go to a revert; cut off between, the first word says where to go on."""
    old, tip = chain.start, chain.tip
    await context.ledger.append(DeliveryIntended(run=context.run, into=into, old=old, new=tip, is_undo=True))
    if not await move_integration(context, chain, out.at, strategy=out.past.strategy, out=out.all_out):
        return None
    delivery = await deliver(context, into, old, tip, is_undo=True)
    return None if delivery is None else replace(_report(context, out, chain, tip), delivery=delivery)


def _find_started_revert(past: MergeHistory, at: str, sessions: Sequence[str]) -> DeliveryIntended | None:
    """Find the revert that our branch has, that the user's was to get, and that takes out what is asked for."""
    is_out = set(sessions) <= set(past.out) if sessions else not past.results
    found = (one for one in past.pending.values() if one.is_undo and one.new == at == past.tip)
    return next(found, None) if at and is_out else None


async def _finish_revert(context: MergeContext, out: _Out, begun: DeliveryIntended) -> MergeReport | None:
    """Bring a revert into the user's branch, on top of what came there since."""
    now = await target(context.repository, begun.into)
    async with workbench(context.repository) as bench:
        chain = _standing(context, out.past, start=begun.old, tree=await bench.tree(begun.new))
        if now in (begun.old, begun.new):
            delivery = await deliver(context, begun.into, now, begun.new, is_undo=True)
            return None if delivery is None else replace(_report(context, out, chain, begun.new), delivery=delivery)
        if not await is_ancestor(context.repository, begun.old, now):
            raise BadInput(f"{begun.into} was rewritten meanwhile; take the work out there with `git revert`")
        match await bench.try_merge(now, begun.new):
            case Conflicted() as found:
                return _stuck(context, out, found, begun.into, now)
            case Clean(tree):
                said = revert_message(context.run, out.sessions)
                tip = bench.commit(Commit(tree=tree, parents=(now,), message=said))
                await bench.publish(tip, (now,))
    return await _deliver_revert(
        context, out, replace(chain, start=now, origin=now, tip=tip, truth=tip, tree=tree), begun.into
    )


def _standing(context: MergeContext, past: MergeHistory, *, start: str, tree: str = "") -> Chain:
    """Give the integration as it is."""
    return Chain(
        run=context.run,
        form=past.strategy.form,
        start=start,
        origin=start,
        tip=past.tip,
        truth=past.tip,
        tree=tree,
        results=past.results,
    )


def _report_already_undone(context: MergeContext, out: _Out) -> MergeReport:
    """Say how things are: whoever took the work out may have been killed before that was said."""
    return _report(context, out, _standing(context, out.past, start=out.past.start), out.at or None)


def _stuck(context: MergeContext, out: _Out, found: Conflicted, into: str, old: str) -> MergeReport:
    said = f"what came after it on {into} changes the same places; take it out there with `git revert`"
    results = tuple(
        MergeResult(session=one, status=MergeStatus.CONFLICTS, message=said, conflicts=found.conflicts)
        for one in out.sessions
    )
    left = Delivery(into=into, status=DeliveryStatus.UNCHANGED, old=old, new=old)
    return MergeReport(
        run=context.run,
        strategy=out.past.strategy,
        branch=context.branch,
        start=out.past.start,
        commit=out.at or None,
        results=results,
        delivery=left,
    )


def _report(context: MergeContext, out: _Out, chain: Chain, tip: str | None) -> MergeReport:
    return MergeReport(
        run=context.run,
        strategy=out.past.strategy,
        branch=context.branch,
        start=chain.start,
        commit=tip,
        results=(*chain.results, *chain.refused),
        left_out=out.all_out,
    )
