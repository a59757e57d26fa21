"""The door of a run: here its owner hears what other processes ask of it."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from shoal.errors import Broken
from shoal.store.paths import StatePaths
from shoal.store.requests import Request, forget, made, posted, withdraw

POLL_SECONDS = 0.2
SETTLED_SECONDS = 2.0  # longer than a tick of any file system's clock

Fits = Callable[[Request], bool]
Tell = Callable[[str, str], None]
"""Take the name of a file that is no request, and why."""


class RequestDoor:
    """Where the owner of a run hears what others ask: it looks only while somebody waits for something."""

    def __init__(self, paths: StatePaths, run: str, tell: Tell = lambda name, why: None) -> None:
        self._paths = paths
        self._run = run
        self._tell = tell
        self._told: set[str] = set()
        self._mail: tuple[Request, ...] = ()
        self._seen: int | None = None
        self._looked = float("-inf")

    def open(self) -> None:
        """Make the folder, without which nobody can ask for anything: before anybody is told that he may."""
        try:
            made(self._paths, self._run)
        except OSError as error:
            raise Broken(f"{self._paths.requests_of(self._run)} cannot be made: {error.strerror}") from error

    def close(self) -> None:
        """Take no more requests, and remove those that nobody waits for."""
        forget(self._paths, self._run)

    async def first(self, fits: Fits) -> Request:
        """Wait for a request that *fits*; it stays in its file until it is settled."""
        while (found := self._found(fits)) is None:  # noqa: ASYNC110 - what we wait for is another process
            await asyncio.sleep(POLL_SECONDS)
        return found

    def now(self, fits: Fits) -> Request | None:
        """Look at once for a request that *fits*: it may have come in the last moment."""
        self._looked = float("-inf")
        return self._found(fits)

    def settle(self, fits: Fits) -> None:
        """Remove all requests that *fit*, when what came of the first is recorded."""
        settled = [request for request in self._mail if fits(request)]
        self._mail = tuple(request for request in self._mail if not fits(request))
        with contextlib.suppress(OSError):  # what stays is an answer to no question
            withdraw(self._paths, *settled)

    def _found(self, fits: Fits) -> Request | None:
        now = time.monotonic()
        if now - self._looked >= POLL_SECONDS / 2:  # many may wait at once
            self._looked = now
            self._look()
        return next((request for request in self._mail if fits(request)), None)

    def _look(self) -> None:
        """Read the folder if it has changed; what cannot be read now is read next time."""
        try:
            changed = self._paths.requests_of(self._run).lstat().st_mtime_ns
            if changed == self._seen:
                return
            mail = posted(self._paths, self._run)
        except FileNotFoundError:
            self.open()
            return
        except OSError:
            return
        # Two changes within one tick of the clock look like one: only a folder that has come to rest is believed.
        self._seen = changed if time.time() - changed / 1e9 > SETTLED_SECONDS else None
        self._mail = mail.requests
        for name in mail.strange.keys() - self._told:
            self._told.add(name)
            self._tell(name, mail.strange[name])


def answers(step: str, about: int) -> Fits:
    """Make the wish for an answer to what *step* asked by the event of the number *about*."""
    return lambda request: (request.kind, request.step, request.about) == ("answer", step, about)
