"""Deliver an integration branch into a branch of the user: all of its checkouts move along, or nothing is touched."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from shoal.errors import BadInput
from shoal.git.checkout import repository_locked
from shoal.git.deliver import Checkout, advance_checkout, checkouts, is_half_delivered, obstacle
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


async def find_target(repository: Repository, into: str) -> str:
    """Return the tip of the branch *into*; raise `BadInput` if it cannot be delivered into."""
    if into.startswith(("shoal/", "agent/")):
        raise BadInput(f"{into!r} is one of Shoal's own branches; name one of yours with --into")
    ref = f"{HEADS}{into}"
    tip = (await list_refs(repository, ref)).get(ref)  # not `rev-parse`: `main~1` is a commit, not a branch
    if tip is None:
        raise BadInput(f"there is no branch {into!r} to deliver into; `git branch` lists yours")
    if (real := await alias(repository, ref)) is not None:  # moved under this name, its checkouts would stay behind
        raise BadInput(f"{into!r} is another name of {real.removeprefix(HEADS)!r}; use that with --into")
    return tip


async def deliver(context: MergeContext, into: str, old: str, new: str, *, is_undo: bool = False) -> Delivery | None:
    """Move *into* from *old* to *new*, which contains it; return `None` if somebody else moved it meanwhile."""
    unchanged = Delivery(into=into, status=DeliveryStatus.UNCHANGED, old=old, new=new, is_undo=is_undo)
    if old == new:
        await _finish_interrupted(context, into, new, is_undo=is_undo)
        return unchanged
    async with repository_locked(context.repository.git):
        found = await checkouts(context.repository, into)
        pending = context.read_history("").pending.get(into)
        is_again = pending is not None and (pending.old, pending.new) == (old, new)
        for checkout in found:
            if (why := await _find_obstacle(context, checkout, old, new, is_again=is_again)) is not None:
                return _refuse(context, checkout, unchanged, why)
        await context.ledger.append(DeliveryIntended(run=context.run, into=into, old=old, new=new, is_undo=is_undo))
        return await _move_files_and_ref(context, found, unchanged, is_again=is_again, is_undo=is_undo)


def wait_for_approval(context: MergeContext, into: str, old: str, new: str, sessions: Sequence[str]) -> Delivery:
    """Leave *into* unchanged until a person approves, and return the command; *sessions* are those that were named."""
    if old == new:
        return Delivery(into=into, status=DeliveryStatus.UNCHANGED, old=old, new=new)
    own = {worker.session for worker in context.report.workers}
    named = " ".join(("", *sessions))
    command = f"shoal merge {context.run}{named} --into {shlex.quote(into)} --yes"
    if not own.issuperset(sessions):  # the command takes sessions of one run only
        command = f"git switch {shlex.quote(into)} && git merge --ff-only {context.branch}"
    message = f"the strategy `review` waits for your approval: review {context.branch}, then deliver it"
    return Delivery(into=into, status=DeliveryStatus.WAITING, old=old, new=new, message=message, command=command)


async def _find_obstacle(
    context: MergeContext, checkout: Checkout, old: str, new: str, *, is_again: bool
) -> str | None:
    why = await obstacle(context.repository, checkout, old, new)
    if why is None or not is_again or not await is_half_delivered(context.repository, checkout, old, new):
        return why
    return None


async def _move_files_and_ref(
    context: MergeContext, found: list[Checkout], delivery: Delivery, *, is_again: bool, is_undo: bool
) -> Delivery | None:
    """Move the files, then the ref: if interrupted, the same command finds each file old or new, and continues."""
    moved: list[Checkout] = []
    for checkout in found:
        again = is_again and await obstacle(context.repository, checkout, delivery.old, delivery.new) is not None
        if (
            why := await advance_checkout(context.repository, checkout, delivery.old, delivery.new, again=again)
        ) is not None:
            await _move_back(context, moved, delivery)
            left = _refuse(context, checkout, delivery, why)
            return await _describe_interruption(context, checkout, left, why, is_undo=is_undo)
        moved.append(checkout)
    if not await move(context.repository, [Move(f"{HEADS}{delivery.into}", delivery.new, delivery.old)]):
        await _move_back(context, moved, delivery)
        return None
    await _record(context, delivery.into, delivery.old, delivery.new, is_undo=is_undo)
    return replace(delivery, status=DeliveryStatus.DELIVERED)


async def _move_back(context: MergeContext, moved: list[Checkout], delivery: Delivery) -> None:
    for checkout in moved:
        await advance_checkout(context.repository, checkout, delivery.new, delivery.old, again=False)


async def _finish_interrupted(context: MergeContext, into: str, new: str, *, is_undo: bool) -> None:
    """Record a delivery whose process was killed before it recorded it."""
    pending = context.read_history("").pending.get(into)
    if pending is not None and pending.new == new:
        await _record(context, into, pending.old, new, is_undo=is_undo)


async def _record(context: MergeContext, into: str, old: str, new: str, *, is_undo: bool) -> None:
    await context.ledger.append(DeliveryRecorded(run=context.run, into=into, old=old, new=new, is_undo=is_undo))


async def _describe_interruption(
    context: MergeContext, checkout: Checkout, left: Delivery, why: str, *, is_undo: bool
) -> Delivery:
    """Report if some files were written before git failed, for example on a full disk: then only Shoal can continue."""
    if await obstacle(context.repository, checkout, left.old, left.new) in (None, why):
        return left
    message = (
        f"some files in {checkout.tree} were written, and then: {why}; once that is fixed, run the same merge again"
    )
    history = context.read_history(left.new)
    options = f"{context.run} --strategy {history.strategy.value} --into {shlex.quote(left.into)} --yes"
    options = f"--undo {context.run} {' '.join(history.removed)}" if is_undo else options
    return replace(left, message=message, command=f"shoal merge {options}")


def _refuse(context: MergeContext, checkout: Checkout, delivery: Delivery, why: str) -> Delivery:
    here = "" if checkout.tree == context.repository.top else f" -C {shlex.quote(str(checkout.tree))}"
    command = f"git{here} merge --ff-only --autostash {context.branch}"
    message = f"nothing was touched in {checkout.tree}: {why}; {context.branch} holds the result"
    return replace(delivery, status=DeliveryStatus.LEFT, message=message, command=command)


async def move_integration(
    context: MergeContext, chain: Chain, tip: str, *, strategy: Strategy, removed: tuple[str, ...] = ()
) -> bool:
    """Move the integration branch from *tip* to the chain's tip; return `False` if somebody else moved it meanwhile."""
    await _assert_free(context)
    intent = MergeIntended(
        run=context.run,
        old=tip,
        new=chain.tip,
        start=chain.start,
        strategy=strategy,
        results=chain.results,
        out=removed,
    )
    await context.ledger.append(intent)
    if not await move(context.repository, [Move(context.ref, chain.tip, tip or ABSENT)]):
        return False
    await context.ledger.append(MergeRecorded(run=context.run, new=chain.tip))
    return True


async def remove_integration(context: MergeContext, tip: str, *, strategy: Strategy, removed: tuple[str, ...]) -> bool:
    """Remove the integration branch after all of its work was taken out; the sessions' own branches stay."""
    await _assert_free(context)
    await context.ledger.append(
        MergeIntended(run=context.run, old=tip, new="", start="", strategy=strategy, out=removed)
    )
    if tip and not await move(context.repository, [Move(context.ref, ABSENT, tip)]):
        return False
    await context.ledger.append(MergeRecorded(run=context.run, new=""))
    return True


async def _assert_free(context: MergeContext) -> None:
    for checkout in await checkouts(context.repository, context.branch):
        raise BadInput(
            f"{context.branch} is checked out in {checkout.tree}; switch to another branch there, and try again"
        )
