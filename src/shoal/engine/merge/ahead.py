"""Verifications that run ahead of what is asked: within a width, each tip once, and none that nobody wants any more."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verified:
    """Whether a tip is good, and what was said about it."""

    ok: bool
    log: str = ""


Verify = Callable[[T], Awaitable[Verified]]


class Ahead(Generic[T]):
    """Verifications that run or are done: each tip is verified once, and what nobody wants any more is ended."""

    def __init__(self, group: asyncio.TaskGroup, verify: Verify[T], key: Callable[[T], str], width: int) -> None:
        self.width = width
        self._group = group
        self._verify = verify
        self._key = key
        # Who is cancelled takes its time: only when it is gone is there room for another.
        self._room = asyncio.Semaphore(width)
        self._done: dict[str, Verified | Exception] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def know(self, tip: T, verdict: Verified) -> None:
        """Take *verdict* for given."""
        self._done[self._key(tip)] = verdict

    def known(self, tip: T) -> bool | None:
        """Say whether *tip* is good, if that is known."""
        verdict = self._done.get(self._key(tip))
        return verdict.ok if isinstance(verdict, Verified) else None

    def want(self, tips: Sequence[T]) -> None:
        """Have these verified, and end what runs besides."""
        wanted = {self._key(tip): tip for tip in tips}
        for key in self._running.keys() - wanted.keys():
            self._running.pop(key).cancel()
        for key, tip in wanted.items():
            if key not in self._done and key not in self._running:
                self._running[key] = self._group.create_task(self._run(key, tip))

    async def looked_at(self, tip: T) -> Verified:
        """Verify what was taken for given."""
        self.want(())
        async with self._room:
            return await self._verify(tip)

    async def verdict(self, tip: T) -> Verified:
        """Wait for what is said of *tip*, which is wanted; a fault of the verification is raised."""
        key = self._key(tip)
        if key not in self._done:
            task = self._running[key]
            await asyncio.wait((task,))
            if task.cancelled():  # by nobody here
                raise asyncio.CancelledError
        verdict = self._done[key]
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def _run(self, key: str, tip: T) -> None:
        async with self._room:
            try:
                verdict: Verified | Exception = await self._verify(tip)
            except Exception as error:  # of something that nobody may ever ask for
                verdict = error
        # Ended in the moment of its cancelling, it may be wanted anew already.
        if self._running.get(key) is asyncio.current_task():
            del self._running[key]
            self._done[key] = verdict
