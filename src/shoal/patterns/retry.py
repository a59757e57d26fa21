"""Run a call again when it fails."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from shoal.errors import Refused

T = TypeVar("T")

_QUIET = logging.NullHandler()  # without any handler, Python prints stamina's messages about retries to stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and after which waits (doubling from *wait_initial* to *wait_max*, plus up to *jitter*).

    *on_retry* is called with the number of the attempt that begins and the error of the one before; if it raises, the
    call ends. A value that `accept` refuses is retried like an error in *retry_on*; a cancellation is not.
    """

    attempts: int = 3
    wait_initial: float = 0.1
    wait_max: float = 5.0
    jitter: float = 1.0
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception
    on_retry: Callable[[int, Exception], None] | None = None

    def wants(self, error: Exception) -> bool:
        """Return whether *error* is worth another attempt."""
        return isinstance(error, (Refused, self.retry_on))


async def again(call: Callable[[], Awaitable[T]], retry: Retry) -> T:
    """Run *call* until it succeeds or its attempts are used up; then raise the last error."""
    from stamina import retry_context  # 0.1 s to import: only retries pay for it

    logging.getLogger("stamina").addHandler(_QUIET)
    failed: Exception | None = None
    async for attempt in retry_context(
        retry.wants,
        attempts=retry.attempts,
        timeout=None,
        wait_initial=retry.wait_initial,
        wait_max=retry.wait_max,
        wait_jitter=retry.jitter,
    ):
        if failed is not None and retry.on_retry is not None:
            retry.on_retry(attempt.num, failed)
        with attempt:
            try:
                return await call()
            except Exception as error:
                failed = error
                raise
    raise AssertionError("a retry ends by value or by error")


async def retrying(
    call: Callable[[], Awaitable[T]],
    *,
    attempts: int = 3,
    wait_initial: float = 0.1,
    wait_max: float = 5.0,
    jitter: float = 1.0,
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception,
    on_retry: Callable[[int, Exception], None] | None = None,
    accept: Callable[[T], bool] | None = None,
) -> T:
    """Run *call* again while it fails, or returns what *accept* refuses: see `Retry`."""

    async def judge() -> T:
        value = await call()
        if accept is not None and not accept(value):
            raise Refused(value)
        return value

    retry = Retry(
        attempts=attempts,
        wait_initial=wait_initial,
        wait_max=wait_max,
        jitter=jitter,
        retry_on=retry_on,
        on_retry=on_retry,
    )
    return await again(judge, retry)
