"""Taking sessions out again: the integration is built without them, and what was delivered gets a revert."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.engine.merge.build import built
from shoal.engine.merge.candidates import Candidate
from shoal.engine.merge.chain import Chain, Smith
from shoal.engine.merge.deliver import delivered, target
from shoal.engine.merge.desk import HEADS, Desk, Resolving, at_work
from shoal.engine.merge.land import landed, taken_away
from shoal.engine.merge.look import Look, Verdicts
from shoal.engine.merge.past import Past
from shoal.engine.merge.tell import told
from shoal.engine.merge.wording import revert_message
from shoal.errors import BadInput, Broken
from shoal.git.ancestry import is_ancestor, since
from shoal.git.commits import Commit
from shoal.git.conflicts import Clean, Conflicted
from shoal.git.merge import Bench, workbench
from shoal.git.refs import value
from shoal.model.merge import Delivery, DeliveryStatus, MergeReport, MergeResult, MergeStatus, Preview
from shoal.model.merge_events import DeliveryIntended, MergeRecorded

TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Out:
    """What is to be taken out of what."""

    sessions: tuple[str, ...]
    past: Past
    at: str

    @property
    def kept(self) -> list[MergeResult]:
        return [one for one in self.past.results if one.session not in self.sessions]

    @property
    def all_out(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.past.out, *self.sessions)))


async def undo(desk: Desk, sessions: Sequence[str] = ()) -> MergeReport:
    """Take *sessions*, or all of the run, out of the integration, and of the branch that it was delivered into."""
    async with at_work(desk):
        for _ in range(TRIES):
            if (report := await _tried(desk, sessions)) is not None:
                is_stuck = any(one.status is MergeStatus.CONFLICTS for one in report.results)
                return report if is_stuck else await told(desk, report)
    raise Broken(f"{desk.branch} was moved {TRIES} times while it was changed; try again")


async def _tried(desk: Desk, sessions: Sequence[str]) -> MergeReport | None:
    at = await desk.at()
    past = desk.past(at)
    if past.unrecorded is not None:
        await desk.ledger.append(MergeRecorded(run=desk.run, new=past.unrecorded))
    merged = [one.session for one in past.results]
    if (begun := _begun(past, at, sessions)) is not None:
        return await _finished(desk, _Out(sessions=tuple(sessions or past.out), past=past, at=at), begun)
    if past.out and set(sessions or past.out) <= set(past.out) - set(merged) and (sessions or not merged):
        return _done_already(desk, _Out(sessions=tuple(sessions), past=past, at=at))
    if not merged:
        raise BadInput(f"nothing of {desk.run} is merged, so there is nothing to take out")
    for session in sessions:
        if session not in merged:
            raise BadInput(f"{session} is not merged; what is: {', '.join(merged[:10])}")
    out = _Out(sessions=tuple(sessions or merged), past=past, at=at)
    async with workbench(desk.repository) as bench:
        chain = await _rebuilt(desk, bench, out)
        into = await _holder(desk, past)
        if into is not None:
            return await _reverted(desk, bench, out, chain, into)
    if at != past.tip:
        raise BadInput(f"{desk.branch} has commits of your own; take the work out there with `git revert`")
    is_moved = (
        await landed(desk, chain, at, strategy=past.strategy, out=out.all_out)
        if out.kept
        else await taken_away(desk, at, strategy=past.strategy, out=out.all_out)
    )
    return _report(desk, out, chain, chain.tip if out.kept else None) if is_moved else None


async def _rebuilt(desk: Desk, bench: Bench, out: _Out) -> Chain:
    """Merge again what stays, in the same order; raise where it stands on what goes."""
    past = out.past
    kept = [Candidate(session=one.session, source=str(one.source)) for one in out.kept]
    gone = [one for one in past.results if one.session in out.sessions]
    ancestry = await since(desk.repository, (past.start, desk.report.base), [str(one.source) for one in past.results])
    for one in kept:
        below = ancestry.reach([one.source])
        if on := [other.session for other in gone if other.source in below]:
            raise BadInput(f"{one.session} stands on {', '.join(on)}; name it too, or leave both")
    tree = await bench.tree(past.start)
    empty = Chain(
        run=desk.run,
        form=past.strategy.form,
        start=past.start,
        origin=past.start,
        tip=past.start,
        truth=past.start,
        tree=tree,
    )
    smith = Smith(bench, ancestry, Preview(run=desk.run, sessions=()))
    chain = await built(smith, empty, kept, Verdicts())
    if chain.refused:
        chain = await _resolved_again(desk, smith, chain, kept, past)
    if chain.refused:
        lost = ", ".join(one.session for one in chain.refused)
        raise BadInput(f"{lost} cannot be had without what is to be taken out; name it too, or leave both")
    return chain


async def _resolved_again(desk: Desk, smith: Smith, chain: Chain, kept: Sequence[Candidate], past: Past) -> Chain:
    """Resolve what was resolved before in the same way."""
    from shoal.engine.merge.settling import settled  # brings in all that sessions need
    from shoal.engine.merge.table import Table

    table = Table(
        desk=desk,
        smith=smith,
        look=Look(smith.bench, chain.tree, Verdicts()),
        how=Resolving(),
        allow_executable=True,
        candidates={one.session: one for one in kept},
        workers={},
        past={one.session: one for one in past.results},
    )

    async def beside(_: Chain) -> bool:
        return True

    return await settled(table, chain, beside) or chain


async def _holder(desk: Desk, past: Past) -> str | None:
    """Name the branch of the user's that holds the integration, if one does; of several, none can be meant."""
    holding: list[str] = []
    for into in past.deliveries:
        here = await value(desk.repository, f"{HEADS}{into}")  # it may be deleted by now
        if here is not None and await is_ancestor(desk.repository, past.tip, here):
            holding.append(into)
    if len(holding) > 1:
        said = f"{' and '.join(holding)} both hold it, and one revert cannot be in both"
        raise BadInput(f"{said}; take it out of each with `git revert`")
    return next(iter(holding), None)


