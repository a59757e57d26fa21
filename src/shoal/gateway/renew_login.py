"""Tokens of the user's logins: read from their files, renewed here on the host, and written back."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from shoal.errors import Broken
from shoal.gateway.logins import KNOWN, Json, Login, LoginTokens, LoginUnusable, read_document, read_tokens
from shoal.gateway.upstream_connection import UpstreamFailed, UpstreamPool
from shoal.model.gateway import Upstream
from shoal.store.lock import hold_lock

MARGIN = 300.0
"""A token that ends within this time is renewed before it is used."""
LOCK_SECONDS = 45.0
ANSWER_SECONDS = 30.0
PAUSE = 5.0
"""After a failure, the token server is left alone for so long."""
MOST_ANSWER = 2**20
GROWTH = 64 * 1024
"""How much longer a file may become, which is reserved before its old token is used up."""
REFUSED = (400, 401, 403)


class Logins:
    """All logins that the gateway holds, each of which is renewed once at a time."""

    def __init__(self, pool: UpstreamPool, group: asyncio.TaskGroup) -> None:
        self._pool = pool
        self._group = group
        self._held: dict[tuple[str, str], HeldLogin] = {}

    def find(self, upstream: Upstream) -> "HeldLogin":
        """Return the login of an upstream."""
        place = (upstream.login_file, upstream.token_url)
        if place not in self._held:
            login = KNOWN[upstream.login]
            self._held[place] = HeldLogin(
                login, Path(upstream.login_file), upstream.token_url, pool=self._pool, group=self._group
            )
        return self._held[place]

    async def settle(self) -> None:
        """Wait until nothing is being renewed: what is cut off in the middle costs the user the login."""
        for held in self._held.values():
            await held.settle()


class HeldLogin:
    """One login of the user; its owner's own client may renew it, too, so its file is what counts."""

    def __init__(
        self, login: Login, file: Path, token_url: str, *, pool: UpstreamPool, group: asyncio.TaskGroup
    ) -> None:
        self._login = login
        self._file = file
        self._token_url = token_url
        self._pool = pool
        self._group = group
        self._renewing: asyncio.Task[LoginTokens | Broken | LoginUnusable | UpstreamFailed] | None = None
        self._used_up = ""
        """The refresh token that the provider refused."""
        self._quiet_until = 0.0
        self._failure = ""

    async def tokens(self, refused: str = "") -> LoginTokens:
        """Return valid tokens, renewed if necessary, and never those whose access token was *refused*."""
        known = read_tokens(self._login, self._file)
        if known.access != refused and known.is_valid(time.time() + MARGIN):
            return known
        try:
            return await self._renew(refused)
        except (Broken, UpstreamFailed, LoginUnusable):
            if known.access != refused and known.is_valid(time.time()):
                return known
            raise

    async def settle(self) -> None:
        """Wait until it is not being renewed."""
        if self._renewing is not None:
            await asyncio.wait([self._renewing])

    async def _renew(self, refused: str) -> LoginTokens:
        """Renew, or wait for who does already; who stops waiting does not stop the renewal."""
        if self._renewing is None or self._renewing.done():
            if time.monotonic() < self._quiet_until:
                raise UpstreamFailed(self._failure)
            self._renewing = self._group.create_task(self._renew_alone(refused))
        renewed = await asyncio.shield(self._renewing)
        if isinstance(renewed, Exception):
            raise renewed
        return renewed

    async def _renew_alone(self, refused: str) -> LoginTokens | Broken | LoginUnusable | UpstreamFailed:
        try:
            file = self._file.resolve()
            async with hold_lock(login_lock(file), timeout=LOCK_SECONDS):
                return await self._renew_locked(file, refused)
        except (Broken, LoginUnusable) as error:
            return error
        except Exception as error:
            self._quiet_until = time.monotonic() + PAUSE
            self._failure = f"the login of {self._login.name} could not be renewed: {error or type(error).__name__}"
            return UpstreamFailed(self._failure)

    async def _renew_locked(self, file: Path, refused: str) -> LoginTokens:
        draft = _Draft(file)
        draft.recover(self._login)
        known = read_tokens(self._login, file)
        if known.access != refused and known.is_valid(time.time() + MARGIN):  # another process has renewed it
            return known
        if not known.refresh or known.refresh == self._used_up:
            raise self._explain_end("its provider does not renew it")
        with draft.reserve() as descriptor:
            document = read_document(file)
            answer = await self._ask(document, known.refresh)
            if answer is None:
                return self._look_again(file, known)
            if read_tokens(self._login, file).refresh == known.refresh:  # nobody else has renewed it meanwhile
                draft.commit(descriptor, self._login.update(document, answer, time.time()))
        return read_tokens(self._login, file)

    async def _ask(self, document: Json, refresh: str) -> Json | None:
        """Ask for new tokens; `None` where the provider refuses."""
        fixed = {"grant_type": "refresh_token", "refresh_token": refresh, "client_id": self._login.client_id}
        body = json.dumps({**fixed, **self._login.renewal(document)}).encode()
        target = urlsplit(self._token_url).path or "/"
        headers = [(b"content-type", b"application/json"), (b"accept", b"application/json")]
        headers.append((b"connection", b"close"))  # on a connection that is kept, it could be sent twice
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            self._pool.ask(self._token_url, ("POST", target, headers), body) as answer,
        ):
            content = bytearray()
            async for chunk in answer.chunks():
                content += chunk[: MOST_ANSWER - len(content)]
        if answer.status in REFUSED:
            return None
        found = _read(bytes(content)) if answer.status == 200 else {}
        if not isinstance(found.get("access_token"), str) or self._login.read(self._login.update({}, found, 0)) is None:
            raise UpstreamFailed(f"{urlsplit(self._token_url).hostname} answered with the status {answer.status}")
        return found

    def _look_again(self, file: Path, known: LoginTokens) -> LoginTokens:
        """Return what somebody else has renewed meanwhile, or say that the login has ended."""
        latest = read_tokens(self._login, file)
        if latest.refresh != known.refresh and latest.is_valid(time.time()):
            return latest
        self._used_up = known.refresh
        raise self._explain_end("its provider does not renew it")

    def _explain_end(self, why: str) -> LoginUnusable:
        name = self._login.name
        return LoginUnusable(f"the login of {name} at {self._file} has ended, and {why}; log in again with `{name}`")


