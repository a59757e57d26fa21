"""Building an integration: candidates in their line, looked at before they are kept."""

from collections.abc import Sequence
from dataclasses import replace

from shoal.engine.merge.ahead import Verified
from shoal.engine.merge.candidates import Candidate
from shoal.engine.merge.chain import Chain, Smith
from shoal.engine.merge.look import Fault, Look, Verdicts, by_case, cut
from shoal.engine.merge.queue import Apart, Refused, queued
from shoal.model.merge import Conflict, MergeResult, MergeStatus


async def built(
    smith: Smith, chain: Chain, candidates: Sequence[Candidate], verdicts: Verdicts, width: int = 1
) -> Chain:
    """Add all *candidates* that can be added; one that cannot never stops the others.

    Up to *width* verifications run at the same time, those beyond the first of what may be asked next.
    """
    look = Look(smith.bench, chain.tree, verdicts)
    faults: dict[str, Fault] = {}

    async def combine(tip: Chain, one: Candidate) -> Chain | Apart[None]:
        return await smith.grown(tip, one)  # its conflicts are among what the chain has refused

    async def looked_at(tip: Chain) -> Verified:
        faults[tip.tree] = fault = await look.fault(smith.finished(tip))
        return Verified(ok=fault is None, log=fault if isinstance(fault, str) else "")

    done = await queued(chain, candidates, combine, looked_at, key=lambda tip: tip.tree, width=width)
    end = replace(smith.finished(done.tip), base_fault=None if done.base_log is None else cut(done.base_log))
    for one in done.verdicts:
        if isinstance(one, Refused):
            end = end.without(_aside(one.candidate, faults[one.tip.tree] or one.log, end.base_fault))
    await smith.bench.publish(end.tip, end.known)
    return end


def _aside(one: Candidate, fault: Conflict | str, base_fault: str | None) -> MergeResult:
    result = MergeResult(session=one.session, status=MergeStatus.HELD, source=one.source)
    if isinstance(fault, Conflict):
        return replace(result, status=MergeStatus.CONFLICTS, message=by_case(fault), conflicts=(fault,))
    if base_fault is not None:
        reason = base_fault.partition("\n")[0]
        return replace(result, message=f"verification fails on the base already: {reason}; with it: {cut(fault)}")
    return replace(result, message=f"together with the others it fails: {cut(fault)}")
