"""A session on a node: the ordinary session, on the mirror, whose events, result and work go to the coordinator."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter_of
from shoal.errors import BadInput, Broken
from shoal.executors.wire.channel import Channel
from shoal.executors.wire.frames import ProtocolError
from shoal.executors.wire.link import NodeLink
from shoal.executors.wire.messages import SessionDone, SessionHappened
from shoal.git.packs import hold_pack_file, write_pack
from shoal.git.refs import list_refs
from shoal.model.events import (
    AgentActed,
    AgentEnded,
    AgentMessaged,
    AgentStarted,
    ClientHeard,
    Event,
    Output,
    PermissionDecided,
    ResourcesSampled,
    SnapshotKept,
)
from shoal.model.gateway import ModelAnswered
from shoal.model.masking import Mask
from shoal.model.results import WorkerResult
from shoal.model.worker_order import WorkerOrder
from shoal.nodes.model_gateway import CarriedGateway, SessionName
from shoal.sessions.context import RunContext
from shoal.sessions.host_probe import kind_of_workspace, probe_sandbox
from shoal.sessions.session import run_session
from shoal.sessions.session_control import Inbox, SessionControl
from shoal.sessions.worker import WorkerSpec
from shoal.steps.attempts import open_base
from shoal.store.codec import encode, encode_value
from shoal.store.plans import decode_model
from shoal.workspaces.base_checkouts import base_ready

MAX_ORDER_BYTES = 128 * 2**20
MAX_ARTIFACT_BYTES = 160 * 2**20
CARRIED = (
    AgentActed
    | AgentEnded
    | AgentMessaged
    | AgentStarted
    | ClientHeard
    | ModelAnswered
    | Output
    | PermissionDecided
    | ResourcesSampled
    | SnapshotKept
)
"""The events that the coordinator records as they come; it records a session's start and end itself."""
DROPPABLE = AgentActed | Output | ResourcesSampled


@dataclass(frozen=True, slots=True)
class SessionOrderParts:
    """What came with the request for a session."""

    order: WorkerOrder
    secrets: Mapping[str, str] = field(repr=False)
    """The variables of the host that the session may have, by name."""

    @classmethod
    def read(cls, content: bytes, session: str) -> "SessionOrderParts":
        """Read what `encode_order` of the coordinator wrote for *session*; raise `BadInput` for anything else."""
        try:
            document = json.loads(content)
            given = {str(name): str(value) for name, value in document["secrets"].items()}
            order = decode_model(document["order"], WorkerOrder, given)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(f"the order of a session cannot be read: {error}"[:500]) from None
        if f"{order.label or order.step}-{order.hex}" != session:
            raise BadInput("the order is for another session")
        return cls(order, given)