def login_lock(file: Path) -> Path:
    """Return the lock that guards a login against all other Shoals: beside it, so that all of them find it."""
    return file.with_name(f".{file.name}.shoal.lock")


@dataclass(frozen=True, slots=True)
class _Draft:
    """The file that will replace a login: made, with room for its content, before the old login is used up."""

    file: Path

    @property
    def path(self) -> Path:
        return self.file.with_name(f".{self.file.name}.shoal.new")

    @contextlib.contextmanager
    def reserve(self) -> Iterator[int]:
        """Make it, and remove it if it is not committed."""
        seen = self.file.stat()
        self.path.unlink(missing_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.geteuid() == 0:
                os.fchown(descriptor, seen.st_uid, seen.st_gid)
            os.posix_fallocate(descriptor, 0, seen.st_size + GROWTH)
            yield descriptor
        finally:
            os.close(descriptor)
            self.path.unlink(missing_ok=True)

    def commit(self, descriptor: int, document: Json) -> None:
        """Put it in the place of the old file; a kill in between leaves the new login for `recover`."""
        content = json.dumps(document, indent=2).encode()
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
        self.path.replace(self.file)

    def recover(self, login: Login) -> None:
        """Use the new login that a killed process wrote and did not put in its place."""
        with contextlib.suppress(OSError, LoginUnusable):
            if self.path.stat().st_mtime_ns >= self.file.stat().st_mtime_ns:
                read_tokens(login, self.path)
                self.path.replace(self.file)


def _read(content: bytes) -> Json:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