async def _reverted(desk: Desk, bench: Bench, out: _Out, without: Chain, into: str) -> MergeReport | None:
    """Take the difference between with and without them out of the branch as it is now, by one commit."""
    old = await target(desk, into)
    if out.at and not await is_ancestor(desk.repository, out.at, old):
        raise BadInput(f"{desk.branch} has commits that {into} has not; deliver them first, or delete that branch")
    ground = bench.commit(Commit(tree=await bench.tree(out.past.tip), parents=(), message="with\n"))
    here, there = (
        bench.commit(Commit(tree=tree, parents=(ground,), message="side\n"))
        for tree in (await bench.tree(old), without.tree)
    )
    match await bench.tried(here, there):
        case Conflicted() as found:
            return _stuck(desk, out, found, into, old)
        case Clean(tree):
            said = revert_message(desk.run, out.sessions)
            tip = bench.commit(Commit(tree=tree, parents=(old,), message=said))
            await bench.publish(tip, (old,))
    chain = replace(without, start=old, origin=old, tip=tip, tree=tree, results=tuple(out.kept))
    return await _brought(desk, out, chain, into)


async def _brought(desk: Desk, out: _Out, chain: Chain, into: str) -> MergeReport | None:
    """Let our branch and then the user's go to a revert; cut off between, the first word says where to go on."""
    old, tip = chain.start, chain.tip
    await desk.ledger.append(DeliveryIntended(run=desk.run, into=into, old=old, new=tip, is_undo=True))
    if not await landed(desk, chain, out.at, strategy=out.past.strategy, out=out.all_out):
        return None
    delivery = await delivered(desk, into, old, tip, is_undo=True)
    return None if delivery is None else replace(_report(desk, out, chain, tip), delivery=delivery)


def _begun(past: Past, at: str, sessions: Sequence[str]) -> DeliveryIntended | None:
    """Find the revert that our branch has, that the user's was to get, and that takes out what is asked for."""
    is_out = set(sessions) <= set(past.out) if sessions else not past.results
    found = (one for one in past.pending.values() if one.is_undo and one.new == at == past.tip)
    return next(found, None) if at and is_out else None


async def _finished(desk: Desk, out: _Out, begun: DeliveryIntended) -> MergeReport | None:
    """Bring a revert into the user's branch, on top of what came there since."""
    now = await target(desk, begun.into)
    async with workbench(desk.repository) as bench:
        chain = _standing(desk, out.past, start=begun.old, tree=await bench.tree(begun.new))
        if now in (begun.old, begun.new):
            delivery = await delivered(desk, begun.into, now, begun.new, is_undo=True)
            return None if delivery is None else replace(_report(desk, out, chain, begun.new), delivery=delivery)
        if not await is_ancestor(desk.repository, begun.old, now):
            raise BadInput(f"{begun.into} was rewritten meanwhile; take the work out there with `git revert`")
        match await bench.tried(now, begun.new):
            case Conflicted() as found:
                return _stuck(desk, out, found, begun.into, now)
            case Clean(tree):
                said = revert_message(desk.run, out.sessions)
                tip = bench.commit(Commit(tree=tree, parents=(now,), message=said))
                await bench.publish(tip, (now,))
    return await _brought(desk, out, replace(chain, start=now, origin=now, tip=tip, truth=tip, tree=tree), begun.into)


def _standing(desk: Desk, past: Past, *, start: str, tree: str = "") -> Chain:
    """Give the integration as it is."""
    return Chain(
        run=desk.run,
        form=past.strategy.form,
        start=start,
        origin=start,
        tip=past.tip,
        truth=past.tip,
        tree=tree,
        results=past.results,
    )


def _done_already(desk: Desk, out: _Out) -> MergeReport:
    """Say how things are: whoever took the work out may have been killed before that was said."""
    return _report(desk, out, _standing(desk, out.past, start=out.past.start), out.at or None)


def _stuck(desk: Desk, out: _Out, found: Conflicted, into: str, old: str) -> MergeReport:
    said = f"what came after it on {into} changes the same places; take it out there with `git revert`"
    results = tuple(
        MergeResult(session=one, status=MergeStatus.CONFLICTS, message=said, conflicts=found.conflicts)
        for one in out.sessions
    )
    left = Delivery(into=into, status=DeliveryStatus.UNCHANGED, old=old, new=old)
    return MergeReport(
        run=desk.run,
        strategy=out.past.strategy,
        branch=desk.branch,
        start=out.past.start,
        commit=out.at or None,
        results=results,
        delivery=left,
    )


def _report(desk: Desk, out: _Out, chain: Chain, tip: str | None) -> MergeReport:
    return MergeReport(
        run=desk.run,
        strategy=out.past.strategy,
        branch=desk.branch,
        start=chain.start,
        commit=tip,
        results=(*chain.results, *chain.refused),
        left_out=out.all_out,
    )
