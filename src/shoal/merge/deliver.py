"""Delivering an integration into a branch of the user's: its working tree goes along, or nothing is touched."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from shoal.errors import BadInput
from shoal.git.deliver import Checkout, advance_checkout, checkouts, is_half_delivered, obstacle
from shoal.git.lock import repository_locked
from shoal.git.refs import ABSENT, Move, alias, list_refs, move
from shoal.merge.commits import Chain
from shoal.merge.request import HEADS, MergeContext
from shoal.model.merge import (
    Delivery,
    DeliveryIntended,
    DeliveryRecorded,
    DeliveryStatus,
    MergeIntended,
    MergeRecorded,
    Strategy,
)
from shoal.model.repository import Repository


async def target(repository: Repository, into: str) -> str:
    """Say where the branch *into* is; raise `BadInput` where it cannot be delivered into."""
    if into.startswith(("shoal/", "agent/")):
        raise BadInput(f"{into!r} is one of Shoal's own branches; name one of yours with --into")
    ref = f"{HEADS}{into}"
    at = (await list_refs(repository, ref)).get(ref)  # not `rev-parse`: `main~1` is a commit, and no branch
    if at is None:
        raise BadInput(f"there is no branch {into!r} to deliver into; `git branch` lists yours")
    if (real := await alias(repository, ref)) is not None:  # moved by this name, checkouts of that would stay behind
        raise BadInput(f"{into!r} is another name of {real.removeprefix(HEADS)!r}; name that with --into")
    return at


async def deliver(context: MergeContext, into: str, old: str, new: str, *, is_undo: bool = False) -> Delivery | None:
    """Let *into* go from *old* to *new*, which holds it; `None` when somebody else moved it meanwhile."""
    same = Delivery(into=into, status=DeliveryStatus.UNCHANGED, old=old, new=new)
    if old == new:
        await _finish_interrupted(context, into, new, is_undo=is_undo)
        return same
    async with repository_locked(context.repository.git):
        places = await checkouts(context.repository, into)
        pending = context.past("").pending.get(into)
        is_again = pending is not None and (pending.old, pending.new) == (old, new)
        for place in places:
            if (why := await _in_the_way(context, place, old, new, is_again=is_again)) is not None:
                return _refuse(context, place, same, why)
        await context.ledger.append(DeliveryIntended(run=context.run, into=into, old=old, new=new, is_undo=is_undo))
        return await _move_files_and_ref(context, places, same, is_again=is_again, is_undo=is_undo)


def waiting(context: MergeContext, into: str, old: str, new: str, sessions: Sequence[str]) -> Delivery:
    """Leave *into* as it is until a person approves, and say how; *sessions* are those that were named."""
    if old == new:
        return Delivery(into=into, status=DeliveryStatus.UNCHANGED, old=old, new=new)
    own = {one.session for step in context.report.steps for one in step.worker_results}
    named = " ".join(("", *sessions))
    command = f"shoal merge {context.run}{named} --into {shlex.quote(into)} --yes"
    if not own.issuperset(sessions):  # the command takes sessions of one run only
        command = f"git switch {shlex.quote(into)} && git merge --ff-only {context.branch}"
    said = f"the strategy `review` waits for you: look at {context.branch}, then deliver it"
    return Delivery(into=into, status=DeliveryStatus.WAITING, old=old, new=new, message=said, command=command)


async def _in_the_way(context: MergeContext, place: Checkout, old: str, new: str, *, is_again: bool) -> str | None:
    why = await obstacle(context.repository, place, old, new)
    if why is None or not is_again or not await is_half_delivered(context.repository, place, old, new):
        return why
    return None


async def _move_files_and_ref(
    context: MergeContext, places: list[Checkout], same: Delivery, *, is_again: bool, is_undo: bool
) -> Delivery | None:
    """Move the files, then the ref: cut off between, the same command finds every file old or new, and goes on."""
    gone: list[Checkout] = []
    for place in places:
        again = is_again and await obstacle(context.repository, place, same.old, same.new) is not None
        if (why := await advance_checkout(context.repository, place, same.old, same.new, again=again)) is not None:
            await _back(context, gone, same)
            return await _interrupted(context, place, _refuse(context, place, same, why), why, is_undo=is_undo)
        gone.append(place)
    if not await move(context.repository, [Move(f"{HEADS}{same.into}", same.new, same.old)]):
        await _back(context, gone, same)
        return None
    await _record(context, same.into, same.old, same.new, is_undo=is_undo)
    return Delivery(into=same.into, status=DeliveryStatus.DELIVERED, old=same.old, new=same.new)


async def _back(context: MergeContext, places: list[Checkout], same: Delivery) -> None:
    for place in places:
        await advance_checkout(context.repository, place, same.new, same.old, again=False)


async def _finish_interrupted(context: MergeContext, into: str, new: str, *, is_undo: bool) -> None:
    """Record a delivery that was made, but whose record a kill cut off."""
    pending = context.past("").pending.get(into)
    if pending is not None and pending.new == new:
        await _record(context, into, pending.old, new, is_undo=is_undo)


async def _record(context: MergeContext, into: str, old: str, new: str, *, is_undo: bool) -> None:
    await context.ledger.append(DeliveryRecorded(run=context.run, into=into, old=old, new=new, is_undo=is_undo))


async def _interrupted(context: MergeContext, place: Checkout, left: Delivery, why: str, *, is_undo: bool) -> Delivery:
    """Say so where some files were written before git gave up, as on a full disk: then only we can go on."""
    if await obstacle(context.repository, place, left.old, left.new) in (None, why):
        return left
    said = f"some files in {place.tree} were written, and then: {why}; once that is mended, the same merge goes on"
    past = context.past(left.new)
    again = f"{context.run} --strategy {past.strategy.value} --into {shlex.quote(left.into)} --yes"
    again = f"--undo {context.run} {' '.join(past.out)}" if is_undo else again
    return replace(left, message=said, command=f"shoal merge {again}")


def _refuse(context: MergeContext, place: Checkout, same: Delivery, why: str) -> Delivery:
    here = "" if place.tree == context.repository.top else f" -C {shlex.quote(str(place.tree))}"
    command = f"git{here} merge --ff-only --autostash {context.branch}"
    said = f"nothing was touched in {place.tree}: {why}; {context.branch} holds the result"
    return Delivery(
        into=same.into, status=DeliveryStatus.LEFT, old=same.old, new=same.new, message=said, command=command
    )


async def move_integration(
    context: MergeContext, chain: Chain, at: str, *, strategy: Strategy, out: tuple[str, ...] = ()
) -> bool:
    """Let the integration branch go from *at* to the chain's tip; `False` when somebody else moved it meanwhile."""
    await _assert_free(context)
    intent = MergeIntended(
        run=context.run, old=at, new=chain.tip, start=chain.start, strategy=strategy, results=chain.results, out=out
    )
    await context.ledger.append(intent)
    if not await move(context.repository, [Move(context.ref, chain.tip, at or ABSENT)]):
        return False
    await context.ledger.append(MergeRecorded(run=context.run, new=chain.tip))
    return True


async def remove_integration(context: MergeContext, at: str, *, strategy: Strategy, out: tuple[str, ...]) -> bool:
    """Remove the integration branch, all of whose work is taken out; the sessions' own branches stay."""
    await _assert_free(context)
    await context.ledger.append(MergeIntended(run=context.run, old=at, new="", start="", strategy=strategy, out=out))
    if at and not await move(context.repository, [Move(context.ref, ABSENT, at)]):
        return False
    await context.ledger.append(MergeRecorded(run=context.run, new=""))
    return True


async def _assert_free(context: MergeContext) -> None:
    for place in await checkouts(context.repository, context.branch):
        raise BadInput(
            f"{context.branch} is checked out in {place.tree}; switch to another branch there, and try again"
        )
