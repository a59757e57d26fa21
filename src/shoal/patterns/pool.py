"""A bounded pool of warm agents, each lent to one user at a time."""

import asyncio
import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from typing import Generic, Self, TypeAlias, TypeVar

from shoal.errors import BadInput
from shoal.patterns.limiter import Limiter, default_limiter
from shoal.patterns.slot import LentSlot, holds_slot, run_below

A = TypeVar("A")

Make: TypeAlias = Callable[..., Awaitable[A] | AbstractAsyncContextManager[A]]

_held: ContextVar[frozenset[int]] = ContextVar(
    "held", default=frozenset()
)  # the pools that the running call has an agent of


class PooledAgent(Generic[A]):
    """One agent, from its creation to its closing; both happen in the same task."""

    agent: A
    task: asyncio.Task[None]

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self.retired = asyncio.Event()
        self.ended = asyncio.Event()
        self.error: Exception | None = None
        self.uses = 0
        self.has_place = False
        self.is_old = False

    def retire(self) -> None:
        """Close it, or cancel its creation."""
        self.retired.set()
        if not self.ready.is_set():
            self.task.cancel()


class AgentPool(Generic[A]):
    """At most *size* agents, made by *make* on demand and kept warm; closed by `cleanup` or `async with`.

    *make* is an async function, or returns an async context manager; it receives the requested name if it takes one.
    Agents of an async function are closed by *close*, or by their own `cleanup`, `aclose` or `close`. An agent is
    closed after *max_uses*, when *healthy* returns false or raises, when the block that used it raised or was
    cancelled, and when the pool is closed, which warns about errors while closing.

    A user of `agent()` holds a slot of the limiter, so whoever has an agent can continue, and then so can those that
    wait. Asking a pool for an agent while using one of the same pool is refused: it could wait for itself forever.
    """

    def __init__(
        self,
        make: Make[A],
        *,
        size: int = 10,
        max_uses: int | None = None,
        healthy: Callable[[A], bool | Awaitable[bool]] | None = None,
        close: Callable[[A], Awaitable[None] | None] | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        if size < 1 or (max_uses is not None and max_uses < 1):
            raise BadInput("size and max_uses of a pool must be at least 1")
        self._make = make
        self._size = size
        self._max_uses = max_uses
        self._healthy = healthy
        self._close = close
        self._limiter = limiter or default_limiter()
        # Guards the number of agents: held by each that is in use, being made or being closed; idle ones hold none.
        self._places = asyncio.Semaphore(size)
        self._idle: list[PooledAgent[A]] = []
        self._named: dict[str, PooledAgent[A]] = {}
        self._all: set[PooledAgent[A]] = set()
        self._is_open = False
        self._is_entered = False
        self._is_over = False  # its `async with` has exited
        self._trouble: list[Exception] = []

    async def __aenter__(self) -> Self:
        self._is_over = False
        if not self._is_open:
            await self._open()
        self._is_entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_entered, self._is_over = False, True
        if self._is_open:
            await self._close_all()

    async def _open(self) -> None:
        if self._is_over:
            raise BadInput("this pool was left: use it inside its `async with`")
        group = asyncio.TaskGroup()
        await group.__aenter__()
        self._group, self._is_open = group, True

    async def _ensure_open(self) -> None:
        """Open it, or release the place that was taken."""
        try:
            if not self._is_open:
                await self._open()
        except BaseException:
            self._places.release()
            raise

    async def _close_all(self) -> None:
        self._is_open = False
        self._idle.clear()
        self._named.clear()
        for kept in self._all:
            kept.retire()
        # Exits without an error, which it would wrap.
        await self._group.__aexit__(None, None, None)
        trouble, self._trouble = self._trouble, []
        for error in trouble:
            warnings.warn(f"closing an agent raised {error!r}", RuntimeWarning, stacklevel=2)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[A]:
        """Lend an agent for the block; waits for one, and for a slot if the caller holds none."""
        async with nullcontext() if holds_slot() else self._limiter.slot():
            kept = await self._take()
            held = _held.get()
            _held.set(held | {id(self)})
            failed = True
            try:
                yield kept.agent
                failed = False
            finally:
                _held.set(held)
                self._give_back(kept, failed=failed)

    async def get_agent(self, name: str | None = None) -> A:
        """Wait for an agent, and return it later with `release`; it has no slot, so prefer `agent()`.

        With a *name*, it is the same agent each time, shared by all who ask for it, until `cleanup`.
        """
        return (await self._take() if name is None else await self._by_name(name)).agent

    async def release(self, agent: A, *, failed: bool = False) -> None:
        """Return an agent of `get_agent` to the pool; close a *failed* one."""
        for kept in self._all - set(self._idle):
            if kept.name is not None and kept.ready.is_set() and kept.agent is agent:
                return  # it stays under its name
            if kept.ready.is_set() and kept.agent is agent:
                self._give_back(kept, failed=failed)
                return
        raise BadInput(f"{agent!r} is not out of this pool")

    async def cleanup(self) -> None:
        """Close the idle and named agents and wait for that; the others are closed when they come back.

        Outside `async with`, it closes all of them, like the exit of that block.
        """
        if not self._is_entered:
            if self._is_open:
                await self._close_all()
            return
        for kept in self._all:
            kept.is_old = True
        closing = list(self._named.values())
        self._named.clear()
        for kept in closing:
            kept.retire()
        while self._idle and not self._places.locked():
            await self._places.acquire()  # at once; closing it holds the place
            closing.append(self._idle.pop())
            closing[-1].has_place = True
            closing[-1].retire()
        with LentSlot():
            for kept in closing:
                await kept.ended.wait()

    async def _take(self) -> PooledAgent[A]:
        if id(self) in _held.get():
            raise BadInput(
                "a call that uses an agent of a pool cannot wait for another of the same pool: make a second pool"
            )
        with LentSlot() as lending:
            while True:
                await self._places.acquire()
                kept = await self._next(lending)
                try:
                    if await self._is_fit(kept):
                        kept.uses += 1
                        return kept
                except BaseException:
                    kept.retire()
                    raise
                kept.retire()

    async def _next(self, lending: LentSlot) -> PooledAgent[A]:
        await self._ensure_open()
        kept = self._idle.pop() if self._idle else self._begin(lending)
        kept.has_place = True
        return kept

    async def _by_name(self, name: str) -> PooledAgent[A]:
        """Return the agent of that name; concurrent requests share one."""
        if name not in self._named:
            if len(self._named) >= self._size:
                raise BadInput(f"the pool has room for {self._size} agents, all of them named; give it a larger `size`")
            with LentSlot() as lending:
                await self._places.acquire()
                if name in self._named:  # another caller was faster
                    self._places.release()
                else:
                    self._named[name] = await self._begin_named(name, lending)
        kept = self._named[name]
        with LentSlot():
            await kept.ready.wait()
        if kept.error is not None:
            if self._named.get(name) is kept:
                del self._named[name]
            raise kept.error
        kept.uses += 1
        return kept

    async def _begin_named(self, name: str, lending: LentSlot) -> PooledAgent[A]:
        await self._ensure_open()
        kept = self._begin(lending, name)
        kept.has_place = True
        return kept

    def _begin(self, lending: LentSlot, name: str | None = None) -> PooledAgent[A]:
        kept: PooledAgent[A] = PooledAgent(name)
        self._all.add(kept)
        kept.task = self._group.create_task(self._keep(kept, lending))
        kept.task.add_done_callback(lambda _: self._free_place(kept))
        return kept

    async def _keep(self, kept: PooledAgent[A], lending: LentSlot) -> None:
        run_below(lending.below)
        try:
            async with self._made(kept.name) as kept.agent:
                kept.ready.set()
                await kept.retired.wait()
        except Exception as error:
            if kept.ready.is_set():
                self._trouble.append(error)
            else:
                kept.error = error

    def _free_place(self, kept: PooledAgent[A]) -> None:
        """Release its place; this also runs for one that was cancelled before it started."""
        self._all.discard(kept)
        if not kept.ready.is_set():
            kept.error = kept.error or BadInput("the pool was closed while the agent was being made")
            kept.ready.set()
        kept.ended.set()
        if kept.has_place:
            self._places.release()

    @asynccontextmanager
    async def _made(self, name: str | None) -> AsyncIterator[A]:
        made = self._make(name) if _wants_name(self._make, name) else self._make()
        if isinstance(made, AbstractAsyncContextManager):
            async with made as agent:
                yield agent
            return
        agent = await made
        try:
            yield agent
        finally:
            closing = self._close(agent) if self._close else _close_agent(agent)
            if inspect.isawaitable(closing):
                await closing

    async def _is_fit(self, kept: PooledAgent[A]) -> bool:
        await kept.ready.wait()
        if kept.error is not None:
            raise kept.error
        if kept.uses == 0 or self._healthy is None or kept.is_old:
            return not kept.is_old
        try:
            answer = self._healthy(kept.agent)
            return bool(await answer if inspect.isawaitable(answer) else answer)
        except Exception:
            return False

    def _give_back(self, kept: PooledAgent[A], *, failed: bool) -> None:
        if failed or kept.is_old or not self._is_open or kept.uses == self._max_uses:
            kept.retire()
            return
        kept.has_place = False
        self._idle.append(kept)
        self._places.release()


def _wants_name(make: Callable[..., object], name: str | None) -> bool:
    """Return whether *make* takes a name: it requires one, or accepts one that is given."""
    try:
        first = next(iter(inspect.signature(make).parameters.values()), None)
    except (TypeError, ValueError):  # a builtin may have no signature
        return False
    if first is None or first.kind is first.KEYWORD_ONLY or first.kind is first.VAR_KEYWORD:
        return False
    return name is not None or (first.default is first.empty and first.kind is not first.VAR_POSITIONAL)


def _close_agent(agent: object) -> object:
    for name in ("cleanup", "aclose", "close"):
        if (close := getattr(agent, name, None)) is not None:
            return close()
    return None
