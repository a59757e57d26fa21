"""Building an integration: candidates in their line, looked at before they are kept."""

from collections.abc import Sequence
from dataclasses import replace

from shoal.engine.merge.ahead import Verified
from shoal.engine.merge.candidates import Candidate
from shoal.engine.merge.cases import new_clashes
from shoal.engine.merge.chain import Chain, Smith
from shoal.engine.merge.desk import Verify
from shoal.engine.merge.queue import Apart, Refused, queued
from shoal.model.merge import Conflict, ConflictKind, MergeResult, MergeStatus

LONGEST_LOG = 4000


async def built(
    smith: Smith, chain: Chain, candidates: Sequence[Candidate], verify: Verify | None, width: int = 1
) -> Chain:
    """Add all *candidates* that can be added; one that cannot never stops the others."""
    faults: dict[str, Conflict | str | None] = {}

    async def combine(tip: Chain, one: Candidate) -> Chain | Apart[None]:
        return await smith.grown(tip, one)  # its conflicts are among what the chain has refused

    async def looked_at(tip: Chain) -> Verified:
        faults[tip.tree] = fault = await _fault(smith, chain, await smith.finished(tip), verify)
        return Verified(ok=fault is None, log=fault if isinstance(fault, str) else "")

    done = await queued(chain, candidates, combine, looked_at, key=lambda tip: tip.tree, width=width)
    end = await smith.finished(done.tip)
    for one in done.verdicts:
        if isinstance(one, Refused):
            end = end.without(_aside(one.candidate, faults[one.tip.tree] or one.log))
    await smith.bench.publish(end.tip, end.known)
    return end


async def _fault(smith: Smith, before: Chain, after: Chain, verify: Verify | None) -> Conflict | str | None:
    """Look at what some came to: names that differ only by case, and what *verify* says."""
    if after.tree != before.tree and (clashes := await new_clashes(smith.bench, before.tree, after.tree)):
        paths = tuple(path for clash in clashes for path in clash)
        return Conflict(kind=ConflictKind.CASE, paths=paths, message="names that differ only by case")
    if verify is None:
        return None
    await smith.bench.publish(after.tip, after.known)
    return await verify(after.tip)


def _aside(one: Candidate, fault: Conflict | str) -> MergeResult:
    result = MergeResult(session=one.session, status=MergeStatus.HELD, source=one.source)
    if isinstance(fault, str):
        return replace(result, message=f"together with the others it fails: {_cut(fault)}")
    said = f"{', '.join(fault.paths[:4])} differ only by case"
    return replace(result, status=MergeStatus.CONFLICTS, message=said, conflicts=(fault,))


def _cut(log: str) -> str:
    """Keep the reason, which is the first line, and the end of what was said."""
    reason, _, said = log.partition("\n")
    return f"{reason}\n{said[-LONGEST_LOG:]}".rstrip()
