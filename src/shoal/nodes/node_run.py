"""A run on a node: opened in the mirror as any run is, with the plan of its coordinator, and its sessions."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace

from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter_of
from shoal.errors import FAULTS, BadInput, Broken, ShoalError, Unavailable
from shoal.executors.wire.channel import Channel
from shoal.executors.wire.link import LinkLost, NodeLink
from shoal.executors.wire.messages import (
    Done,
    FetchWork,
    FreezeSession,
    ListWork,
    Message,
    ModelSaid,
    NodeRefusal,
    OpenNodeRun,
    StartSession,
    StopSession,
    TakePack,
    TakeSnapshot,
    TellAgent,
    WorkListed,
    WorkSent,
    WorkTaken,
)
from shoal.git.packs import hold_pack_file, list_held, take_pack, write_pack
from shoal.model.events import RunEnded, RunStarted
from shoal.model.plan import Plan
from shoal.model.status import Status
from shoal.nodes.left_work import forget_work, list_left_work
from shoal.nodes.mirror import Mirror
from shoal.nodes.model_gateway import SessionName
from shoal.nodes.node_session import MAX_ORDER_BYTES, NodeSession, SessionOrderParts, send_file
from shoal.runs.context import open_run
from shoal.runs.preflight import assert_holdable, equip_steps
from shoal.runs.request import RunRequest
from shoal.sessions.clients import assert_clients
from shoal.sessions.context import RunContext
from shoal.sessions.session_control import AgentMessage
from shoal.store.paths import StatePaths
from shoal.store.plans import decode_model

MAX_PLAN_BYTES = 64 * 2**20
MAX_SENT_BYTES = 64 * 2**30
RUN_DIGITS = 3


class EmptySecrets(Mapping[str, str]):
    """Every secret, without its value: a node checks a plan before it may know any."""

    def __getitem__(self, name: str) -> str:
        return ""

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, name: object) -> bool:
        return True


async def receive_pack(link: NodeLink, mirror: Mirror, request: TakePack, channel: Channel) -> None:
    """Add a pack to the mirror."""
    paths = StatePaths.of(mirror.folder)
    try:
        paths.root.mkdir(mode=0o700, exist_ok=True)
        with hold_pack_file(paths.root) as pack:
            size = 0
            with pack.open("xb") as file:
                while content := await channel.read():
                    size += len(content)
                    file.write(content)
            await channel.finish()
            await take_pack(mirror.git, pack, request.commit)
        link.post(Done(re=request.id))
    except (ShoalError, OSError, TimeoutError) as error:
        link.break_off(channel)
        refuse(link, request.id, error)


def refuse(link: NodeLink, request: int, error: Exception) -> None:
    """Answer a request with the reason why not."""
    text = str(error) or type(error).__name__
    code = error.exit_code if isinstance(error, ShoalError) else ShoalError.exit_code
    if isinstance(error, Unavailable):
        link.post(NodeRefusal(re=request, message=error.why, what=error.what, remedy=error.remedy, code=code))
    else:
        link.post(NodeRefusal(re=request, message=text, code=code))


@contextlib.asynccontextmanager
async def open_node_run(
    link: NodeLink, mirror: Mirror, request: OpenNodeRun, channel: Channel, environ: Mapping[str, str]
) -> AsyncIterator["NodeRun"]:
    """Open the run of a coordinator in *mirror*, and refuse what this machine cannot do of its plan."""
    try:
        plan = decode_model((await channel.read_all(MAX_PLAN_BYTES)).decode(), Plan, EmptySecrets())
        await channel.finish()
    except ValueError as error:
        raise BadInput(f"the plan comes from another version of Shoal: {error}") from None
    if request.commit not in await list_held(mirror.git):
        raise Broken("the base of the run has not been sent")
    asked = RunRequest(
        folder=mirror.folder,
        environ={**environ, "GIT_AUTHOR_NAME": request.author, "GIT_AUTHOR_EMAIL": request.email},
        run=f"{request.run}-{secrets.token_hex(RUN_DIGITS)}",
        base=request.commit,
        strategy="auto" if plan.isolation_strategy == "directory" else plan.isolation_strategy,
        sandbox=plan.sandbox,
        keep_database=plan.keep_database,
        checkpoint_seconds=None,  # its refs would be here, where nobody looks for them
        fleet=plan.fleet_limits,
        grace=request.grace,
        is_listed=False,
    )
    bare = Plan(name=plan.name, steps=(), toolchains=plan.toolchains, executable=plan.executable)
    async with open_run(asked, bare) as opened:
        context = replace(opened.context, environ=environ)
        if request.date is not None:
            identity = replace(context.repository.identity, date=request.date)
            context = replace(context, repository=replace(context.repository, identity=identity))
        await _assert_plan(context, plan)
        started = RunStarted(
            run=context.run,
            name=plan.name,
            base=request.commit,
            wall=context.sandbox.name,
            workspace=context.kind.name,
            owner=os.getpid(),
        )
        await context.ledger.append(started)
        async with asyncio.TaskGroup() as group:
            run = NodeRun(link, context, group)
            try:
                yield run
            finally:
                await run.stop()
        await context.ledger.append(RunEnded(run=context.run, status=Status.SUCCEEDED, duration_seconds=0.0))


async def _assert_plan(context: RunContext, plan: Plan) -> None:
    """Refuse a plan that asks for what this machine lacks; its keys and logins are the coordinator's."""
    host = this_host()
    adapters = {step.name: adapter_of(step.task.agent, host) for step in plan.working}
    agents = [(adapter_of(task.agent, host), task.agent, False) for task in plan.assignments]
    await assert_clients(agents, context.environ)
    await assert_holdable(context, plan)
    await equip_steps(context, plan, adapters)


