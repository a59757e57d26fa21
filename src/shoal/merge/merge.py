"""A whole merge: select sessions, build the integration branch outside every checkout, move it, deliver it."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from shoal.errors import BadInput, Broken
from shoal.git.commits import Ancestry, Commit, is_ancestor, missing_commits, since
from shoal.git.conflicts import Clean
from shoal.git.merge import MergeRepository, workbench
from shoal.git.refs import refusal
from shoal.merge.candidates import (
    ALL_ALLOWED,
    Candidate,
    Selection,
    find_workers,
    hold_dependants,
    order_candidates,
    preview_merge,
    select_candidates,
)
from shoal.merge.commits import Chain, CommitBuilder, update_message
from shoal.merge.deliver import deliver, find_target, move_integration, wait_for_approval
from shoal.merge.queue import land_candidates
from shoal.merge.request import HEADS, MergeContext, MergeHistory, MergeRequest, hold_merge_lock, record_merge_ended
from shoal.merge.tree_check import TreeCheck, Verdicts, shorten_log
from shoal.model.conflict_rule import ConflictRule
from shoal.model.merge import Delivery, MergeRecorded, MergeReport, MergeResult, MergeStatus, Preview, Strategy
from shoal.model.results import WorkerResult

MAX_TRIES = 8


async def merge(
    context: MergeContext, request: MergeRequest, workers: Sequence[WorkerResult] | None = None
) -> MergeReport:
    """Merge the sessions of a run, or *workers*; a second call continues where the first stopped."""
    verdicts = Verdicts(request.verify)
    async with hold_merge_lock(context):
        for _ in range(MAX_TRIES):
            if (report := await _try_merge(context, request, workers, verdicts)) is not None:
                return await record_merge_ended(context, report)
    raise await _explain_stuck_branch(context, request)


async def preview(context: MergeContext, sessions: Sequence[str] = ()) -> Preview:
    """Find out which sessions conflict, without changing anything."""
    workers = await find_workers(context.repository, context.report, sessions)
    selection = select_candidates(workers, named=sessions, allowed=ALL_ALLOWED)
    sources = [candidate.source for candidate in selection.candidates]
    selection = selection.without_missing(await missing_commits(context.repository, sources))
    bases = {worker.session: worker.base for worker in workers if worker.base}
    return await preview_merge(context.repository, context.run, context.report.base, selection.candidates, bases)


async def _try_merge(
    context: MergeContext, request: MergeRequest, workers: Sequence[WorkerResult] | None, verdicts: Verdicts
) -> MergeReport | None:
    """Try the whole merge once; return `None` if somebody moved a branch meanwhile."""
    attempt = await _start_attempt(context, request, workers, verdicts)
    chain = await _integrate(attempt)
    if chain is None:
        return None
    fault = await _verify_branch(chain, verdicts)
    delivery = None
    if request.into is not None and fault is None and not request.resolving.stop.is_set():
        delivery = await _deliver(attempt, chain, request.into)
        if delivery is None:
            return None
    return _report(attempt, chain, delivery, fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBase:
    """What the merge builds on: the integration branch, its history, and the target that it must contain."""

    branch_tip: str
    """Empty if there is no integration branch yet."""
    history: MergeHistory
    target: str
    """The tip of the branch to deliver into, or the start of the integration branch."""
    form: Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One try of a merge."""

    context: MergeContext
    request: MergeRequest
    base: MergeBase
    workers: Sequence[WorkerResult]
    selection: Selection
    names_sessions: bool
    verdicts: Verdicts

    @property
    def history(self) -> MergeHistory:
        return self.base.history


