"""Building an integration: candidates in their line, each batch looked at before it is kept."""

from collections.abc import Sequence
from dataclasses import replace

from shoal.engine.merge.candidates import Candidate
from shoal.engine.merge.cases import new_clashes
from shoal.engine.merge.chain import Chain, Smith
from shoal.engine.merge.desk import Verify
from shoal.engine.merge.line import Batch, Line
from shoal.model.merge import Conflict, ConflictKind, MergeResult, MergeStatus

LONGEST_LOG = 4000


async def built(smith: Smith, chain: Chain, candidates: Sequence[Candidate], verify: Verify | None) -> Chain:
    """Add all *candidates* that can be added; one that cannot never stops the others."""
    line = Line.of(candidates)
    while line.batches:
        trial = chain
        for one in line.first:
            trial = await smith.grown(trial, one)
        trial = await smith.finished(trial)
        fault = await _fault(smith, chain, trial, verify)
        if fault is None:
            chain, line = trial, line.without_first()
        elif len(line.first) > 1:
            line = line.split()
        else:
            chain, line = chain.without(_aside(line.first, fault)), line.without_first()
    await smith.bench.publish(chain.tip, chain.known)
    return chain


async def _fault(smith: Smith, before: Chain, after: Chain, verify: Verify | None) -> Conflict | str | None:
    """Look at what a batch came to: names that differ only by case, and what *verify* says."""
    if after.tree == before.tree:
        return None
    if clashes := await new_clashes(smith.bench, before.tree, after.tree):
        paths = tuple(path for clash in clashes for path in clash)
        return Conflict(kind=ConflictKind.CASE, paths=paths, message="names that differ only by case")
    if verify is None:
        return None
    await smith.bench.publish(after.tip, after.known)
    return await verify(after.tip)


def _aside(batch: Batch, fault: Conflict | str) -> MergeResult:
    one = batch[0]
    result = MergeResult(session=one.session, status=MergeStatus.HELD, source=one.source)
    if isinstance(fault, str):
        return replace(result, message=f"together with the others it fails: {fault[-LONGEST_LOG:]}")
    said = f"{', '.join(fault.paths[:4])} differ only by case"
    return replace(result, status=MergeStatus.CONFLICTS, message=said, conflicts=(fault,))