class NodeSession:
    """One session, from its order until its work has been sent."""

    def __init__(self, link: NodeLink, context: RunContext, name: SessionName, parts: SessionOrderParts) -> None:
        if context.gateway is None:
            raise Broken("the run of this node has no gateway")
        self.name = name
        self.control = SessionControl()
        self.gateway = CarriedGateway(link, name, context.gateway)
        self._link = link
        self._parts = parts
        self._context = context
        self._missing = 0

    async def run(self) -> WorkerResult:
        """Run it, and return its result; the work is in the mirror then."""
        worker = await self._worker()
        self.control.inbox = Inbox(is_open=worker.takes_messages)
        async with self._context_of(worker) as context:
            stop = context.ledger.subscribe(lambda recorded: self._note(recorded.event))
            try:
                return await run_session(worker.adapt_context(context), worker, control=self.control)
            finally:
                stop()

    async def send(self, result: WorkerResult) -> None:
        """Send the result, the pack of the work, and the artifacts."""
        files = {label: Path(path) for label, path in result.artifacts.items()}
        sizes = {label: path.stat().st_size for label, path in files.items() if path.is_file()}
        if sum(sizes.values()) > MAX_ARTIFACT_BYTES:
            raise Broken("its artifacts are too large to be sent")
        repository, order = self._context.repository, self._parts.order
        kept = await list_refs(repository, f"refs/shoal/kept/{order.step}/{order.hex}")
        tips = tuple(dict.fromkeys((*((result.commit,) if result.commit else ()), *kept.values())))
        body = json.dumps(encode_value(result)).encode()
        channel = self._link.open_channel()
        with hold_pack_file(self._context.paths.root) as pack:
            size = await write_pack(repository, tips, (order.base,), pack) if tips else 0
            done = SessionDone(
                session=self.name.session,
                fence=self.name.fence,
                channel=channel.number,
                result_bytes=len(body),
                pack_bytes=size,
                tip=result.commit or "",
                extras=tuple(kept.values()),
                artifacts=sizes,
            )
            await self._link.send(done)
            await channel.write(body)
            if size:
                await send_file(channel, pack)
            for label in sizes:
                await send_file(channel, files[label])
            await channel.finish()

    async def _worker(self) -> WorkerSpec:
        order, context = self._parts.order, self._context
        sandbox = None if order.sandbox is None else await probe_sandbox(order.sandbox, context.environ)
        behind = sandbox or context.sandbox
        is_own = order.isolation is None and sandbox is None
        kind = None if is_own else await kind_of_workspace(order.isolation or "auto", behind, context.paths)
        return WorkerSpec(
            step=order.step,
            index=order.index,
            count=order.count,
            task=order.task,
            adapter=adapter_of(order.task.agent, this_host()),
            purpose=order.purpose,
            attempt=order.attempt,
            visit=order.visit,
            start_note=order.start_note,
            content=order.content,
            spent_before=order.spent_before,
            database=order.database,
            base=order.base,
            origin=order.stands_for,
            trusts_base=order.trusts_base,
            item=order.item,
            artifacts=order.artifacts,
            contracts=order.contracts,
            trial=order.trial,
            reviewers=order.reviewers,
            sandbox=sandbox,
            kind=kind,
            hex=order.hex,
            label=order.label,
        )

    @contextlib.asynccontextmanager
    async def _context_of(self, worker: WorkerSpec) -> AsyncIterator[RunContext]:
        """Give the session its base, its secrets, and the coordinator's gateway."""
        context, order = self._context, self._parts.order
        secrets_of_task = (values for task in (order.task, *order.reviewers.values()) for values in task.secret_values)
        context = replace(
            context,
            environ={**context.environ, **self._parts.secrets},
            mask=Mask.of(*secrets_of_task, self._parts.secrets),
            gateway=self.gateway,
        )
        async with contextlib.AsyncExitStack() as held:
            if order.base != context.base.commit:
                base = await held.enter_async_context(open_base(worker.adapt_context(context), order.base))
                context = replace(context, base=base, base_stays=False)
            if order.trusted != context.base.commit:
                trusted = base_ready(context.repository, order.trusted, context.paths.bases)
                context = replace(context, trusted=await held.enter_async_context(trusted))
            yield context

    def _note(self, event: Event) -> None:
        """Send an event of this session; where too much waits, output is counted instead of kept."""
        if not isinstance(event, CARRIED) or getattr(event, "session", self.name.session) != self.name.session:
            return
        if isinstance(event, Output) and self._missing:
            event, self._missing = replace(event, dropped=event.dropped + self._missing), 0
        if not self._post(event) and isinstance(event, Output):
            self._missing += event.dropped + len(event.text.encode(errors="replace"))

    def _post(self, event: Event) -> bool:
        happened = SessionHappened(
            session=self.name.session, fence=self.name.fence, kind=type(event).__name__, body=encode(event)
        )
        try:
            return self._link.post(happened, is_droppable=isinstance(event, DROPPABLE))
        except ProtocolError:  # too long for a frame
            return False


async def send_file(channel: Channel, path: Path) -> None:
    """Send the content of *path*."""
    with path.open("rb") as file:
        while content := file.read(2**18):
            await channel.write(content)
