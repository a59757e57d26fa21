"""Run sessions on nodes: place each, run it there, take its work, and know when its outcome is unknown."""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field, replace

from shoal.errors import FAULTS, Unavailable, first_error
from shoal.executors.fleet import NodeFleet, RunNode, open_fleet
from shoal.executors.kind import OnResult, SessionLost
from shoal.executors.node_connection import LEASE_SECONDS
from shoal.executors.placement import Placement
from shoal.executors.remote_session import RemoteSession
from shoal.executors.take_work import take_work
from shoal.executors.wire.channel import ChannelBroken
from shoal.executors.wire.frames import ProtocolError
from shoal.executors.wire.link import LinkLost
from shoal.executors.wire.messages import WorkTaken
from shoal.executors.worker_orders import encode_order
from shoal.model.plan import Plan
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.sessions.context import RunContext
from shoal.sessions.keep_patiently import describe_error
from shoal.sessions.keep_work import KeptWork, add_patch
from shoal.sessions.session import (
    add_facts,
    bring_back_settings,
    describe_start,
    mask_result,
    record_result,
)
from shoal.sessions.session_control import SessionControl, close_inbox
from shoal.sessions.worker import WorkerSpec

MARGIN_SECONDS = 2.0


@dataclass(slots=True)
class RemoteExecutor:
    """Runs sessions on the nodes of a fleet."""

    fleet: NodeFleet
    epoch: str = field(default_factory=lambda: secrets.token_hex(4))
    """What tells the fences of this process from those of one before or after it."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def run(
        self, context: RunContext, worker: WorkerSpec, on_result: OnResult, control: SessionControl | None = None
    ) -> WorkerResult:
        """Run one session of *worker* on a node with room for it."""
        control = control or SessionControl()
        try:
            async with asyncio.TaskGroup() as group:
                body = group.create_task(self._run(context, worker, on_result, control))
                try:
                    await asyncio.wait((body,))
                except asyncio.CancelledError:
                    control.ask_to_stop()
                    await asyncio.wait((body,))
                    raise
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        return body.result()

    async def _run(
        self, context: RunContext, worker: WorkerSpec, on_result: OnResult, control: SessionControl
    ) -> WorkerResult:
        order = encode_order(context, worker)
        node: RunNode | None = None
        try:
            node = await self._take_place(context, worker, control)
            if node is None:
                result = replace(worker.result_without_start(Status.CANCELLED), stopped_by=control.stopped_by)
                on_result(mask_result(result, context.mask))
                return result
            attempt = Attempt(context=context, worker=worker, order=order, on_result=on_result, control=control)
            return await self._run_on(node, attempt)
        finally:
            if node is not None:
                self.fleet.give_back(node)

    async def _take_place(self, context: RunContext, worker: WorkerSpec, control: SessionControl) -> RunNode | None:
        """Wait for a place, or until the session is stopped."""
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(control.stop.wait())
            taking = group.create_task(_settle(self.fleet.take_place(worker.task.needs_node, context.base.commit)))
            await asyncio.wait((stopping, taking), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            taking.cancel()
        if taking.cancelled():
            return None
        node, error = taking.result()
        if error is not None:
            raise error
        return node

    async def _run_on(self, node: RunNode, attempt: "Attempt") -> WorkerResult:
        """Run a session on *node*, and take its work; raise `SessionLost` if the node is gone before that."""
        context, worker = attempt.context, attempt.worker
        connection = node.connection
        if connection is None:
            raise SessionLost(_make_loss(worker, node, "it was lost just now"))
        session = RemoteSession(connection, context, worker, attempt.control, f"{self.epoch}-{next(self._numbers)}")
        node.sessions[worker.session] = session
        try:
            await connection.bring(context.base.commit)
            await connection.bring(context.trusted_base.commit)
            await context.ledger.append(replace(describe_start(context, worker), node=node.name))
            attempt.has_started = True
            ended = await session.run(attempt.order)
            result = await take_work(context, worker, ended.done, ended.channel, node.name)
            if session.ignored:
                note = f"{session.ignored} of its events were not recorded: too many came, or some that it may not send"
                result = replace(result, notes=(*result.notes, note))
        except (LinkLost, ChannelBroken) as error:
            return await self._note_lost(node, attempt, session, str(error))
        except FAULTS as error:  # it could not run there, or what came of it is not acceptable
            result = replace(_make_failure(worker, node), error=describe_error(error))
            if isinstance(error, ProtocolError):
                connection.link.lose(str(error))
        finally:
            del node.sessions[worker.session]
        result = await self._finish(attempt, result)
        connection.link.post(WorkTaken(session=worker.session))
        return result

    async def _note_lost(self, node: RunNode, attempt: "Attempt", session: RemoteSession, why: str) -> WorkerResult:
        """Record that the outcome is unknown, and wait until the node has surely stopped the agent."""
        control, result = attempt.control, _make_loss(attempt.worker, node, why)
        if control.stop.is_set():
            return await self._finish(attempt, replace(result, status=Status.CANCELLED))
        if attempt.has_started:
            await self._record(attempt, result)
        if not session.is_surely_over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEASE_SECONDS + attempt.context.grace + MARGIN_SECONDS):
                    await control.stop.wait()
        raise SessionLost(result)

    async def _finish(self, attempt: "Attempt", result: WorkerResult) -> WorkerResult:
        """Complete a result as a session of this machine does, and record it."""
        context, worker, control = attempt.context, attempt.worker, attempt.control
        close_inbox(context, worker.session, control)
        if control.stopped_by is not None and result.status is Status.CANCELLED:
            why = result.error or f"stopped by {control.stopped_by}"
            result = replace(result, stopped_by=control.stopped_by, error=why)
        with contextlib.suppress(*FAULTS):
            result = await add_patch(context, _describe_work(result), result)
        result = await self._record(attempt, result)
        attempt.on_result(result)
        return result

    async def _record(self, attempt: "Attempt", result: WorkerResult) -> WorkerResult:
        context, worker = attempt.context, attempt.worker
        result = add_facts(context, worker, result, seconds=time.monotonic() - attempt.began)
        result = await bring_back_settings(context, result)
        return await record_result(context, worker, mask_result(result, context.mask))


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One attempt of a worker, and who waits for its result."""

    context: RunContext
    worker: WorkerSpec
    order: bytes
    on_result: OnResult
    control: SessionControl
    began: float = field(default_factory=time.monotonic)
    has_started: bool = False