class NodeRun:
    """The sessions that a coordinator runs here."""

    def __init__(self, link: NodeLink, context: RunContext, group: asyncio.TaskGroup) -> None:
        self._group = group
        self.context = context
        self._link = link
        self._sessions: dict[str, NodeSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    @property
    def running(self) -> int:
        """How many sessions run."""
        return len(self._sessions)

    def take(self, message: Message, channel: Channel | None) -> None:
        """Do what a message asks; one with another fence than the session's is not for it."""
        match message:
            case StartSession() if channel is not None:
                self._begin(message, channel)
            case WorkTaken(session=session):
                self._link.start(forget_work(self.context, session))
            case ListWork(id=number):
                self._link.start(self._list_work(number))
            case FetchWork():
                self._link.start(self._send_work(message))
            case _:
                running = self._sessions.get(getattr(message, "session", ""))
                if running is not None and running.name.fence == getattr(message, "fence", None):
                    control_session(running, message)

    async def stop(self) -> None:
        """Stop all agents, keep their work here, and wait for that."""
        self._is_stopped = True
        for session in self._sessions.values():
            session.control.ask_to_stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, message: StartSession, channel: Channel) -> None:
        if message.session in self._sessions or self._is_stopped:
            refuse(self._link, message.id, Broken(f"{message.session} cannot start here now"))
            return
        task = self._group.create_task(self._run(message, channel))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, message: StartSession, channel: Channel) -> None:
        """Run a session to its end, also without its coordinator, and send its work if that is still there."""
        try:
            parts = SessionOrderParts.read(await channel.read_all(MAX_ORDER_BYTES), message.session)
            await channel.finish()
            session = NodeSession(self._link, self.context, SessionName(message.session, message.fence), parts)
            self._sessions[message.session] = session
            if self._is_stopped:
                session.control.ask_to_stop()
            try:
                result = await session.run()
            finally:
                del self._sessions[message.session]
            await session.send(result)
        except LinkLost:
            pass  # the work is in the mirror, and is fetched later
        except Exception as error:  # one session's, whatever it is: the coordinator has to know how it ended
            self._link.break_off(channel)
            refuse(self._link, message.id, error)

    async def _list_work(self, number: int) -> None:
        try:
            self._link.post(WorkListed(re=number, work=await list_left_work(self.context)))
        except FAULTS as error:
            refuse(self._link, number, error)

    async def _send_work(self, request: FetchWork) -> None:
        channel = self._link.open_channel()
        try:
            found = next(work for work in await list_left_work(self.context) if work.session == request.session)
            with hold_pack_file(self.context.paths.root) as pack:
                size = await write_pack(self.context.repository, (found.tip,), (found.base,), pack)
                await self._link.send(WorkSent(re=request.id, channel=channel.number, pack_bytes=size))
                await send_file(channel, pack)
                await channel.finish()
        except StopIteration:
            refuse(self._link, request.id, Broken(f"{request.session} left nothing here"))
        except FAULTS as error:
            self._link.break_off(channel)
            refuse(self._link, request.id, error)


def control_session(session: NodeSession, message: Message) -> None:
    """Do to a session what its coordinator asks."""
    control = session.control
    match message:
        case StopSession(by=str() as person):
            control.stop_for(person)
        case StopSession():
            control.ask_to_stop()
        case FreezeSession(is_frozen=True):
            with contextlib.suppress(OSError):
                control.freeze()
        case FreezeSession():
            control.thaw()
        case TellAgent() if control.inbox.is_open:
            control.inbox.put(AgentMessage(text=message.text, by=message.by, request=message.request))
        case TakeSnapshot(request=request):
            control.snapshots.put_nowait(request)
        case ModelSaid():
            session.gateway.note(message)
        case _:
            pass