async def _start_attempt(
    context: MergeContext, request: MergeRequest, workers: Sequence[WorkerResult] | None, verdicts: Verdicts
) -> _Attempt:
    """Read the branch and its history, and select the sessions to merge."""
    branch_tip = await context.read_branch_tip()
    history = context.read_history(branch_tip)
    if history.unrecorded is not None:  # the process that moved the branch was killed before it recorded that
        await context.ledger.append(MergeRecorded(run=context.run, new=history.unrecorded))
    target = history.start or context.report.base
    if request.into is not None:
        target = await find_target(context.repository, request.into)
    chosen = workers
    if chosen is None:
        chosen = await find_workers(context.repository, context.report, request.sessions)
    selection = select_candidates(chosen, named=request.sessions, allowed=request.allowed, removed=history.removed)
    sources = [candidate.source for candidate in selection.candidates]
    sources += [result.source for result in history.results if result.source]
    missing = await missing_commits(context.repository, sources)
    return _Attempt(
        context=context,
        request=request,
        base=MergeBase(
            branch_tip=branch_tip,
            history=history.without_missing(missing),
            target=target,
            form=request.strategy.form,
        ),
        workers=chosen,
        selection=selection.without_missing(missing),
        names_sessions=bool(request.sessions) or workers is not None,
        verdicts=verdicts,
    )


async def _integrate(attempt: _Attempt) -> Chain | None:
    """Build the integration branch and move it; return `None` if somebody else moved it meanwhile."""
    async with workbench(attempt.context.repository) as bench:
        chain = await find_base(attempt.context, bench, attempt.base)
        _assert_rebuildable(attempt, chain)
        queue = await _queue_candidates(attempt, chain)
        chain = _hold_candidates(attempt, queue, chain)
        builder, tree_before = CommitBuilder(bench, queue.ancestry, queue.preview), chain.tree
        rest = queue.without({result.session for result in chain.refused})
        chain = await land_candidates(builder, chain, rest, attempt.verdicts, attempt.request.width)
        return await _keep_and_resolve(attempt, queue, builder, chain, tree_before)


async def _verify_branch(chain: Chain, verdicts: Verdicts) -> str | None:
    """Verify what is merged: an earlier merge may have landed it without verifying."""
    if not chain.results or chain.base_fault is not None:
        return None
    fault = await verdicts.find_failure(chain.tree, chain.tip)
    return None if fault is None else shorten_log(fault)


async def _deliver(attempt: _Attempt, chain: Chain, into: str) -> Delivery | None:
    """Deliver the integration branch, or wait for approval; return `None` if somebody moved *into* meanwhile."""
    if not attempt.request.waits:
        return await deliver(attempt.context, into, attempt.base.target, chain.tip)
    names = [worker.session for worker in attempt.workers] if attempt.names_sessions else []
    return wait_for_approval(attempt.context, into, attempt.base.target, chain.tip, names)


def _report(attempt: _Attempt, chain: Chain, delivery: Delivery | None, fault: str | None) -> MergeReport:
    # What is merged stays reported as merged, even if it is no longer allowed or its branch is gone.
    merged = {result.session for result in chain.results}
    settled = (result for result in attempt.selection.settled if result.session not in merged)
    return MergeReport(
        run=attempt.context.run,
        strategy=attempt.request.strategy,
        branch=attempt.context.branch,
        start=chain.start,
        commit=chain.tip if attempt.base.branch_tip or chain.tip != chain.start else None,
        results=(*chain.results, *chain.refused, *settled),
        delivery=delivery,
        left_out=attempt.selection.left_out,
        base_fault=chain.base_fault,
        branch_fault=fault,
    )


async def _explain_stuck_branch(context: MergeContext, request: MergeRequest) -> Broken:
    for ref in (context.ref, *([f"{HEADS}{request.into}"] if request.into else [])):
        if (reason := await refusal(context.repository, ref, context.report.base)) is not None:
            return Broken(f"git cannot move {ref.removeprefix(HEADS)}: {reason}; fix that, and try again")
    return Broken(f"{request.into or context.branch} was moved {MAX_TRIES} times while it was merged into; try again")


@dataclass(frozen=True, slots=True, kw_only=True)
class _CandidateQueue:
    """The candidates in merge order, and how they relate to each other."""

    again: Sequence[Candidate]
    """Merged before, and to be merged anew because the branch is rebuilt."""
    fresh: Sequence[Candidate]
    preview: Preview
    ancestry: Ancestry

    @property
    def candidates(self) -> list[Candidate]:
        return [*self.again, *self.fresh]

    def without(self, sessions: Container[str]) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.session not in sessions]


