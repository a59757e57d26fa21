"""A whole merge: look, build beside every checkout, move the integration branch, deliver it where that was asked."""

from collections.abc import Sequence

from shoal.engine.merge.build import built
from shoal.engine.merge.candidates import Candidate, Lot, lot, workers_of
from shoal.engine.merge.chain import Chain, Smith
from shoal.engine.merge.deliver import delivered, target
from shoal.engine.merge.desk import Desk, MergeAsk, at_work
from shoal.engine.merge.footing import Ground, footing
from shoal.engine.merge.land import landed
from shoal.engine.merge.line import ordered
from shoal.engine.merge.past import Past
from shoal.engine.merge.preview import previewed
from shoal.errors import Broken
from shoal.git.ancestry import since
from shoal.git.merge import workbench
from shoal.model.merge import Delivery, MergeReport, MergeResult, MergeStatus, Preview
from shoal.model.merge_events import MergeRecorded
from shoal.model.results import WorkerResult

TRIES = 8


async def merge(desk: Desk, ask: MergeAsk, workers: Sequence[WorkerResult] | None = None) -> MergeReport:
    """Merge the sessions of a run, or *workers*; done again, it goes on where it was, and changes nothing twice."""
    async with at_work(desk):
        for _ in range(TRIES):
            if (report := await _tried(desk, ask, workers)) is not None:
                return report
    raise Broken(f"{ask.into or desk.branch} was moved {TRIES} times while it was merged into; try again")


async def preview(desk: Desk, sessions: Sequence[str] = ()) -> Preview:
    """Say which sessions would conflict; nothing is changed."""
    chosen = lot(workers_of(desk.report, sessions), named=sessions, allow_executable=True)
    return await previewed(desk.repository, desk.run, desk.report.base, chosen.candidates)


async def _tried(desk: Desk, ask: MergeAsk, workers: Sequence[WorkerResult] | None) -> MergeReport | None:
    """Try the whole once; `None` when somebody moved a branch meanwhile."""
    at = await desk.at()
    past = desk.past(at)
    if past.unrecorded is not None:  # whoever moved the branch was killed before that was written down
        await desk.ledger.append(MergeRecorded(run=desk.run, new=past.unrecorded))
    wanted = await target(desk, ask.into) if ask.into else past.start or desk.report.base
    chosen = _chosen(desk, ask, past, workers)
    chain = await _integrated(desk, ask, chosen, Ground(at=at, past=past, wanted=wanted, form=ask.strategy.form))
    out = tuple(name for name in past.out if name not in ask.sessions)
    is_new = chain.tip != at and (at or chain.tip != chain.start)
    if is_new and not await landed(desk, chain, at, strategy=ask.strategy, out=out):
        return None
    delivery: Delivery | None = None
    if ask.into is not None:
        delivery = await delivered(desk, ask.into, wanted, chain.tip)
        if delivery is None:
            return None
    return MergeReport(
        run=desk.run,
        strategy=ask.strategy,
        branch=desk.branch,
        start=chain.start,
        commit=chain.tip if at or is_new else None,
        results=(*chain.results, *chain.refused, *chosen.settled),
        delivery=delivery,
        left_out=chosen.left_out,
    )


def _chosen(desk: Desk, ask: MergeAsk, past: Past, workers: Sequence[WorkerResult] | None) -> Lot:
    given = list(workers) if workers is not None else workers_of(desk.report, ask.sessions)
    return lot(given, named=ask.sessions, allow_executable=ask.allow_executable, out=past.out)


async def _integrated(desk: Desk, ask: MergeAsk, chosen: Lot, ground: Ground) -> Chain:
    """Build what is asked for on what is there."""
    past, base = ground.past, desk.report.base
    async with workbench(desk.repository) as bench:
        chain = await footing(desk, bench, ground)
        merged = {one.session for one in chain.results}
        before = [Candidate(session=one.session, source=one.source) for one in past.results if one.source]
        again = [_known(one, chosen) for one in before if one.session not in merged]
        fresh = [one for one in chosen.candidates if one.session not in merged | {one.session for one in again}]
        view = await previewed(desk.repository, desk.run, base, [*before, *fresh])
        line = [*again, *(fresh if ask.sessions else ordered(fresh, view))]
        tips = [one.source for one in (*before, *line)]
        ancestry = await since(desk.repository, (chain.start, base), [*tips, chain.origin])
        reverted = [one for one in line if one.session in past.out and one.source not in ancestry.parents]
        for one in reverted:
            chain = chain.without(_reverted(one))
        rest = [one for one in line if one not in reverted]
        return await built(Smith(bench, ancestry, view), chain, rest, ask.verify)


def _reverted(one: Candidate) -> MergeResult:
    """Say why git would not bring in again what was delivered and then reverted: it takes it for merged."""
    said = "it was delivered and taken out by a revert; `git revert` that commit to have it back"
    return MergeResult(session=one.session, status=MergeStatus.HELD, source=one.source, message=said)


def _known(one: Candidate, chosen: Lot) -> Candidate:
    return next((other for other in chosen.candidates if other.session == one.session), one)
