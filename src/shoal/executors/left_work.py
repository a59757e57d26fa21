"""Fetch work that a node kept for us: of sessions that it could not report, since it or we were gone."""

import re

from shoal.errors import FAULTS
from shoal.executors.node_connection import ASK_SECONDS, NodeConnection
from shoal.executors.wire.channel import Channel
from shoal.executors.wire.frames import ProtocolError
from shoal.executors.wire.link import LinkLost
from shoal.executors.wire.messages import FetchWork, LeftWork, ListWork, WorkListed, WorkSent, WorkTaken
from shoal.git.imports import MAX_PACK_BYTES, ImportRefused, import_pack, release
from shoal.git.packs import hold_pack_file, list_known
from shoal.git.refs import ABSENT, Move, move, value
from shoal.model.nodes import WorkFetched
from shoal.workspaces.object_stores import objects_ready

FETCH_SECONDS = 600.0
SESSION = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,200})-([0-9a-f]{6})")
FETCHED = "refs/shoal/kept"
LAST = "node"
"""The last part of the name of the ref that holds such work."""


async def fetch_left_work(connection: NodeConnection, node: str) -> None:
    """Fetch what the node kept, each onto a ref of its own that nothing merges; a failure leaves it there."""
    try:
        listed = await connection.link.ask(ListWork(id=connection.link.next_request()), WorkListed, seconds=ASK_SECONDS)
    except LinkLost:
        raise
    except (*FAULTS, TimeoutError):
        return
    for work in listed.work:
        try:
            await _fetch(connection, node, work)
        except LinkLost:
            raise
        except (*FAULTS, TimeoutError):  # it stays on the node, and the next connection tries again
            continue


async def _fetch(connection: NodeConnection, node: str, work: LeftWork) -> None:
    named = SESSION.fullmatch(work.session)
    if named is None:
        raise ProtocolError(f"{work.session!r:.80} is no name of a session")
    step, digits = named.groups()
    context, link = connection.context, connection.link
    repository, ref = context.repository, f"{FETCHED}/{step}/{digits}/{LAST}"
    is_known = await value(repository, ref) is not None or await value(repository, f"refs/heads/agent/{step}/{digits}")
    if not is_known and work.tip != work.base and await list_known(repository, [work.base]):
        request = FetchWork(id=link.next_request(), session=work.session)
        answer, channel = await link.ask_for_channel(request, WorkSent, seconds=FETCH_SECONDS)
        if channel is None:
            raise ProtocolError("the node sent no pack")
        await _import(connection, work, channel, ref, answer.pack_bytes)
        fetched = WorkFetched(run=context.run, node=node, session=work.session, ref=ref, commit=work.tip)
        await context.ledger.append(fetched)
    link.post(WorkTaken(session=work.session))


async def _import(connection: NodeConnection, work: LeftWork, channel: Channel, ref: str, size: int) -> None:
    """Check the pack as that of any session, and hold it by *ref*, unless that exists."""
    context = connection.context
    if not 0 <= size <= MAX_PACK_BYTES:
        raise ProtocolError("the work of a session is larger than it may be")
    with hold_pack_file(context.paths.root) as pack:
        with pack.open("xb") as file:
            while content := await channel.read():
                size -= len(content)
                if size < 0:
                    raise ProtocolError("the node sent more than it said")
                file.write(content)
        await channel.finish()
        async with objects_ready(context.repository, work.base, context.paths.objects) as lender:
            taken = await import_pack(
                context.repository, pack, base=work.base, tips=(work.tip,), lender=lender, bounds=context.bounds
            )
            if isinstance(taken, ImportRefused):
                raise ProtocolError(taken.why)
            try:
                await context.ledger.assert_owner(context.run)
                await move(context.repository, [Move(ref, work.tip, ABSENT)])
            finally:
                release(taken)
