"""Answer the requests of one sandbox: only calls to its own models pass, with a key that it never sees."""

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator

import h11

from shoal.errors import Broken
from shoal.gateway.arrivals import ArrivalRate
from shoal.gateway.body_worker import RemoteRecorder
from shoal.gateway.client_connection import (
    BODY_BYTES,
    ClientConnection,
    ClientGone,
    RequestHead,
    RequestRefused,
)
from shoal.gateway.model_calls import CallInProgress, CheckedCall, Exchange, KeyCover, ModelCalls, Tell
from shoal.gateway.providers import PROVIDERS, CheckedRequest, Provider
from shoal.gateway.recording import Replayer, open_recording
from shoal.gateway.reservations import estimate_most
from shoal.gateway.upstream_connection import UpstreamFailed
from shoal.model.budget import ScopedBudget
from shoal.model.gateway import Recording, SessionOrder, Upstream

REQUESTS_EACH_SECOND = 50.0
SMALL_BODY = 128 * 1024
"""What is checked at once; a larger one takes longer than others should wait, and a process of its own reads it."""
MOST_BODY_BYTES = 4 * BODY_BYTES
"""Of all requests of a session that are under way."""


class ByteRoom:
    """A limit on the bytes held at once; requests for more wait."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._more = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Reserve *size* bytes."""
        async with self._more:
            await self._more.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            self._left += size
            async with self._more:
                self._more.notify_all()


class SessionServer:
    """All connections of one session's sandboxes."""

    def __init__(self, order: SessionOrder, calls: ModelCalls, tell: Tell) -> None:
        self._order = order
        self._calls = calls
        self._tape = None if order.recording is None else _open_tape(order.recording, calls)
        for budget in order.budgets:
            calls.book.add(ScopedBudget.of(budget))
        self._tell = tell
        self._upstreams = {upstream.name: upstream for upstream in order.upstreams}
        self._bodies = ByteRoom(MOST_BODY_BYTES)
        self._checking = asyncio.Lock()
        self._requests = ArrivalRate(REQUESTS_EACH_SECOND)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        client = ClientConnection(reader, writer)
        try:
            while await self._serve_request(client):
                await self._requests.wait()
        except (OSError, TimeoutError, h11.ProtocolError, ClientGone):
            pass  # a client that violates HTTP or has gone gets no answer
        finally:
            client.close()

    async def _serve_request(self, client: ClientConnection) -> bool:
        """Answer one request, and return whether the connection may be used again."""
        provider = None
        try:
            request = await client.read_head()
            if request is None:
                return False
            upstream, target = self._find_upstream(request)
            provider = PROVIDERS[upstream.format]
            call = self._check_call(upstream, provider, request, target)
            if call.route.method == "HEAD":
                return await client.answer(200, [], b"")
            return await self._pass_on(client, call)
        except RequestRefused as refusal:
            await client.refuse(refusal.status, _error(provider, refusal.status, refusal.message))
            return False
        except h11.RemoteProtocolError as error:
            await client.refuse(400, _error(provider, 400, f"this is not HTTP: {error}"))
            return False

    def _find_upstream(self, request: RequestHead) -> tuple[Upstream, str]:
        """Split the target of a request: its first part names the upstream."""
        name, _, rest = request.target[1:].partition("/")
        if name not in self._upstreams:
            raise RequestRefused(
                404, f"no model is at this path; known: {', '.join(sorted(self._upstreams)) or 'none'}"
            )
        return self._upstreams[name], f"/{rest}"

    def _check_call(self, upstream: Upstream, provider: Provider, request: RequestHead, target: str) -> CheckedCall:
        route = provider.find_route(request.method, target)
        if route is None:
            place = target.partition("?")[0][:200]
            raise RequestRefused(403, f"the gateway passes on calls to models only, and not {request.method} {place}")
        token = provider.session_token(request.headers, target) or ""
        is_probe = route.method == "HEAD"  # answered here, and of no interest
        if not is_probe and not hmac.compare_digest(token.encode(), self._order.token.encode()):
            raise RequestRefused(401, "this is not the token of this session")
        return CheckedCall(upstream, provider, route, request)

    async def _pass_on(self, client: ClientConnection, call: CheckedCall) -> bool:
        lengths = call.request.values(b"content-length")
        size = int(lengths[0]) if lengths else BODY_BYTES if call.request.values(b"transfer-encoding") else 0
        async with self._bodies.hold(size):
            body = await client.read_body()
            exchange = Exchange(upstream=call.upstream.name, path=call.route.path)
            if call.route.method == "POST":  # who only counts tokens could have the provider fetch a URL, too
                body = await self._check_body(call, body, exchange)
            if call.route.is_answer:
                self._calls.assert_budget(self._order, call, exchange, self._tell)
            try:
                return await self._ask(client, call, body, exchange)
            except UpstreamFailed as error:
                exchange.error = KeyCover(call.upstream.key).text(str(error))
                if client.has_answered:
                    raise ClientGone from None  # a cut answer must look cut
                raise RequestRefused(502, exchange.error) from None
            finally:
                if call.route.is_answer:
                    self._calls.count(self._order, call, exchange)
                    self._tell(exchange.message(self._order.session))

    async def _check_body(self, call: CheckedCall, body: bytes, exchange: Exchange) -> bytes:
        """Note what a body asks for, and return it as it is sent on; a large one does not hold others up."""
        if len(body) <= SMALL_BODY:
            found = call.provider.check(call.route, body, self._order.grants)
        else:
            found = await self._check_apart(call, body)
        if isinstance(found, str):
            raise RequestRefused(403, found)
        output = 0 if "mbed" in call.route.path else found.most_output
        exchange.model, exchange.surcharge = found.model, found.surcharge
        exchange.most = estimate_most(call.upstream.format, found.model, len(body), output)
        return found.body

    async def _check_apart(self, call: CheckedCall, body: bytes) -> CheckedRequest | str:
        async with self._checking:  # a session has one there at a time
            try:
                return await self._calls.worker.check(call.provider.format, call.route, body, list(self._order.grants))
            except Broken as error:
                raise RequestRefused(503, str(error)) from None

    async def _ask(self, client: ClientConnection, call: CheckedCall, body: bytes, exchange: Exchange) -> bool:
        """Ask the upstream, and stop when the client has gone."""
        asked = CallInProgress(
            calls=self._calls,
            order=self._order,
            call=call,
            body=body,
            client=client,
            exchange=exchange,
            tell=self._tell,
            tape=self._tape,
        )
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(client.wait_until_gone())
                is_reusable = await asked.run()
                watch.cancel()
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        return is_reusable


def _open_tape(recording: Recording, calls: ModelCalls) -> RemoteRecorder | Replayer:
    opened = open_recording(recording)
    return opened if isinstance(opened, Replayer) else RemoteRecorder(recording, calls.worker)


def _error(provider: Provider | None, status: int, message: str) -> bytes:
    if provider is None:
        return json.dumps({"error": {"message": message}}).encode()
    return provider.error(status, message)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what was raised first; a client that has gone explains everything else."""
    found = list(errors.exceptions)
    return next((error for error in found if isinstance(error, ClientGone)), found[0])