async def _queue_candidates(attempt: _Attempt, chain: Chain) -> _CandidateQueue:
    """Put what was merged before first, then the new sessions, in the requested order or by fewest conflicts."""
    context, selection = attempt.context, attempt.selection
    in_chain = {result.session for result in chain.results}
    subjects = {candidate.session: candidate.subject for candidate in selection.candidates}
    # Use the commit that was merged: the session may have been redone since.
    before = [
        Candidate(session=result.session, source=result.source, subject=subjects.get(result.session, ""))
        for result in attempt.history.results
        if result.source
    ]
    again = [candidate for candidate in before if candidate.session not in in_chain]
    queued = in_chain | {candidate.session for candidate in again}
    fresh = [candidate for candidate in selection.candidates if candidate.session not in queued]
    view = await preview_merge(context.repository, context.run, context.report.base, [*before, *fresh])
    tips = [candidate.source for candidate in (*before, *fresh)]
    return _CandidateQueue(
        again=again,
        fresh=fresh if attempt.request.sessions else order_candidates(fresh, view),
        preview=view,
        ancestry=await since(context.repository, (chain.start, context.report.base), [*tips, chain.origin]),
    )


def _hold_candidates(attempt: _Attempt, queue: _CandidateQueue, chain: Chain) -> Chain:
    """Hold sessions that were delivered and reverted, and those that build on held work."""
    reverted = [
        candidate
        for candidate in queue.candidates
        if candidate.session in attempt.history.removed and candidate.source not in queue.ancestry.parents
    ]
    for candidate in reverted:
        # Git considers it merged, and would not merge it again.
        message = "it was delivered and then reverted; revert that commit with `git revert` to get it back"
        chain = chain.without(
            MergeResult(session=candidate.session, status=MergeStatus.HELD, source=candidate.source, message=message)
        )
    allowed = attempt.request.allowed
    if allowed == ALL_ALLOWED:
        return chain
    recorded = attempt.context.report.workers
    held = [worker for worker in (*attempt.workers, *recorded) if allowed.bars(worker)]
    sources = (candidate.source for candidate in queue.again)
    merged = queue.ancestry.reach((*chain.sources, chain.tip, *sources))
    fresh = [candidate for candidate in queue.fresh if candidate not in reverted]
    for result in hold_dependants(fresh, held, queue.ancestry, merged):
        chain = chain.without(result)
    return chain


def _assert_rebuildable(attempt: _Attempt, chain: Chain) -> None:
    """Refuse to rebuild the branch without work that only the old branch still has."""
    merged, branch = {result.session for result in chain.results}, attempt.context.branch
    history = attempt.history.results
    if lost := [result.session for result in history if result.source is None and result.session not in merged]:
        problem = f"{branch} would have to be rebuilt, and the commits of {', '.join(lost[:5])} are gone"
        raise BadInput(f"{problem}: their branches were deleted; merge {branch} yourself with `git merge`")


async def _keep_and_resolve(
    attempt: _Attempt, queue: _CandidateQueue, builder: CommitBuilder, chain: Chain, tree_before: str
) -> Chain | None:
    """Move the branch to *chain*, resolving conflicts if a rule says so; return `None` if somebody else moved it."""
    history, resolving = attempt.history, attempt.request.resolving
    branch = _IntegrationBranch(attempt, attempt.base.branch_tip)
    has_rule = resolving.rule is not ConflictRule.REPORT or any(result.resolved_by for result in history.results)
    if not has_rule or not any(result.status is MergeStatus.CONFLICTS for result in chain.refused):
        return chain if await branch.move(chain) else None
    from shoal.merge.conflicts import ConflictContext, resolve_conflicts  # imports everything that sessions need

    conflict_context = ConflictContext(
        merge=attempt.context,
        builder=builder,
        tree_check=TreeCheck(builder.bench, tree_before, attempt.verdicts),
        resolving=resolving,
        allowed=attempt.request.allowed,
        candidates={candidate.session: candidate for candidate in queue.candidates},
        workers={worker.session: worker for worker in attempt.workers},
        earlier={result.session: result for result in history.results},
    )
    return await resolve_conflicts(conflict_context, chain, branch.move)


