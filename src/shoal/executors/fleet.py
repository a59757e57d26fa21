"""The nodes of a run: connected, kept connected, and given sessions as they have room."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.errors import FAULTS, Broken, ShoalError, Unavailable, first_error
from shoal.executors.carriers.kind import Carrier, NodeUnavailable
from shoal.executors.carriers.registry import open_carrier
from shoal.executors.left_work import fetch_left_work
from shoal.executors.node_connection import NodeConnection, encode_plan_for_nodes, open_connection, take_beat
from shoal.executors.placement import NodeRoom, Placement, choose_node, fits
from shoal.executors.remote_session import RemoteSession
from shoal.executors.wire.channel import Channel
from shoal.executors.wire.link import RefusedByNode
from shoal.executors.wire.messages import Message
from shoal.model.nodes import Label, NodeAddress, NodeChanged, NodeState
from shoal.model.plan import Plan
from shoal.sessions.context import RunContext

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
REJOIN_SECONDS = 300.0
"""After so long, a node that was lost is not waited for any more."""


@dataclass(slots=True)
class RunNode:
    """One node of a run, connected or not."""

    address: NodeAddress
    connection: NodeConnection | None = None
    refusal: ShoalError | None = None
    """Why it cannot take part."""
    sessions: dict[str, RemoteSession] = field(default_factory=dict)
    running: int = 0
    lost_at: float | None = None

    @property
    def name(self) -> str:
        """Its name in the run."""
        return self.address.name

    @property
    def capacity(self) -> int:
        """How many sessions it takes at once."""
        if self.address.capacity is not None:
            return self.address.capacity
        return self.connection.offer.capacity if self.connection is not None else 1

    @property
    def labels(self) -> Mapping[str, Label]:
        """What the user says of it."""
        return self.address.labels

    @property
    def is_expected(self) -> bool:
        """Whether it is connected, or may be again soon."""
        if self.refusal is not None:
            return False
        return self.connection is not None or self.lost_at is None or time.monotonic() - self.lost_at < REJOIN_SECONDS

    def candidate(self, commit: str) -> NodeRoom:
        """Describe it for the placement of a session that starts from *commit*."""
        has_base = self.connection is not None and commit in self.connection.commits
        free = self.connection is not None and not self.connection.link.lost.is_set()
        return NodeRoom(name=self.name, capacity=self.capacity if free else 0, running=self.running, has_base=has_base)

    def take(self, message: Message, channel: Channel | None) -> None:
        """Pass on what it says to the session that is meant; with another fence than the session's it is nobody's."""
        connection = self.connection
        if connection is None or take_beat(connection, message):
            return
        session = self.sessions.get(getattr(message, "session", ""))
        if session is not None and session.fence == getattr(message, "fence", None):
            session.take(message, channel)
        elif channel is not None:
            connection.link.break_off(channel)


class NodeFleet:
    """The nodes of one run; made by `open_fleet`."""

    def __init__(self, context: RunContext, plan: Plan, placement: Placement) -> None:
        self.context = context
        self.nodes: dict[str, RunNode] = {}
        self._plan_text = encode_plan_for_nodes(plan)
        self._placement = placement
        self._changed = asyncio.Event()
        self._untold: list[NodeChanged] | None = []

    def assert_place(self, needs: Mapping[str, Label]) -> None:
        """Raise `Unavailable` if no node that takes part has what a session *needs*."""
        fitting = [node for node in self.nodes.values() if fits(node.labels, needs)]
        if not any(node.is_expected for node in fitting):
            raise _no_node(needs, fitting)

    async def take_place(self, needs: Mapping[str, Label], commit: str) -> RunNode:
        """Wait for room on a node that has what a session *needs*; raise `Unavailable` if there is none to wait for."""
        while True:
            self.assert_place(needs)
            fitting = [node for node in self.nodes.values() if fits(node.labels, needs)]
            chosen = choose_node([node.candidate(commit) for node in fitting], self._placement)
            if chosen is not None:
                self.nodes[chosen].running += 1
                return self.nodes[chosen]
            await self._wait()

    def give_back(self, node: RunNode) -> None:
        """Free a place."""
        node.running -= 1
        self.notify()

    def notify(self) -> None:
        """Let everybody who waits for a place look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REJOIN_SECONDS):
                await self._changed.wait()

    async def keep(self, carrier: Carrier, node: RunNode, tried: asyncio.Event) -> None:
        """Keep a node connected; one that cannot take part from the beginning is not tried again."""
        pause = FIRST_PAUSE
        while node.refusal is None:
            try:
                async with (
                    carrier.connect(node.address) as stream,
                    open_connection(stream, node.address, self.context) as connection,
                ):
                    await self._open(node, connection)
                    pause, node.lost_at = FIRST_PAUSE, None
                    self._note(node, NodeState.JOINED)
                    tried.set()
                    self.notify()
                    await fetch_left_work(connection, node.name)
                    await connection.link.lost.wait()
                    why = stream.complaint() or connection.link.why
                    self._lose(node, why, is_dead=stream.has_died())
            except FAULTS as error:
                if not tried.is_set():
                    node.refusal = error if isinstance(error, ShoalError) else Broken(f"the node {node.name}: {error}")
                    self._note(node, NodeState.REFUSED, str(error))
                elif node.connection is not None:
                    self._lose(node, str(error), is_dead=False)
            tried.set()
            self.notify()
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    async def _open(self, node: RunNode, connection: NodeConnection) -> None:
        """Open mirror and run on a node that has just been greeted."""
        await connection.open_mirror()
        await connection.bring(self.context.base.commit)
        try:
            await connection.open_run(self._plan_text)
        except RefusedByNode as refused:
            raise NodeUnavailable(node.name, refused.why, refused.remedy or "see `shoal nodes`") from None
        node.connection = connection
        connection.link.on_message = node.take

    def _lose(self, node: RunNode, why: str, *, is_dead: bool) -> None:
        connection, node.connection = node.connection, None
        node.lost_at = time.monotonic()
        for session in node.sessions.values():
            session.is_surely_over = is_dead
        if connection is not None:
            connection.link.lose(why)
        self._note(node, NodeState.LOST, why)

    def _note(self, node: RunNode, state: NodeState, why: str = "") -> None:
        offer = node.connection.offer if node.connection is not None else None
        changed = NodeChanged(
            run=self.context.run,
            node=node.name,
            state=state,
            why=self.context.mask.text(why)[:500],
            host=offer.host[:100] if offer else "",
            capacity=node.capacity,
        )
        if self._untold is None:
            self.context.ledger.post(changed)
        else:
            self._untold.append(changed)

    def announce(self) -> None:
        """Record which nodes take part, now that the run has begun, and what changes from now on."""
        changes, self._untold = self._untold or [], None
        for changed in changes:
            self.context.ledger.post(changed)


