"""One governor for the rate limits of an account: all its sessions, in every process of this user, share it."""

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import Broken
from shoal.gateway.account import FIRST_LIMIT, AccountState
from shoal.store.lock import hold_lock

LOCK_SECONDS = 2.0
LONGEST_WAIT = 0.5
"""Who waits asks again after this long: another process may have given a slot back."""
MOST_BYTES = 2**20
BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Asker:
    """The session of a run that asks a model."""

    run: str
    session: str


@dataclass(slots=True)
class _Waiting:
    """A request that waits in this process."""

    asker: Asker
    since: int
    next: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float) -> None:
        """Wait until it is time to ask again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.next.wait()
        self.next.clear()


class Governor:
    """Hands out slots for one account; *folder* is shared with other processes, `None` means this process only."""

    def __init__(
        self,
        account: str,
        folder: Path | None,
        *,
        process: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        name = hashlib.sha256(account.encode()).hexdigest()[:24]
        self._file = None if folder is None else folder / f"{name}.json"
        self._process = process or process_name(os.getpid())
        self._clock = clock
        self._state = AccountState()
        self._waiting: list[_Waiting] = []
        self._asked = 0
        self._under_way: dict[str, int] = {}
        self._served: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def slot(
        self, asker: Asker, *, on_wait: Callable[[float], None] = lambda _: None
    ) -> AsyncIterator["RequestSlot"]:
        """Wait for a slot and hold it; *on_wait* gets the minimum wait about twice a second."""
        asked_at = self._clock()
        await self._take(asker, on_wait)
        began, session = self._clock(), asker.session
        self._under_way[session] = self._under_way.get(session, 0) + 1
        self._served[session] = self._asked
        try:
            yield RequestSlot(self, waited=began - asked_at, began=began)
        finally:
            self._under_way[session] -= 1
            if not self._under_way[session]:
                del self._under_way[session]
            async with self.change() as state:
                state.end(self._process, asker.run)

    async def _take(self, asker: Asker, on_wait: Callable[[float], None]) -> None:
        self._asked += 1
        me = _Waiting(asker, self._asked)
        self._waiting.append(me)
        has_slot = False
        try:
            while not has_slot:
                pause = LONGEST_WAIT
                if self._first_of(asker.run) is me:
                    async with self._shared() as state:
                        pause = state.ask(self._clock(), self._process, asker.run)
                    has_slot = not pause
                if not has_slot:
                    on_wait(pause)
                    await me.wait(min(pause, LONGEST_WAIT))
        finally:
            self._waiting.remove(me)
            async with self.change() as state:
                if not has_slot:
                    state.stop_asking(self._process, asker.run)

    @contextlib.asynccontextmanager
    async def change(self) -> AsyncIterator[AccountState]:
        """Change the state of the account, and let waiting requests ask again."""
        try:
            async with self._shared() as state:
                yield state
        finally:
            for run in {entry.asker.run for entry in self._waiting}:
                self._first_of(run).next.set()

    @property
    def is_calm(self) -> bool:
        """Return whether the account was far from its limit when it was last read."""
        state = self._state
        is_free = not state.is_probing and not state.refusals and state.limit >= FIRST_LIMIT
        return is_free and state.under_way < state.limit / 2

    @property
    def now(self) -> float:
        """The time by the governor's clock."""
        return self._clock()

    def _first_of(self, run: str) -> _Waiting:
        """Return a run's next session: with the fewest requests under way, then served longest ago."""
        waiting = [entry for entry in self._waiting if entry.asker.run == run]
        return min(waiting, key=self._rank)

    def _rank(self, entry: _Waiting) -> tuple[int, int, int]:
        session = entry.asker.session
        return self._under_way.get(session, 0), self._served.get(session, 0), entry.since

    @contextlib.asynccontextmanager
    async def _shared(self) -> AsyncIterator[AccountState]:
        """Read the state shared by all processes, and write the changed one; if that fails, use this process's own."""
        if self._file is None:
            yield self._state
            return
        async with contextlib.AsyncExitStack() as stack:
            try:
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                await stack.enter_async_context(hold_lock(self._file.with_suffix(".lock"), timeout=LOCK_SECONDS))
            except (Broken, OSError):  # another process that blocks the file is no reason to stop
                yield self._state
                return
            self._state = read_state(self._file) or self._state
            self._state.shares.setdefault(self._process, {})
            self._state.keep_only({name for name in self._state.shares if name == self._process or is_alive(name)})
            try:
                yield self._state
            finally:
                write_state(self._file, self._state)


class RequestSlot:
    """The right to have one request under way; report its outcome as soon as that is known."""

    def __init__(self, governor: Governor, *, waited: float, began: float) -> None:
        self.waited = waited
        self._governor = governor
        self._began = began

    async def answer(self) -> None:
        """Note that the provider accepted the request."""
        if self._governor.is_calm:  # nothing would change, and the client waits for its first token
            return
        async with self._governor.change() as state:
            state.note_answer(self._governor.now, self._began)

    async def refuse(self, retry_after: float | None) -> None:
        """Note that the rate limit refused the request."""
        async with self._governor.change() as state:
            state.note_refusal(self._governor.now, self._began, retry_after)


def process_name(pid: int) -> str:
    """Name a process uniquely, by its pid, start time and boot."""
    return f"{pid}.{_began(pid)}"


def is_alive(name: str) -> bool:
    """Return whether the process of that name still runs."""
    pid, _, began = name.partition(".")
    return pid.isdigit() and _began(int(pid)) == began != ""


def _began(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def read_state(file: Path) -> AccountState | None:
    """Read the shared state; a damaged one, or one from before the last boot, counts as empty."""
    try:
        document = json.loads(file.read_bytes()[:MOST_BYTES])
        return AccountState.of(document) if document["boot"] == _boot() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def write_state(file: Path, state: AccountState) -> None:
    """Write the shared state; it is only an estimate, so a full disk is no reason to stop.

    It is written in place and in a single step, padded to what was there: where a rename waits for the disk, replacing
    the file cost 14 ms for each request, and this costs 0.3 ms. A file that a kill damaged counts as empty.
    """
    with contextlib.suppress(OSError):
        text = json.dumps({**state.document(), "boot": _boot()}).encode()
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(descriptor, text.ljust(os.fstat(descriptor).st_size), 0)
        finally:
            os.close(descriptor)


@functools.cache
def _boot() -> str:
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""
