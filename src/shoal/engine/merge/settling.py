"""What conflicts, after all the rest has landed: each by the rule that was asked for, or as it was resolved before."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from shoal.engine.merge.candidates import Candidate
from shoal.engine.merge.chain import Chain
from shoal.engine.merge.look import said_of
from shoal.engine.merge.ruling import ruled
from shoal.engine.merge.table import Table, credited
from shoal.engine.merge.verify import Stopped
from shoal.engine.session import FAULTS
from shoal.git.conflicts import Clean, Conflicted
from shoal.model.conflict_rule import ConflictRule
from shoal.model.merge import ConflictKind, MergeResult, MergeStatus
from shoal.store.find import find_session
from shoal.store.fold import fold
from shoal.store.read import events

Keep = Callable[[Chain], Awaitable[bool]]
"""Lets the integration branch go to a chain; `False` when somebody else moved it."""


async def settled(table: Table, chain: Chain, keep: Keep) -> Chain | None:
    """Resolve what can be resolved, and keep all that has landed; `None` when somebody moved the branch meanwhile.

    What was resolved before is so again before anything is kept: a kill would else have that forgotten. Each of the
    others is kept as soon as it is resolved.
    """
    line = _in_turn(table, chain.refused)
    for refused in line:
        if table.was_resolved(refused.session):
            chain = await _settled(table, chain, refused)
            if table.how.stop.is_set():
                raise Stopped
    if not await keep(chain):
        return None
    with suppress(Stopped):
        for refused in line:
            if table.how.stop.is_set():
                break
            if not table.was_resolved(refused.session):
                after = await _settled(table, chain, refused)
                if after.tip != chain.tip and not await keep(after):
                    return None
                chain = after
    return chain


def _in_turn(table: Table, refused: Sequence[MergeResult]) -> list[MergeResult]:
    """Put those first that others stand on: whoever stands on what was resolved may not conflict any more."""

    def depth(one: MergeResult) -> int:
        return len(table.smith.ancestry.reach([str(one.source)]))

    return sorted((one for one in refused if _is_in_conflict(one)), key=depth)


def _is_in_conflict(one: MergeResult) -> bool:
    is_by_case = any(conflict.kind is ConflictKind.CASE for conflict in one.conflicts)
    return one.status is MergeStatus.CONFLICTS and not is_by_case


async def _settled(table: Table, chain: Chain, refused: MergeResult) -> Chain:
    before = table.past.get(refused.session)
    rule = table.rule(refused.session)
    if rule is ConflictRule.REPORT and not table.was_resolved(refused.session):
        return chain
    one = table.candidates[refused.session]
    match await table.smith.bench.tried(chain.truth, one.source):
        case Clean(tree):
            return await _now_clean(table, chain, one, tree)
        case Conflicted() as found:
            again = await _as_before(table, chain, one, before)
            if again is not None or rule is ConflictRule.REPORT:
                return again or chain
            return await ruled(table, chain, refused, found, rule)


async def _now_clean(table: Table, chain: Chain, one: Candidate, tree: str) -> Chain:
    """Take what came to fit by the others' landing, or fits as a whole where its single commits do not."""
    if tree == chain.tree:
        return chain.without(_aside(one, MergeStatus.NO_CHANGES, "what it changes is there already"))
    after = table.landed(chain, one, tree)
    fault = await table.look.fault(after)
    if fault is not None:
        return chain.without(_aside(one, MergeStatus.HELD, f"together with the others it fails: {said_of(fault)}"))
    await table.smith.bench.publish(after.tip, after.known)
    return after


async def _as_before(table: Table, chain: Chain, one: Candidate, before: MergeResult | None) -> Chain | None:
    """Bring in again what an agent made of this conflict earlier, where it still fits."""
    if before is None or before.resolver is None or before.resolved_by != ConflictRule.AGENT:
        return None
    with suppress(*FAULTS):  # its branch may be gone, and then it is resolved anew
        work = find_session(fold(events(table.desk.paths)), before.resolver).result
        if work is None:
            return None
        # It was given both sides with markers: the first parent of that is what had landed before.
        trees = [await table.smith.bench.tree(name) for name in (f"{work.base}^1", str(work.commit))]
        tried = await table.smith.carried(chain.tree, *trees)
        after = table.landed(chain, one, tried.tree)
        if isinstance(tried, Conflicted) or await table.look.fault(after) is not None:
            return None
        await table.smith.bench.publish(after.tip, after.known)
        said = f"it conflicts, and was resolved before by {before.resolver}"
        return credited(after, said, ConflictRule.AGENT.value, before.resolver)
    return None


def _aside(one: Candidate, status: MergeStatus, said: str) -> MergeResult:
    return MergeResult(session=one.session, status=status, source=one.source, message=said)