def _make_failure(worker: WorkerSpec, node: RunNode) -> WorkerResult:
    return replace(worker.result_without_start(Status.FAILED), attempts=worker.attempt, node=node.name)


def _make_loss(worker: WorkerSpec, node: RunNode, why: str) -> WorkerResult:
    return replace(
        _make_failure(worker, node),
        status=Status.INTERRUPTED,
        error=f"its node {node.name} was lost ({why}); it runs again",
    )


def _describe_work(result: WorkerResult) -> KeptWork:
    return KeptWork(branch=result.branch, commit=result.commit)


async def _settle(taking: Awaitable[RunNode]) -> tuple[RunNode | None, Unavailable | None]:
    """Return what *taking* raises, since a task group would wrap it."""
    try:
        return await taking, None
    except Unavailable as error:
        return None, error


@contextlib.asynccontextmanager
async def open_executor(context: RunContext, plan: Plan) -> AsyncIterator[RemoteExecutor | None]:
    """Connect to the nodes of *plan*; `None` if it names none, so that sessions run on this machine."""
    if not plan.nodes:
        yield None
        return
    if plan.database.is_shared or context.databases is not None:
        why, remedy = "agents on other machines cannot reach its socket", "use `per_agent`, or run on this machine"
        raise Unavailable("database_strategy: shared with nodes", why, remedy)
    async with open_fleet(context, plan, plan.nodes, Placement(plan.placement)) as fleet:
        for step in plan.working:
            fleet.assert_place(step.task.needs_node)
        yield RemoteExecutor(fleet)
