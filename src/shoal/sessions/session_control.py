"""Control a running session: stop it, freeze it, and send messages that its agent gets between its turns."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from shoal.model.events import AgentMessaged
from shoal.sessions.clocks import WorkClock
from shoal.sessions.context import RunContext
from shoal.sessions.resource_meter import ResourceMeter


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMessage:
    """A message of a person or of another agent to one agent; *request* is the request that carried it."""

    text: str
    by: str
    request: str = ""
    hops: int = 0
    """How many messages of agents led to it; 0 for a person's."""


class Inbox:
    """The messages that an agent has not received yet; once closed, it accepts no more.

    While it *is_open*, the agent gets them between its turns; one that may talk can also call for them.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self.is_open = is_open
        self.is_closed = False
        self._waiting: deque[AgentMessage] = deque()
        self._more = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: AgentMessage) -> None:
        """Append *message*."""
        self._waiting.append(message)
        self._more.set()

    def put_back(self, message: AgentMessage) -> None:
        """Put a message first that could not be delivered."""
        self._waiting.appendleft(message)
        self._more.set()

    def first(self) -> AgentMessage | None:
        """Return the next message without removing it."""
        return self._waiting[0] if self._waiting else None

    async def wait(self) -> AgentMessage:
        """Wait for the next message."""
        while (message := self.first()) is None:
            self._more.clear()
            await self._more.wait()
        return message

    def remove(self, message: AgentMessage) -> None:
        """Remove the first message, which was delivered."""
        self._waiting.remove(message)

    def close(self) -> tuple[AgentMessage, ...]:
        """Accept no more, and return those that were not delivered."""
        self.is_open, self.is_closed = False, True
        left = tuple(self._waiting)
        self._waiting.clear()
        return left


class Freezable(Protocol):
    """Processes that can be frozen together."""

    def freeze(self) -> None:
        """Freeze all of them until `thaw`; raises `OSError` where that is not possible."""

    def thaw(self) -> None:
        """Let frozen ones run again."""


@dataclass(slots=True)
class SessionControl:
    """What others can do to one session: stop it, freeze it, and send messages."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    stopped_by: str | None = None
    """The person who stopped only this session."""
    inbox: Inbox = field(default_factory=Inbox)
    snapshots: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)
    """The requests to keep its files as they are now, while its agent works."""
    clock: WorkClock = field(default_factory=WorkClock)
    meter: ResourceMeter = field(default_factory=ResourceMeter)
    _groups: list[Freezable] = field(default_factory=list)

    def freeze(self) -> None:
        """Freeze the agent until `thaw`; raises `OSError` if its group cannot be frozen."""
        self.clock.pause()
        for group in self._groups:
            group.freeze()

    def thaw(self) -> None:
        """Let the agent run again."""
        for group in self._groups:
            group.thaw()
        self.clock.resume()

    def ask_to_stop(self) -> None:
        """Stop the session; a frozen agent is thawed first, or it would not notice."""
        self.thaw()
        self.stop.set()

    @contextlib.contextmanager
    def hold_group(self, group: Freezable) -> Iterator[None]:
        """Freeze and thaw *group* together with the session; it is thawed on exit."""
        self._groups.append(group)
        try:
            if self.clock.is_paused:
                group.freeze()
            yield
        finally:
            self._groups.remove(group)
            group.thaw()

    def stop_for(self, person: str) -> None:
        """Stop the session at the request of *person*."""
        self.stopped_by = person
        self.ask_to_stop()


def note_message(context: RunContext, session: str, message: AgentMessage, *, is_delivered: bool = True) -> None:
    """Record in the log of *session* that its agent received *message*, or never will."""
    context.ledger.note(
        AgentMessaged(
            run=context.run,
            session=session,
            request=message.request,
            by=message.by,
            text=context.mask.text(message.text),
            is_delivered=is_delivered,
        )
    )
    if is_delivered and context.talk is not None:
        context.talk.note_turn(session, (message.request,) if message.hops else (), message.hops)


def close_inbox(context: RunContext, session: str, control: SessionControl) -> None:
    """Accept no more messages for *session*, and record those that its agent did not receive."""
    for message in control.inbox.close():
        note_message(context, session, message, is_delivered=False)


def take_message(context: RunContext, session: str, control: SessionControl) -> str | None:
    """Deliver the next message and record that; if there is none, close the inbox and return `None`."""
    message = control.inbox.first()
    if message is None or control.stop.is_set():
        control.inbox.is_open = False
        return None
    control.inbox.remove(message)
    note_message(context, session, message)
    return message.text