@dataclass(slots=True)
class _IntegrationBranch:
    """The integration branch, which moves from *tip* to one chain after the other."""

    attempt: _Attempt
    tip: str

    async def move(self, chain: Chain) -> bool:
        """Move the branch to *chain*; return `False` if somebody else moved it."""
        if chain.tip == self.tip or (not self.tip and chain.tip == chain.start):
            return True
        request = self.attempt.request
        removed = tuple(name for name in self.attempt.history.removed if name not in request.sessions)
        if not await move_integration(
            self.attempt.context, chain, self.tip, strategy=request.strategy, removed=removed
        ):
            return False
        self.tip = chain.tip
        return True


async def find_base(context: MergeContext, bench: MergeRepository, base: MergeBase) -> Chain:
    """Decide which chain to continue; raise `BadInput` if a person has to decide."""
    await _assert_related(context, base)
    repository, history = context.repository, base.history
    is_ours = base.branch_tip == history.tip
    is_foreign = base.branch_tip and not is_ours
    if is_foreign and not (history.tip and await is_ancestor(repository, history.tip, base.branch_tip)):
        problem = f"{context.branch} is not where Shoal left it"
        raise BadInput(f"{problem}; rename it with `git branch -m`, or delete it to have it rebuilt")
    is_same_form = history.strategy.form is base.form
    if base.branch_tip and is_same_form and await is_ancestor(repository, base.target, base.branch_tip):
        return await _start_chain(bench, context, base, tip=base.branch_tip, start=history.start)
    if history.tip and history.results and await is_ancestor(repository, history.tip, base.target):
        return await _start_chain(bench, context, base, tip=base.target, start=base.target)
    if is_ours or not base.branch_tip:
        rebuilt = replace(base, history=replace(history, results=()))
        return await _start_chain(bench, context, rebuilt, tip=base.target, start=base.target)
    if not is_same_form:
        raise BadInput(f"{context.branch} has commits of your own; merge with the strategy that made it, or rename it")
    return await _merge_target(context, bench, base)


async def _assert_related(context: MergeContext, base: MergeBase) -> None:
    start = context.report.base
    if base.form is Strategy.REBASE or await is_ancestor(context.repository, start, base.target):
        return
    problem = f"{base.target[:10]} does not contain {start[:10]}, which {context.run} started from"
    raise BadInput(f"{problem}: it was rewritten, or is another branch; use `--strategy rebase` to replay the changes")


async def _merge_target(context: MergeContext, bench: MergeRepository, base: MergeBase) -> Chain:
    """Merge the target into a branch that has commits of the user, which is never rebuilt."""
    match await bench.try_merge(base.branch_tip, base.target):
        case Clean(tree):
            message = update_message(context.run, base.target)
            tip = bench.commit(Commit(tree=tree, parents=(base.branch_tip, base.target), message=message))
            return await _start_chain(bench, context, base, tip=tip, start=base.target)
        case conflicted:
            files = ", ".join(conflicted.paths[:5])
            problem = f"{context.branch}, which has commits of your own, conflicts with {base.target[:10]} in {files}"
            raise BadInput(f"{problem}; merge them yourself: `git switch {context.branch}`, then `git merge`")


async def _start_chain(
    bench: MergeRepository, context: MergeContext, base: MergeBase, *, tip: str, start: str
) -> Chain:
    tree, results = await bench.tree(tip), base.history.results
    sources = tuple(result.source for result in results if result.source)
    history_commit = tip
    if base.form is not Strategy.AUTO and sources:
        # The tip's own commits do not show whose work it contains; this one does.
        history_commit = bench.commit(Commit(tree=tree, parents=(tip, *sources), message="history\n"))
    return Chain(
        run=context.run,
        form=base.form,
        start=start,
        origin=tip,
        tip=tip,
        history_commit=history_commit,
        tree=tree,
        bases=tuple(commit for commit in (base.branch_tip, base.target) if commit),
        results=results,
    )
