"""One session on a node, as its coordinator sees it: what is asked of it, what it says, and the end of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field, replace

from shoal.errors import Broken
from shoal.executors.node_connection import NodeConnection
from shoal.executors.wire.channel import Channel
from shoal.executors.wire.link import LinkLost, RefusedByNode
from shoal.executors.wire.messages import (
    CloseModel,
    Done,
    FreezeSession,
    Message,
    ModelConnected,
    ModelOpened,
    ModelSaid,
    NodeRefusal,
    OpenModel,
    SessionDone,
    SessionHappened,
    StartSession,
    StopSession,
    TellAgent,
)
from shoal.executors.wire.pump import pump
from shoal.gateway.control_socket import Message as GatewayMessage
from shoal.gateway.gateway import GatewaySession
from shoal.gateway.kind import SessionGateway
from shoal.model.budget import Spending
from shoal.model.events import (
    AgentActed,
    AgentEnded,
    AgentMessaged,
    AgentStarted,
    ClientHeard,
    Output,
    PermissionDecided,
    ResourcesSampled,
    SnapshotKept,
)
from shoal.model.gateway import ModelAnswered
from shoal.proc import OutputBudget
from shoal.sessions.context import RunContext
from shoal.sessions.model_access import session_order, spending_scopes
from shoal.sessions.session_control import SessionControl
from shoal.sessions.worker import WorkerSpec
from shoal.store.codec import decode

MAX_EVENT_BYTES = 96 * 2**20
"""What a session's events may take here: more than a session of this machine records."""
MAX_MODELS = 32
EVENTS = (
    AgentActed
    | AgentEnded
    | AgentMessaged
    | AgentStarted
    | ClientHeard
    | ModelAnswered
    | Output
    | PermissionDecided
    | ResourcesSampled
)


@dataclass(frozen=True, slots=True)
class Ended:
    """A session ended, and its work is on *channel*."""

    done: SessionDone
    channel: Channel


@dataclass(slots=True)
class _HeldModel:
    """The gateway of a session, until the node closes it."""

    held: GatewaySession
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    request: int = 0