@contextlib.asynccontextmanager
async def open_fleet(
    context: RunContext, plan: Plan, addresses: Sequence[NodeAddress], placement: Placement = Placement.SPREAD
) -> AsyncIterator[NodeFleet]:
    """Connect to the nodes at *addresses*; raise the first refusal if none of them can take part."""
    fleet = NodeFleet(context, plan, placement)
    error: BaseException | None = None
    try:
        async with contextlib.AsyncExitStack() as held, asyncio.TaskGroup() as group:
            keeping: list[asyncio.Task[None]] = []
            try:
                carriers = [await held.enter_async_context(open_carrier(node, context.environ)) for node in addresses]
                tried = []
                for carrier in carriers:
                    for address in await carrier.find_nodes():
                        fleet.nodes[address.name] = node = RunNode(address)
                        tried.append(asyncio.Event())
                        keeping.append(group.create_task(fleet.keep(carrier, node, tried[-1])))
                for event in tried:
                    await event.wait()
                _assert_some(fleet)
                yield fleet
            except BaseException as raised:  # passed around the task group, which would wrap it
                error = raised
            for task in keeping:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    if error is not None:
        raise error


def _assert_some(fleet: NodeFleet) -> None:
    if not any(node.connection is not None for node in fleet.nodes.values()):
        for node in fleet.nodes.values():
            if node.refusal is not None:
                raise node.refusal
        raise Unavailable("a node", "`--on` names none that exists", "see `shoal nodes`")


def _no_node(needs: Mapping[str, Label], fitting: Sequence[RunNode]) -> Unavailable:
    if not fitting:
        wanted = ", ".join(f"{name}: {value}" for name, value in needs.items())
        return Unavailable(
            f"a node with {wanted}", "none of the run's nodes has these labels", "see `labels` of `runtime.nodes`"
        )
    why = "; ".join(f"{node.name}: {node.refusal or 'it was lost'}" for node in fitting)
    return Unavailable("a node", why, "resume the run when one is back: `shoal resume`")
