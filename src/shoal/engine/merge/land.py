"""Moving the integration branch: written down, moved by compare-and-swap, written down again."""

from shoal.engine.merge.chain import Chain
from shoal.engine.merge.desk import Desk
from shoal.errors import BadInput
from shoal.git.deliver import checkouts
from shoal.git.refs import ABSENT, Move, move
from shoal.model.merge import Strategy
from shoal.model.merge_events import MergeIntended, MergeRecorded


async def landed(desk: Desk, chain: Chain, at: str, *, strategy: Strategy, out: tuple[str, ...] = ()) -> bool:
    """Let the integration branch go from *at* to the chain's tip; `False` when somebody else moved it meanwhile."""
    await _assert_free(desk)
    intent = MergeIntended(
        run=desk.run, old=at, new=chain.tip, start=chain.start, strategy=strategy, results=chain.results, out=out
    )
    await desk.ledger.append(intent)
    if not await move(desk.repository, [Move(desk.ref, chain.tip, at or ABSENT)]):
        return False
    await desk.ledger.append(MergeRecorded(run=desk.run, new=chain.tip))
    return True


async def taken_away(desk: Desk, at: str, *, strategy: Strategy, out: tuple[str, ...]) -> bool:
    """Remove the integration branch, all of whose work is taken out; the sessions' own branches stay."""
    await _assert_free(desk)
    await desk.ledger.append(MergeIntended(run=desk.run, old=at, new="", start="", strategy=strategy, out=out))
    if at and not await move(desk.repository, [Move(desk.ref, ABSENT, at)]):
        return False
    await desk.ledger.append(MergeRecorded(run=desk.run, new=""))
    return True


async def _assert_free(desk: Desk) -> None:
    for place in await checkouts(desk.repository, desk.branch):
        raise BadInput(f"{desk.branch} is checked out in {place.tree}; switch to another branch there, and try again")