class RemoteSession:
    """A session that runs on a node, under a *fence*: what comes with another one is not heard."""

    def __init__(
        self, connection: NodeConnection, context: RunContext, worker: WorkerSpec, control: SessionControl, fence: str
    ) -> None:
        self.fence = fence
        self.name = worker.session
        self.ignored = 0
        """How many events were not recorded, since there were too many or they were none of a session."""
        self.is_surely_over = False
        """Whether a lost node is known to run nothing any more."""
        self._link = connection.link
        self._context = context
        self._worker = worker
        self._control = control
        self._ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._budget = OutputBudget(MAX_EVENT_BYTES)
        self._models: dict[str, _HeldModel] = {}

    async def run(self, order: bytes) -> Ended:
        """Start it and wait until it has ended; raise `Refused` where it cannot run, and `LinkLost`."""
        channel = self._link.open_channel()
        start = StartSession(id=self._link.next_request(), channel=channel.number, session=self.name, fence=self.fence)
        async with self._forward_control():
            refused = self._link.request(start)
            await channel.write(order)
            await channel.finish()
            try:
                await asyncio.wait((self._ended, refused), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._link.forget_request(start.id)
        if self._ended.done():
            return self._ended.result()
        answer, _ = refused.result()  # raises `LinkLost`
        if isinstance(answer, NodeRefusal):
            raise RefusedByNode(answer)
        self._link.lose("it answered the start of a session in a way that means nothing")
        raise LinkLost(self._link.why)

    def take(self, message: Message, channel: Channel | None) -> None:
        """Take what the node says about the session."""
        match message:
            case SessionHappened():
                self._record(message)
            case SessionDone() if channel is not None and not self._ended.done():
                self._ended.set_result(Ended(message, channel))
            case OpenModel():
                self._link.start(self._hold_model(message))
            case ModelConnected() if channel is not None:
                self._link.start(self._connect(message, channel))
            case CloseModel():
                self._close_model(message)
            case _:
                if channel is not None:
                    self._link.break_off(channel)

    def _record(self, happened: SessionHappened) -> None:
        """Record an event in the session's log here, as one of this session whatever it says."""
        event = decode(happened.kind, self._mask(happened.body))
        if not isinstance(event, EVENTS) or not self._budget.admit(len(happened.body)):
            self.ignored += 1
            return
        event = replace(event, run=self._context.run, session=self.name)
        self._context.ledger.note(event)

    def _mask(self, body: str) -> str:
        """Mask secrets in the texts of an event: the node knows only those of its sessions."""
        mask = self._context.mask
        if mask.is_empty:
            return body
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            return ""  # no event
        if not isinstance(fields, dict):
            return ""
        return json.dumps({name: mask.text(text) if isinstance(text, str) else text for name, text in fields.items()})

    @contextlib.asynccontextmanager
    async def _forward_control(self) -> AsyncIterator[None]:
        """Pass on what persons do to the session."""
        error: BaseException | None = None
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(work)
                for work in (self._forward_stop(), self._forward_messages(), self._answer_snapshots())
            ]
            with self._control.hold_group(self):
                try:
                    yield
                except BaseException as raised:  # passed around the task group, which would wrap it
                    error = raised
            for task in tasks:
                task.cancel()
        if error is not None:
            raise error

    def freeze(self) -> None:
        """Freeze its agent, if it is there still."""
        self._link.post(FreezeSession(session=self.name, fence=self.fence, is_frozen=True))

    def thaw(self) -> None:
        """Let its agent run again."""
        self._link.post(FreezeSession(session=self.name, fence=self.fence, is_frozen=False))

    async def _forward_stop(self) -> None:
        await self._control.stop.wait()
        self._link.post(StopSession(session=self.name, fence=self.fence, by=self._control.stopped_by))

    async def _forward_messages(self) -> None:
        while True:
            message = await self._control.inbox.wait()
            asked = TellAgent(
                session=self.name, fence=self.fence, text=message.text, by=message.by, request=message.request
            )
            self._link.post(asked)
            self._control.inbox.remove(message)

    async def _answer_snapshots(self) -> None:
        while True:
            request = await self._control.snapshots.get()
            why = "its files are on another machine; they can be seen once it has ended"
            self._context.ledger.note(
                SnapshotKept(run=self._context.run, session=self.name, request=request, failure=why)
            )

    async def _hold_model(self, asked: OpenModel) -> None:
        """Hold the gateway for the session: keys, limits and counting stay here."""
        context, gateway = self._context, self._context.gateway
        if gateway is None or asked.key in self._models or len(self._models) >= MAX_MODELS:
            self._link.post(NodeRefusal(re=asked.id, message="this run has no gateway for it"))
            return
        order = session_order(context, self._worker, key=asked.key[:64])
        try:
            async with gateway.hold_session(order, lambda said: self._pass_on(asked.key, said)) as held:
                self._models[asked.key] = model = _HeldModel(_assert_ours(held))
                bare = json.dumps(asdict(order.without_keys()))
                self._link.post(ModelOpened(re=asked.id, order=bare, ports=model.held.ports))
                if (reached := context.budgets.find_reached(order.scopes)) is not None:
                    self._say(asked.key, {"event": "budget", "why": reached.why_stopped})
                await _wait_for_either(model.closing, self._link.lost)
        except Broken as error:
            self._link.post(NodeRefusal(re=asked.id, message=str(error)))
            return
        finally:
            closed = self._models.pop(asked.key, None)
        if closed is not None and closed.request:
            self._link.post(Done(re=closed.request))

    def _close_model(self, asked: CloseModel) -> None:
        if (model := self._models.get(asked.key)) is None:
            self._link.post(Done(re=asked.id))
            return
        model.request = asked.id
        model.closing.set()

    def _pass_on(self, key: str, said: GatewayMessage) -> None:
        if said["event"] == "exchange" and said["spent"] is not None:
            self._context.budgets.add_spent(spending_scopes(self._worker), Spending.of(said["spent"]))
        self._say(key, said)

    def _say(self, key: str, said: GatewayMessage) -> None:
        self._link.post(ModelSaid(session=self.name, fence=self.fence, key=key, message=json.dumps(dict(said))))

    async def _connect(self, asked: ModelConnected, channel: Channel) -> None:
        model = self._models.get(asked.key)
        try:
            if model is None:
                raise ConnectionRefusedError
            reader, writer = await model.held.connect(asked.port)
        except OSError:
            self._link.break_off(channel)
            return
        await pump(self._link, channel, reader, writer)


def _assert_ours(held: SessionGateway) -> GatewaySession:
    if not isinstance(held, GatewaySession):
        raise Broken("a node cannot use the gateway of another node")
    return held


async def _wait_for_either(first: asyncio.Event, second: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(event.wait()) for event in (first, second)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
