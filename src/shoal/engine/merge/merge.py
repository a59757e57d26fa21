"""A whole merge: look, build beside every checkout, move the integration branch, deliver it where that was asked."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from shoal.engine.merge.build import built
from shoal.engine.merge.candidates import Candidate, Lot, lot, without
from shoal.engine.merge.chain import Chain, Smith
from shoal.engine.merge.deliver import delivered, target
from shoal.engine.merge.desk import HEADS, Desk, MergeAsk, at_work
from shoal.engine.merge.footing import Ground, footing
from shoal.engine.merge.land import landed
from shoal.engine.merge.line import ordered
from shoal.engine.merge.look import Look, Verdicts
from shoal.engine.merge.past import Past
from shoal.engine.merge.preview import previewed
from shoal.engine.merge.rounds import counting
from shoal.engine.merge.standing import barred
from shoal.engine.merge.tell import told
from shoal.errors import BadInput, Broken
from shoal.git.ancestry import gone, since
from shoal.git.merge import workbench
from shoal.git.refs import refusal
from shoal.model.conflict_rule import ConflictRule
from shoal.model.merge import Delivery, MergeReport, MergeResult, MergeStatus, Preview
from shoal.model.merge_events import MergeRecorded
from shoal.model.results import WorkerResult

TRIES = 8


async def merge(desk: Desk, ask: MergeAsk, workers: Sequence[WorkerResult] | None = None) -> MergeReport:
    """Merge the sessions of a run, or *workers*; done again, it goes on where it was, and changes nothing twice."""
    verdicts = Verdicts(ask.verify)
    async with at_work(desk):
        for _ in range(TRIES):
            if (report := await _tried(desk, ask, workers, verdicts)) is not None:
                return await told(desk, report)
    for ref in (desk.ref, *([f"{HEADS}{ask.into}"] if ask.into else [])):
        if (said := await refusal(desk.repository, ref, desk.report.base)) is not None:
            raise Broken(f"git cannot move {ref.removeprefix(HEADS)}: {said}; mend that, and try again")
    raise Broken(f"{ask.into or desk.branch} was moved {TRIES} times while it was merged into; try again")


async def preview(desk: Desk, sessions: Sequence[str] = ()) -> Preview:
    """Say which sessions would conflict; nothing is changed."""
    workers = await counting(desk.repository, desk.report, sessions)
    chosen = lot(workers, named=sessions, allow_executable=True)
    chosen = without(chosen, await gone(desk.repository, [one.source for one in chosen.candidates]))
    bases = {one.session: one.base for one in workers if one.base}
    return await previewed(desk.repository, desk.run, desk.report.base, chosen.candidates, bases)


async def _tried(
    desk: Desk, ask: MergeAsk, workers: Sequence[WorkerResult] | None, verdicts: Verdicts
) -> MergeReport | None:
    """Try the whole once; `None` when somebody moved a branch meanwhile."""
    at = await desk.at()
    past = desk.past(at)
    if past.unrecorded is not None:  # whoever moved the branch was killed before that was written down
        await desk.ledger.append(MergeRecorded(run=desk.run, new=past.unrecorded))
    wanted = await target(desk, ask.into) if ask.into is not None else past.start or desk.report.base
    given = list(workers) if workers is not None else await counting(desk.repository, desk.report, ask.sessions)
    chosen = lot(given, named=ask.sessions, allow_executable=ask.allow_executable, out=past.out)
    lost = await gone(desk.repository, _sources(chosen.candidates, past.results))
    chosen, past = without(chosen, lost), past.without(lost)
    ground = Ground(at=at, past=past, wanted=wanted, form=ask.strategy.form)
    chain = await _integrated(desk, ask, chosen, ground, _Work(given, verdicts))
    if chain is None:
        return None
    delivery: Delivery | None = None
    if ask.into is not None and not ask.resolving.stop.is_set():
        delivery = await delivered(desk, ask.into, wanted, chain.tip)
        if delivery is None:
            return None
    merged = {
        one.session for one in chain.results
    }  # what was allowed once, or has lost its branch since, is merged still
    return MergeReport(
        run=desk.run,
        strategy=ask.strategy,
        branch=desk.branch,
        start=chain.start,
        commit=chain.tip if at or chain.tip != chain.start else None,
        results=(*chain.results, *chain.refused, *(one for one in chosen.settled if one.session not in merged)),
        delivery=delivery,
        left_out=chosen.left_out,
        base_fault=chain.base_fault,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """What is merged, and what is known of trees."""

    workers: Sequence[WorkerResult]
    verdicts: Verdicts


async def _integrated(desk: Desk, ask: MergeAsk, chosen: Lot, ground: Ground, work: _Work) -> Chain | None:
    """Build what is asked for on what is there, and keep it; `None` when somebody moved the branch meanwhile."""
    past, base = ground.past, desk.report.base
    async with workbench(desk.repository) as bench:
        chain = await footing(desk, bench, ground)
        merged = {one.session for one in chain.results}
        _assert_whole(desk, past, merged)
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
        if not ask.allow_executable:
            known = (*work.workers, *(one for step in desk.report.steps for one in step.worker_results))
            there = ancestry.reach((*chain.sources, chain.tip, *(one.source for one in again)))
            for refused in barred([one for one in fresh if one not in reverted], known, ancestry, there):
                chain = chain.without(refused)
        aside = {one.session for one in chain.refused}
        rest = [one for one in line if one.session not in aside]
        smith, tree = Smith(bench, ancestry, view), chain.tree
        chain = await built(smith, chain, rest, work.verdicts, ask.width)
        keeper = _Keeper(desk, ask, past, ground.at)
        is_ruled = ask.resolving.rule is not ConflictRule.REPORT or any(one.resolved_by for one in past.results)
        if not is_ruled or not any(one.status is MergeStatus.CONFLICTS for one in chain.refused):
            return chain if await keeper.keep(chain) else None
        from shoal.engine.merge.settling import settled  # brings in all that sessions need
        from shoal.engine.merge.table import Table

        table = Table(
            desk=desk,
            smith=smith,
            look=Look(bench, tree, work.verdicts),
            how=ask.resolving,
            allow_executable=ask.allow_executable,
            candidates={one.session: one for one in line},
            workers={one.session: one for one in work.workers},
            past={one.session: one for one in past.results},
        )
        return await settled(table, chain, keeper.keep)


@dataclass(slots=True)
class _Keeper:
    """Moves the integration branch on, from where it is *at*."""

    desk: Desk
    ask: MergeAsk
    past: Past
    at: str

    async def keep(self, chain: Chain) -> bool:
        """Let the branch go to *chain*; `False` when somebody else moved it."""
        if chain.tip == self.at or (not self.at and chain.tip == chain.start):
            return True
        out = tuple(name for name in self.past.out if name not in self.ask.sessions)
        if not await landed(self.desk, chain, self.at, strategy=self.ask.strategy, out=out):
            return False
        self.at = chain.tip
        return True


def _sources(*sorts: Sequence[Candidate | MergeResult]) -> list[str]:
    return [one.source for some in sorts for one in some if one.source]


def _assert_whole(desk: Desk, past: Past, merged: Container[str]) -> None:
    """Refuse to build a branch anew without work that only the old one still has."""
    if lost := [one.session for one in past.results if one.source is None and one.session not in merged]:
        what = f"{desk.branch} would have to be built anew, and the own commits of {', '.join(lost[:5])} are gone"
        raise BadInput(f"{what}: their branches were deleted; merge {desk.branch} yourself with `git merge`")


def _reverted(one: Candidate) -> MergeResult:
    """Say why git would not bring in again what was delivered and then reverted: it takes it for merged."""
    said = "it was delivered and taken out by a revert; `git revert` that commit to have it back"
    return MergeResult(session=one.session, status=MergeStatus.HELD, source=one.source, message=said)


def _known(one: Candidate, chosen: Lot) -> Candidate:
    """Give what it was asked for; what counts as its work is what was merged, which may have been done again."""
    subjects = {other.session: other.subject for other in chosen.candidates}
    return replace(one, subject=subjects.get(one.session, ""))
