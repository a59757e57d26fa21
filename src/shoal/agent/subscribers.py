"""Deliver events to subscribers, such that a slow or failing one does no harm."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext, ToolDefinition

from shoal.agent.events import AgentEvent, ModelReplied, ToolCalled, ToolReturned, event_text

Handler = Callable[[AgentEvent], Awaitable[object] | object]

QUEUE_EVENTS = 1_000
GRACE_SECONDS = 0.25  # how long the end of a turn waits for slow subscribers


class Subscription:
    """A subscriber, with the number of missed events and of its errors."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.is_active = True
        self.dropped = 0
        self.errors = 0

    def cancel(self) -> None:
        """Send it nothing more, in any fork."""
        self.is_active = False

    async def take(self, event: AgentEvent) -> None:
        """Call the handler; count its errors and suppress them."""
        if not self.is_active:
            return
        try:
            done = self._handler(event)
            if inspect.isawaitable(done):
                await done
        except Exception:  # any error is the subscriber's own
            self.errors += 1
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self.errors += 1  # we were not cancelled: the handler raised it itself


class EventDelivery:
    """The events of one turn, in a bounded queue for each subscriber."""

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        self._queues = [_SubscriberQueue(subscription) for subscription in subscriptions if subscription.is_active]

    def __bool__(self) -> bool:
        """Return whether there are subscribers."""
        return bool(self._queues)

    def say(self, event: AgentEvent) -> None:
        """Queue *event* for every subscriber; one whose queue is full misses it."""
        for queue in self._queues:
            queue.add(event)

    @contextlib.asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        """Deliver while the block runs; at its end, slow subscribers get a moment and are then cut off."""
        if not self._queues:
            yield
            return
        group = asyncio.TaskGroup()
        await group.__aenter__()
        tasks = [group.create_task(queue.deliver_all()) for queue in self._queues]
        try:
            yield
        finally:
            # Exited by hand: an abandoned stream closes its generator with an error that no group may see.
            try:
                await self._wait_for(tasks)
            finally:
                await group.__aexit__(None, None, None)

    async def _wait_for(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for queue in self._queues:
            queue.close()
        try:
            await asyncio.wait(tasks, timeout=GRACE_SECONDS)
        finally:
            for task in tasks:
                task.cancel()


class _SubscriberQueue:
    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._queue: asyncio.Queue[AgentEvent | None] = asyncio.Queue()

    def add(self, event: AgentEvent) -> None:
        if self._queue.qsize() < QUEUE_EVENTS:
            self._queue.put_nowait(event)
        else:
            self._subscription.dropped += 1

    def close(self) -> None:
        self._queue.put_nowait(None)

    async def deliver_all(self) -> None:
        is_delivered = True
        try:
            while (event := await self._queue.get()) is not None:
                is_delivered = False
                await self._subscription.take(event)
                is_delivered = True
        finally:
            # cut off: its current event, and those that wait behind it (without the end mark)
            self._subscription.dropped += (not is_delivered) + max(0, self._queue.qsize() - 1)


class EventCapability(AbstractCapability[None]):
    """Makes events with the turn and the agent that they belong to."""

    def __init__(self, post: EventDelivery, *, run_id: str, agent_id: str, parent_id: str | None) -> None:
        self._post = post
        self.is_heard = bool(post)
        self.run_id = run_id
        self.agent_id = agent_id
        self.parent_id = parent_id

    def say(self, kind: Callable[..., AgentEvent], **facts: object) -> None:
        """Publish an event, if there are subscribers."""
        if self.is_heard:
            origin = {"run_id": self.run_id, "agent_id": self.agent_id, "parent_id": self.parent_id}
            self._post.say(kind(**origin, **facts))

    async def after_model_request(
        self, ctx: RunContext[None], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Publish an answer of the model."""
        used = response.usage
        self.say(
            ModelReplied,
            text=event_text(response.text or ""),
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cost=used.cost,
        )
        return response

    async def wrap_tool_execute(
        self,
        ctx: RunContext[None],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[object]],
    ) -> object:
        """Publish a tool call and its end."""
        which = {"tool": call.tool_name, "call_id": call.tool_call_id}
        self.say(ToolCalled, **which, arguments=event_text(call.args_as_json_str()))
        try:
            result = await handler(args)
        except Exception as error:
            self.say(ToolReturned, **which, content="", error=event_text(error))
            raise
        self.say(ToolReturned, **which, content=event_text(result))
        return result
