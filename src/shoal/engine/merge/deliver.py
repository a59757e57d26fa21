"""Delivering an integration into a branch of the user's: its working tree goes along, or nothing is touched."""

import shlex
from dataclasses import replace

from shoal.engine.merge.desk import HEADS, Desk
from shoal.errors import BadInput
from shoal.git.deliver import Checkout, advanced, checkouts, is_half_delivered, obstacle
from shoal.git.lock import repository_locked
from shoal.git.refs import Move, alias, listed, move
from shoal.model.merge import Delivery, DeliveryStatus
from shoal.model.merge_events import DeliveryIntended, DeliveryRecorded


async def target(desk: Desk, into: str) -> str:
    """Say where the branch *into* is; raise `BadInput` where it cannot be delivered into."""
    if into.startswith(("shoal/", "agent/")) or into == desk.branch:
        raise BadInput(f"{into!r} is one of Shoal's own branches; name one of yours with --into")
    ref = f"{HEADS}{into}"
    at = (await listed(desk.repository, ref)).get(ref)  # not `rev-parse`: `main~1` is a commit, and no branch
    if at is None:
        raise BadInput(f"there is no branch {into!r} to deliver into; `git branch` lists yours")
    if (
        real := await alias(desk.repository, ref)
    ) is not None:  # moved by this name, checkouts of that would stay behind
        raise BadInput(f"{into!r} is another name of {real.removeprefix(HEADS)!r}; name that with --into")
    return at


async def delivered(desk: Desk, into: str, old: str, new: str, *, is_undo: bool = False) -> Delivery | None:
    """Let *into* go from *old* to *new*, which holds it; `None` when somebody else moved it meanwhile."""
    same = Delivery(into=into, status=DeliveryStatus.UNCHANGED, old=old, new=new)
    if old == new:
        await _settled(desk, into, new, is_undo=is_undo)
        return same
    async with repository_locked(desk.repository.git):
        places = await checkouts(desk.repository, into)
        pending = desk.past("").pending.get(into)
        is_again = pending is not None and (pending.old, pending.new) == (old, new)
        for place in places:
            if (why := await _in_the_way(desk, place, old, new, is_again=is_again)) is not None:
                return _left(desk, place, same, why)
        await desk.ledger.append(DeliveryIntended(run=desk.run, into=into, old=old, new=new, is_undo=is_undo))
        return await _moved(desk, places, same, is_again=is_again, is_undo=is_undo)


async def _in_the_way(desk: Desk, place: Checkout, old: str, new: str, *, is_again: bool) -> str | None:
    why = await obstacle(desk.repository, place, old, new)
    if why is None or not is_again or not await is_half_delivered(desk.repository, place, old, new):
        return why
    return None


async def _moved(
    desk: Desk, places: list[Checkout], same: Delivery, *, is_again: bool, is_undo: bool
) -> Delivery | None:
    """Move the files, then the ref: cut off between, the same command finds every file old or new, and goes on."""
    gone: list[Checkout] = []
    for place in places:
        again = is_again and await obstacle(desk.repository, place, same.old, same.new) is not None
        if (why := await advanced(desk.repository, place, same.old, same.new, again=again)) is not None:
            await _back(desk, gone, same)
            return await _begun(desk, place, _left(desk, place, same, why), why, is_undo=is_undo)
        gone.append(place)
    if not await move(desk.repository, [Move(f"{HEADS}{same.into}", same.new, same.old)]):
        await _back(desk, gone, same)
        return None
    await _recorded(desk, same.into, same.old, same.new, is_undo=is_undo)
    return Delivery(into=same.into, status=DeliveryStatus.DELIVERED, old=same.old, new=same.new)


async def _back(desk: Desk, places: list[Checkout], same: Delivery) -> None:
    for place in places:
        await advanced(desk.repository, place, same.new, same.old, again=False)


async def _settled(desk: Desk, into: str, new: str, *, is_undo: bool) -> None:
    """Record a delivery that was made, but whose record a kill cut off."""
    pending = desk.past("").pending.get(into)
    if pending is not None and pending.new == new:
        await _recorded(desk, into, pending.old, new, is_undo=is_undo)


async def _recorded(desk: Desk, into: str, old: str, new: str, *, is_undo: bool) -> None:
    await desk.ledger.append(DeliveryRecorded(run=desk.run, into=into, old=old, new=new, is_undo=is_undo))


async def _begun(desk: Desk, place: Checkout, left: Delivery, why: str, *, is_undo: bool) -> Delivery:
    """Say so where some files were written before git gave up, as on a full disk: then only we can go on."""
    if await obstacle(desk.repository, place, left.old, left.new) in (None, why):
        return left
    said = f"some files in {place.tree} were written, and then: {why}; once that is mended, the same merge goes on"
    past = desk.past(left.new)
    again = f"{desk.run} --strategy {past.strategy.value} --into {shlex.quote(left.into)} --yes"
    again = f"--undo {desk.run} {' '.join(past.out)}" if is_undo else again
    return replace(left, message=said, command=f"shoal merge {again}")


def _left(desk: Desk, place: Checkout, same: Delivery, why: str) -> Delivery:
    here = "" if place.tree == desk.repository.top else f" -C {shlex.quote(str(place.tree))}"
    command = f"git{here} merge --ff-only {desk.branch}"
    said = f"nothing was touched in {place.tree}: {why}; {desk.branch} holds the result"
    return Delivery(
        into=same.into, status=DeliveryStatus.LEFT, old=same.old, new=same.new, message=said, command=command
    )
