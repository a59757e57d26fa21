"""What a merge grows from: the run's base, the branch it is to be delivered into, or what was merged before."""

from dataclasses import dataclass

from shoal.errors import BadInput
from shoal.git.ancestry import is_ancestor
from shoal.git.commits import Commit
from shoal.git.conflicts import Clean
from shoal.git.merge import MergeRepository
from shoal.merge.commits import Chain, update_message
from shoal.merge.history import MergeHistory
from shoal.merge.request import MergeContext
from shoal.model.merge import MergeResult, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBase:
    """What is there: where the integration branch is, what was recorded of it, and what it is to stand on."""

    at: str
    past: MergeHistory
    wanted: str
    """The commit that it must hold: the tip of the branch that it is to be delivered into, or its start."""
    form: Strategy


async def find_base(context: MergeContext, bench: MergeRepository, ground: MergeBase) -> Chain:
    """Say what to go on with; raise `BadInput` where a person has to decide."""
    await _assert_related(context, ground)
    past, at = ground.past, ground.at
    is_ours = at == past.tip
    if at and not is_ours and not (past.tip and await is_ancestor(context.repository, past.tip, at)):
        where = f"{context.branch} is not where Shoal left it"
        raise BadInput(f"{where}; rename it with `git branch -m`, or delete it to have it built anew")
    is_same_form = past.strategy.form is ground.form
    if at and is_same_form and await is_ancestor(context.repository, ground.wanted, at):
        return await _chain(context, bench, ground, tip=at, start=past.start, results=past.results)
    if past.tip and past.results and await is_ancestor(context.repository, past.tip, ground.wanted):
        return await _chain(context, bench, ground, tip=ground.wanted, start=ground.wanted, results=past.results)
    if is_ours or not at:
        return await _chain(context, bench, ground, tip=ground.wanted, start=ground.wanted, results=())
    if not is_same_form:
        raise BadInput(f"{context.branch} has commits of your own; merge with the strategy that made it, or rename it")
    return await _merge_into_branch(context, bench, ground)


async def _assert_related(context: MergeContext, ground: MergeBase) -> None:
    base = context.report.base
    if ground.form is Strategy.REBASE or await is_ancestor(context.repository, base, ground.wanted):
        return
    what = f"{ground.wanted[:10]} does not hold {base[:10]}, which {context.run} started from"
    raise BadInput(f"{what}: it was rewritten, or is another branch; `--strategy rebase` brings the changes alone")


async def _merge_into_branch(context: MergeContext, bench: MergeRepository, ground: MergeBase) -> Chain:
    """Bring what is wanted into a branch that has commits of a person's: those are never made anew."""
    match await bench.try_merge(ground.at, ground.wanted):
        case Clean(tree):
            said = update_message(context.run, ground.wanted)
            tip = bench.commit(Commit(tree=tree, parents=(ground.at, ground.wanted), message=said))
            return await _chain(context, bench, ground, tip=tip, start=ground.wanted, results=ground.past.results)
        case conflicted:
            files = ", ".join(conflicted.paths[:5])
            what = f"{context.branch}, which has commits of your own, conflicts with {ground.wanted[:10]} in {files}"
            raise BadInput(f"{what}; merge them yourself: `git switch {context.branch}`, then `git merge`")


async def _chain(
    context: MergeContext,
    bench: MergeRepository,
    ground: MergeBase,
    *,
    tip: str,
    start: str,
    results: tuple[MergeResult, ...],
) -> Chain:
    tree = await bench.tree(tip)
    sources = tuple(one.source for one in results if one.source)
    truth = tip
    if ground.form is not Strategy.AUTO and sources:
        # The tip's own commits do not tell whose work is in it: this one does.
        truth = bench.commit(Commit(tree=tree, parents=(tip, *sources), message="truth\n"))
    return Chain(
        run=context.run,
        form=ground.form,
        start=start,
        origin=tip,
        tip=tip,
        truth=truth,
        tree=tree,
        grounds=tuple(one for one in (ground.at, ground.wanted) if one),
        results=results,
    )
