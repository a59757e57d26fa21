"""A whole merge: look, build beside every checkout, move the integration branch, deliver it where that was asked."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from shoal.errors import BadInput, Broken
from shoal.git.ancestry import missing_commits, since
from shoal.git.merge import workbench
from shoal.git.refs import refusal
from shoal.merge.candidates import (
    ALL_ALLOWED,
    Candidate,
    Lot,
    counting,
    hold_dependants,
    lot,
    order_candidates,
    without,
)
from shoal.merge.commits import Chain, CommitBuilder
from shoal.merge.deliver import deliver, move_integration, target, waiting
from shoal.merge.history import MergeHistory
from shoal.merge.preview import preview_merge
from shoal.merge.queue import build
from shoal.merge.request import HEADS, MergeContext, MergeRequest, at_work, record_merge_ended
from shoal.merge.starting_point import MergeBase, find_base
from shoal.merge.tree_check import TreeCheck, Verdicts, shorten_log
from shoal.model.conflict_rule import ConflictRule
from shoal.model.merge import Delivery, MergeRecorded, MergeReport, MergeResult, MergeStatus, Preview
from shoal.model.results import WorkerResult

TRIES = 8


async def merge(
    context: MergeContext, request: MergeRequest, workers: Sequence[WorkerResult] | None = None
) -> MergeReport:
    """Merge the sessions of a run, or *workers*; done again, it goes on where it was, and changes nothing twice."""
    verdicts = Verdicts(request.verify)
    async with at_work(context):
        for _ in range(TRIES):
            if (report := await _try_merge(context, request, workers, verdicts)) is not None:
                return await record_merge_ended(context, report)
    for ref in (context.ref, *([f"{HEADS}{request.into}"] if request.into else [])):
        if (said := await refusal(context.repository, ref, context.report.base)) is not None:
            raise Broken(f"git cannot move {ref.removeprefix(HEADS)}: {said}; mend that, and try again")
    raise Broken(f"{request.into or context.branch} was moved {TRIES} times while it was merged into; try again")


async def preview(context: MergeContext, sessions: Sequence[str] = ()) -> Preview:
    """Say which sessions would conflict; nothing is changed."""
    workers = await counting(context.repository, context.report, sessions)
    chosen = lot(workers, named=sessions, allowed=ALL_ALLOWED)
    chosen = without(chosen, await missing_commits(context.repository, [one.source for one in chosen.candidates]))
    bases = {one.session: one.base for one in workers if one.base}
    return await preview_merge(context.repository, context.run, context.report.base, chosen.candidates, bases)


async def _try_merge(
    context: MergeContext, request: MergeRequest, workers: Sequence[WorkerResult] | None, verdicts: Verdicts
) -> MergeReport | None:
    """Try the whole once; `None` when somebody moved a branch meanwhile."""
    at = await context.at()
    past = context.past(at)
    if past.unrecorded is not None:  # whoever moved the branch was killed before that was written down
        await context.ledger.append(MergeRecorded(run=context.run, new=past.unrecorded))
    wanted = (
        await target(context.repository, request.into)
        if request.into is not None
        else past.start or context.report.base
    )
    given = (
        list(workers) if workers is not None else await counting(context.repository, context.report, request.sessions)
    )
    chosen = lot(given, named=request.sessions, allowed=request.allowed, out=past.out)
    lost = await missing_commits(context.repository, _sources(chosen.candidates, past.results))
    chosen, past = without(chosen, lost), past.without(lost)
    ground = MergeBase(at=at, past=past, wanted=wanted, form=request.strategy.form)
    chain = await _integrate(context, request, chosen, ground, _MergeWork(given, verdicts))
    if chain is None:
        return None
    fault = await _branch_fault(chain, verdicts)
    delivery: Delivery | None = None
    if request.into is not None and fault is None and not request.resolving.stop.is_set():
        if request.waits:
            names = [one.session for one in given] if request.sessions or workers is not None else []
            delivery = waiting(context, request.into, wanted, chain.tip, names)
        else:
            delivery = await deliver(context, request.into, wanted, chain.tip)
        if delivery is None:
            return None
    merged = {
        one.session for one in chain.results
    }  # what was allowed once, or has lost its branch since, is merged still
    return MergeReport(
        run=context.run,
        strategy=request.strategy,
        branch=context.branch,
        start=chain.start,
        commit=chain.tip if at or chain.tip != chain.start else None,
        results=(*chain.results, *chain.refused, *(one for one in chosen.settled if one.session not in merged)),
        delivery=delivery,
        left_out=chosen.left_out,
        base_fault=chain.base_fault,
        branch_fault=fault,
    )


async def _branch_fault(chain: Chain, verdicts: Verdicts) -> str | None:
    """Verify what is merged where no session that came now had it verified: a merge before may not have."""
    if not chain.results or chain.base_fault is not None:
        return None
    fault = await verdicts.of(chain.tree, chain.tip)
    return None if fault is None else shorten_log(fault)


@dataclass(frozen=True, slots=True)
class _MergeWork:
    """What is merged, and what is known of trees."""

    workers: Sequence[WorkerResult]
    verdicts: Verdicts


async def _integrate(
    context: MergeContext, request: MergeRequest, chosen: Lot, ground: MergeBase, work: _MergeWork
) -> Chain | None:
    """Build what is asked for on what is there, and keep it; `None` when somebody moved the branch meanwhile."""
    past, base = ground.past, context.report.base
    async with workbench(context.repository) as bench:
        chain = await find_base(context, bench, ground)
        merged = {one.session for one in chain.results}
        _assert_whole(context, past, merged)
        before = [Candidate(session=one.session, source=one.source) for one in past.results if one.source]
        again = [_as_candidate(one, chosen) for one in before if one.session not in merged]
        fresh = [one for one in chosen.candidates if one.session not in merged | {one.session for one in again}]
        view = await preview_merge(context.repository, context.run, base, [*before, *fresh])
        line = [*again, *(fresh if request.sessions else order_candidates(fresh, view))]
        tips = [one.source for one in (*before, *line)]
        ancestry = await since(context.repository, (chain.start, base), [*tips, chain.origin])
        reverted = [one for one in line if one.session in past.out and one.source not in ancestry.parents]
        for one in reverted:
            chain = chain.without(_already_reverted(one))
        if request.allowed != ALL_ALLOWED:
            known = (*work.workers, *(one for step in context.report.steps for one in step.worker_results))
            there = ancestry.reach((*chain.sources, chain.tip, *(one.source for one in again)))
            rest = [one for one in fresh if one not in reverted]
            for refused in hold_dependants(rest, [one for one in known if request.allowed.bars(one)], ancestry, there):
                chain = chain.without(refused)
        aside = {one.session for one in chain.refused}
        rest = [one for one in line if one.session not in aside]
        smith, tree = CommitBuilder(bench, ancestry, view), chain.tree
        chain = await build(smith, chain, rest, work.verdicts, request.width)
        keeper = _Keeper(context, request, past, ground.at)
        is_ruled = request.resolving.rule is not ConflictRule.REPORT or any(one.resolved_by for one in past.results)
        if not is_ruled or not any(one.status is MergeStatus.CONFLICTS for one in chain.refused):
            return chain if await keeper.keep(chain) else None
        from shoal.merge.conflicts import (
            ConflictContext,
            resolve_conflicts,  # brings in all that sessions need
        )

        table = ConflictContext(
            context=context,
            smith=smith,
            look=TreeCheck(bench, tree, work.verdicts),
            how=request.resolving,
            allowed=request.allowed,
            candidates={one.session: one for one in line},
            workers={one.session: one for one in work.workers},
            past={one.session: one for one in past.results},
        )
        return await resolve_conflicts(table, chain, keeper.keep)


@dataclass(slots=True)
class _Keeper:
    """Moves the integration branch on, from where it is *at*."""

    context: MergeContext
    request: MergeRequest
    past: MergeHistory
    at: str

    async def keep(self, chain: Chain) -> bool:
        """Let the branch go to *chain*; `False` when somebody else moved it."""
        if chain.tip == self.at or (not self.at and chain.tip == chain.start):
            return True
        out = tuple(name for name in self.past.out if name not in self.request.sessions)
        if not await move_integration(self.context, chain, self.at, strategy=self.request.strategy, out=out):
            return False
        self.at = chain.tip
        return True


def _sources(*sorts: Sequence[Candidate | MergeResult]) -> list[str]:
    return [one.source for some in sorts for one in some if one.source]


def _assert_whole(context: MergeContext, past: MergeHistory, merged: Container[str]) -> None:
    """Refuse to build a branch anew without work that only the old one still has."""
    if lost := [one.session for one in past.results if one.source is None and one.session not in merged]:
        what = f"{context.branch} would have to be built anew, and the own commits of {', '.join(lost[:5])} are gone"
        raise BadInput(f"{what}: their branches were deleted; merge {context.branch} yourself with `git merge`")


def _already_reverted(one: Candidate) -> MergeResult:
    """Say why git would not bring in again what was delivered and then reverted: it takes it for merged."""
    said = "it was delivered and taken out by a revert; `git revert` that commit to have it back"
    return MergeResult(session=one.session, status=MergeStatus.HELD, source=one.source, message=said)


def _as_candidate(one: Candidate, chosen: Lot) -> Candidate:
    """Give what it was asked for; what counts as its work is what was merged, which may have been done again."""
    subjects = {other.session: other.subject for other in chosen.candidates}
    return replace(one, subject=subjects.get(one.session, ""))
