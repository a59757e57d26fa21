"""Wait for a server that is gone for a while: it restarts, the network is cut, or all its connections are taken."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import psycopg
from psycopg import errors

from shoal.errors import Broken

OnWait = Callable[[str], None]
"""Called with the reason for a wait, and with "" when it is over."""
Answer = TypeVar("Answer")
MOST_WAIT_SECONDS = 600.0
SHORTEST, LONGEST = 0.1, 2.0
_PASSING = (
    errors.TooManyConnections,
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.ConnectionException,
)


def is_passing(error: psycopg.Error) -> bool:
    """Return whether the same may succeed later; an error without a code is one of the connection."""
    return isinstance(error, _PASSING) or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None)


@dataclass(frozen=True, slots=True)
class Patience:
    """Tries again what failed for a reason that passes, and says so."""

    on_wait: OnWait
    most_seconds: float = MOST_WAIT_SECONDS

    async def run(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Call *attempt* until it succeeds; it must be one that may be repeated."""
        end, pause, is_waiting = time.monotonic() + self.most_seconds, SHORTEST, False
        try:
            while True:
                try:
                    return await attempt()
                except psycopg.Error as error:
                    reason = f"the database server does not answer: {str(error).strip() or type(error).__name__}"
                    if not is_passing(error) or time.monotonic() > end:
                        raise Broken(reason) from error
                if not is_waiting:
                    self.on_wait(reason.splitlines()[0][:300])
                is_waiting = True
                await asyncio.sleep(pause)
                pause = min(LONGEST, pause * 2)
        finally:
            if is_waiting:
                self.on_wait("")
