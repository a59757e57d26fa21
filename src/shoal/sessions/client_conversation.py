"""A client that takes input while it runs: first its task, then messages between its turns."""

import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping
from types import MappingProxyType

from shoal.adapters.kind import Conversational
from shoal.errors import first_error
from shoal.model.activity import Activity
from shoal.sessions.agent_process import LINGER_SECONDS, AgentEnd, Ending, WatchResult, run_process, watch_process
from shoal.sessions.limit_watch import SessionBounds
from shoal.sessions.sandboxed import SandboxedProcess
from shoal.sessions.session_control import note_message
from shoal.sessions.worker import Session


async def run_conversation(session: Session, adapter: Conversational) -> AgentEnd:
    """Give the client its task, then each message after the turn in which it arrived."""
    return await run_process(session, ClientConversation(session, adapter))


class ClientConversation:
    """Reads a client's output, and writes to the client between its turns."""

    def __init__(self, session: Session, adapter: Conversational) -> None:
        self._session = session
        self._adapter = adapter
        self._reader = adapter.turn_reader()
        self._between_turns = asyncio.Event()
        self._over = asyncio.Event()
        self._heard_at = time.monotonic()

    def read(self, line: str) -> Iterable[Activity]:
        """Read one line, after which a turn may have ended."""
        self._heard_at = time.monotonic()
        activities = list(self._reader.read(line))
        if self._reader.is_between_turns:
            self._between_turns.set()
        else:
            self._between_turns.clear()
        return activities

    @property
    def is_done(self) -> bool:
        """Return whether its turn is over and no other has begun."""
        return self._reader.is_done

    @property
    def usage(self) -> Mapping[str, float]:
        """The usage it reports."""
        return self._reader.usage

    @property
    def session(self) -> str | None:
        """The client's own id of the conversation."""
        return self._reader.session

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Return why it failed, as its reader does."""
        return self._reader.verdict(exit_code, errors)

    async def watch(
        self,
        sandboxed: SandboxedProcess,
        bounds: SessionBounds,
        seconds: float | None,
        stop: asyncio.Event,
        grace: float,
        endings: Mapping[Ending, Awaitable[object]] = MappingProxyType({}),
    ) -> WatchResult:
        """Talk to the client in *sandboxed* until the first reason to end it."""
        try:
            async with asyncio.TaskGroup() as group:
                speaking = group.create_task(self._speak(sandboxed))
                every = {**endings, Ending.DONE: self._wait_for_exit()}
                seen = await watch_process(sandboxed, bounds, seconds, stop, grace, every)
                speaking.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        return seen

    async def _speak(self, sandboxed: SandboxedProcess) -> None:
        session, inbox = self._session, self._session.control.inbox
        try:
            await sandboxed.write(session.worker.adapter.invocation(session.task, session.paths).stdin)
            while True:
                await self._between_turns.wait()
                if self._reader.is_done and inbox.first() is None:
                    break
                message = await inbox.wait()
                inbox.remove(message)  # before anything waits: the agent's own call could take it, too
                self._between_turns.clear()
                self._reader.begin_turn()
                try:
                    await sandboxed.write(self._adapter.message(message.text))
                except OSError:
                    inbox.put_back(message)
                    raise
                note_message(session.context, session.id, message)
        except OSError:  # it has exited, and its exit code tells more
            return
        inbox.close()
        self._over.set()
        sandboxed.close_input()

    async def _wait_for_exit(self) -> None:
        """Give a client time to exit after its last turn."""
        await self._over.wait()
        while (left := self._heard_at + LINGER_SECONDS - time.monotonic()) > 0:  # noqa: ASYNC110 - each line extends it
            await asyncio.sleep(left)
