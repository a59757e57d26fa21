"""Send requests to model servers within rate limits and budgets, count their answers, and stream them back."""

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NoReturn
from urllib.parse import urlsplit

from shoal.errors import Broken
from shoal.gateway.account import is_for_good, read_retry_after, utc_now
from shoal.gateway.body_worker import BodyWorker, CollectedExchange, RemoteRecorder
from shoal.gateway.budget import BudgetBook
from shoal.gateway.client_connection import ClientConnection, RequestHead, RequestRefused
from shoal.gateway.governor import Asker, Governor
from shoal.gateway.logins import LoginUnusable
from shoal.gateway.meters import TokenUsage
from shoal.gateway.prices import find_prices, price
from shoal.gateway.providers import Headers, Provider, Route
from shoal.gateway.recording import Divergence, Replayer
from shoal.gateway.renew_login import Logins
from shoal.gateway.reservations import Reservation, Reservations
from shoal.gateway.upstream_connection import UpstreamAnswer, UpstreamFailed, UpstreamPool
from shoal.model.budget import ScopedBudget, Spending
from shoal.model.gateway import SessionOrder, Upstream
from shoal.store.known_repositories import find_user_folder

THROTTLED = (429, 529)
REFUSED_KEY = 401
PATIENCE = 300.0
"""How long a request is held back and tried again for a rate limit, before its client is told."""
LONGEST_REFUSAL = 64 * 1024
TOLD_EVERY = 2.0
TOKENS_EACH_SECOND = 100
"""What a fast model writes."""
NOTICEABLE_WAIT = 0.5
NOT_PASSED_BACK = frozenset(
    b"connection keep-alive proxy-authenticate proxy-connection set-cookie trailer transfer-encoding upgrade".split()
)

Tell = Callable[[Mapping[str, Any]], None]
"""Sends a message to the coordinator."""


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A request that may pass, with its route."""

    upstream: Upstream
    provider: Provider
    route: Route
    request: RequestHead


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request and its answer so far; reported when it has ended."""

    upstream: str
    path: str
    model: str = ""
    """As the request names it."""
    most: TokenUsage = field(default_factory=TokenUsage)
    """What it may use at most."""
    surcharge: str = ""
    """What of it changes its price."""
    reservation: Reservation | None = None
    began: float = field(default_factory=time.monotonic)
    first_at: float | None = None
    status: int = 0
    error: str = ""
    usage: TokenUsage | None = None
    spent: Spending | None = None
    retries: int = 0
    waited: float = 0.0

    def message(self, session: str) -> dict[str, Any]:
        """Describe it to the coordinator."""
        now = time.monotonic()
        return {
            "event": "exchange",
            "session": session,
            "upstream": self.upstream,
            "path": self.path,
            "status": self.status,
            "error": self.error,
            "usage": None if self.usage is None else asdict(self.usage),
            "spent": None if self.spent is None else self.spent.document(),
            "seconds": round(now - self.began, 4),
            "first_token_seconds": None if self.first_at is None else round(self.first_at - self.began, 4),
            "retries": self.retries,
            "waited_seconds": round(self.waited, 3),
        }


class ModelCalls:
    """What all sessions of the gateway share: connections, the rate limits of accounts, and budgets."""

    def __init__(self, environ: Mapping[str, str], group: asyncio.TaskGroup) -> None:
        self.pool = UpstreamPool(environ)
        self.book = BudgetBook()
        self.worker = BodyWorker(group)
        self.reservations = Reservations(self.book)
        self.logins = Logins(self.pool, group)
        self._governors: dict[str, Governor] = {}
        self._folder = find_user_folder(environ, "governor")

    async def settle(self) -> None:
        """Finish what must not be cut off."""
        await self.logins.settle()
        await self.worker.settle()

    def close(self) -> None:
        """Close the connections, and end the process that reads large requests."""
        self.pool.close()
        self.worker.close()

    def governor(self, upstream: Upstream) -> Governor:
        """Return the governor of the account that an upstream's key belongs to."""
        secret = f"{upstream.login} {upstream.login_file}" if upstream.login else upstream.key
        account = f"{upstream.url} {hashlib.sha256(secret.encode()).hexdigest()}"
        if account not in self._governors:
            self._governors[account] = Governor(account, self._folder)
        return self._governors[account]

    def assert_budget(self, order: SessionOrder, call: CheckedCall, exchange: Exchange, tell: Tell) -> None:
        """Refuse a request that the budget does not allow or whose cost is unknown, and tell the coordinator."""
        reached = self.book.find_reached(order.scopes)
        if reached is not None:
            _refuse_for(reached, order, tell)
        kind, model = call.upstream.format, exchange.model
        if why := self.book.refuse_unpriced(order.scopes, kind, model, _today(), exchange.surcharge):
            raise RequestRefused(403, why)

    async def reserve(
        self, order: SessionOrder, call: CheckedCall, exchange: Exchange, asked: "CallInProgress"
    ) -> None:
        """Wait until what a request may cost at most fits its budgets beside the requests under way."""
        if not self.book.budgets(order.scopes):
            return
        most = price(call.upstream.format, exchange.most, _today())
        found = await self.reservations.take(order.scopes, most, asked.note_budget_wait)
        if isinstance(found, ScopedBudget):
            _refuse_for(found, order, asked.tell)
        else:
            exchange.reservation = found

    def count(self, order: SessionOrder, call: CheckedCall, exchange: Exchange) -> None:
        """Count what an answer cost towards the budgets of its session."""
        if (usage := exchange.usage) is not None:
            kind, day = call.upstream.format, _today()
            if find_prices(kind, usage.model, day) is None and find_prices(kind, exchange.model, day):
                usage = replace(usage, model=exchange.model)  # a server may name its model as it likes
            exchange.spent = self.book.spend(order.scopes, kind, usage, day)
        if exchange.reservation is not None:
            self.reservations.release(exchange.reservation)


def _refuse_for(reached: ScopedBudget, order: SessionOrder, tell: Tell) -> NoReturn:
    why = reached.why_stopped or reached.title
    tell({"event": "budget", "session": order.session, "why": why})
    raise RequestRefused(403, why)


def _today() -> Any:  # noqa: ANN401
    return datetime.now(UTC).date()


@dataclass(slots=True, kw_only=True)
class CallInProgress:
    """One request on its way to its model, and the answer on its way back."""

    calls: ModelCalls
    order: SessionOrder
    call: CheckedCall
    body: bytes
    client: ClientConnection
    exchange: Exchange
    tell: Tell
    tape: RemoteRecorder | Replayer | None = None
    _told_at: float = 0.0
    _asked_at: float = 0.0
    _key: str = field(default="", repr=False)
    _headers: tuple[tuple[str, str], ...] = ()
    """What else the login needs."""

    async def run(self) -> bool:
        """Ask until there is an answer, and return whether the client's connection may be used again."""
        if isinstance(self.tape, Replayer):
            return await self._replay(self.tape)
        if self.call.route.is_answer:
            await self.calls.reserve(self.order, self.call, self.exchange, self)
        await self._find_key()
        if not self.call.route.is_answer:  # counts and lists are not rate-limited
            async with self._ask() as answer:
                if not self._may_renew(answer):
                    return await self._pass_on(answer)
            await self._find_key(self._key)
            async with self._ask() as answer:
                return await self._pass_on(answer)
        return await self._ask_patiently()

    async def _ask_patiently(self) -> bool:
        """Ask, and ask again while the rate limit refuses; a login that is refused is renewed once."""
        is_renewed = False
        patient_until = time.monotonic() + PATIENCE
        governor = self.calls.governor(self.call.upstream)
        asker = Asker(self.order.run, self.order.session)
        while True:
            async with governor.slot(asker, on_wait=self._note_wait) as slot:
                self.exchange.waited += slot.waited
                async with self._ask() as answer:
                    may_renew = not is_renewed and self._may_renew(answer)
                    if not may_renew and answer.status not in THROTTLED:
                        await slot.answer()
                        return await self._pass_on(answer)
                    refusal = await _read_refusal(answer)
                if not refusal.is_for_good and not may_renew:
                    await slot.refuse(refusal.retry_after)
            if may_renew:
                is_renewed = True
                await self._find_key(self._key)
                continue
            if refusal.is_for_good or time.monotonic() + (refusal.retry_after or 0) > patient_until:
                headers = [pair for pair in self._headers_back(answer) if pair[0].lower() != b"content-length"]
                return await self.client.answer(answer.status, headers, self._cover().whole(refusal.body))
            self.exchange.retries += 1

    async def _find_key(self, refused: str = "") -> None:
        """Take the key, or the token of a login; a login that has ended ends the session, which cannot go on."""
        upstream = self.call.upstream
        if not upstream.login:
            self._key = upstream.key
            return
        try:
            tokens = await self.calls.logins.find(upstream).tokens(refused)
        except LoginUnusable as error:
            self.tell({"event": "failed", "session": self.order.session, "why": str(error)})
            raise RequestRefused(401, str(error)) from None
        except Broken as error:
            raise UpstreamFailed(str(error)) from None
        self._key, self._headers = tokens.access, tokens.headers

    def _may_renew(self, answer: UpstreamAnswer) -> bool:
        return answer.status == REFUSED_KEY and bool(self.call.upstream.login)

    @contextlib.asynccontextmanager
    async def _ask(self) -> AsyncIterator[UpstreamAnswer]:
        call, upstream = self.call, self.call.upstream
        headers = call.provider.set_key(call.request.headers, self._key, is_bearer=upstream.is_bearer)
        headers += [(name.encode(), value.encode()) for name, value in self._headers]
        target = call.provider.upstream_target(urlsplit(upstream.url).path, call.route)
        self._asked_at = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            asking = self.calls.pool.ask(upstream.url, (call.route.method, target, headers), self.body)
            try:
                answer = await stack.enter_async_context(asking)
            except asyncio.CancelledError:  # who hangs up before the answer begins has asked for it all the same
                self.exchange.usage = self._estimate_unseen()
                raise
            yield answer

    def _estimate_unseen(self) -> TokenUsage:
        """Estimate an answer of which nothing came: the model may have worked on it since it was asked."""
        known = self.call.provider.meter().estimate(len(self.body), self.exchange.model)
        seconds = time.monotonic() - self._asked_at
        return replace(known, output=min(self.exchange.most.output, int(seconds * TOKENS_EACH_SECOND)))

    async def _pass_on(self, answer: UpstreamAnswer) -> bool:
        self.exchange.status = answer.status
        if 300 <= answer.status < 400:
            raise UpstreamFailed(f"{self.call.upstream.name} answered with a redirect, which is not followed")
        await self.client.begin(answer.status, self._headers_back(answer))
        await self._copy(answer)
        return await self.client.finish()

    async def _copy(self, answer: UpstreamAnswer) -> None:
        """Pass the body on in parts, and count the usage in it."""
        meter, cover, is_whole, tape = self.call.provider.meter(), self._cover(), False, None
        if isinstance(self.tape, RemoteRecorder):
            tape = self.tape.begin(self.call.route.method, self.call.route.target, self.body)
        try:
            async for chunk in answer.chunks():
                if self.exchange.first_at is None:
                    self.exchange.first_at = time.monotonic()
                meter.feed(chunk)
                await self._send(cover.feed(chunk), tape)
            await self._send(cover.close(), tape)
            is_whole = True
        finally:
            self.exchange.usage = meter.usage
            if answer.status == 200 and self.call.route.is_answer and (self.exchange.usage is None or not is_whole):
                # A client that hangs up before the count comes has still been answered.
                self.exchange.usage = meter.estimate(len(self.body), self.exchange.model)
            if tape is not None:  # last: it may fail, and the answer is to be paid all the same
                await tape.end(answer.status, _headers_of(answer), is_whole=is_whole)

    async def _replay(self, tape: Replayer) -> bool:
        """Answer from the recording; no server is asked."""
        route = self.call.route
        found = tape.answer(route.method, route.target, self.body, is_answer=route.is_answer)
        if isinstance(found, Divergence):
            self.tell({"event": "divergence", "session": self.order.session, "why": found.text})
            raise RequestRefused(400, found.text)
        self.exchange.status = found.status
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in found.headers.items()]
        meter = self.call.provider.meter()
        await self.client.begin(found.status, headers)
        for chunk in found.chunks:
            meter.feed(chunk)
            await self.client.send(chunk)
        self.exchange.usage = meter.usage
        if not found.is_whole:
            raise UpstreamFailed("the recorded answer breaks off here")
        return await self.client.finish()

    async def _send(self, chunk: bytes, tape: CollectedExchange | None) -> None:
        if chunk:
            if tape is not None:
                tape.feed(chunk)
            await self.client.send(chunk)

    def _cover(self) -> "KeyCover":
        return KeyCover(self._key)

    def _headers_back(self, answer: UpstreamAnswer) -> Headers:
        cover = self._cover()
        return [(name, cover.whole(value)) for name, value in answer.headers if name.lower() not in NOT_PASSED_BACK]

    def note_budget_wait(self, seconds: float) -> None:
        """Tell the coordinator that the request waits for what others cost."""
        self._note_wait(seconds, "the budget that it shares, of which requests under way may use the rest")

    def _note_wait(self, seconds: float, what: str = "") -> None:
        """Tell the coordinator that the request is held back, now and then."""
        now = asyncio.get_running_loop().time()
        if seconds >= NOTICEABLE_WAIT and now - self._told_at >= TOLD_EVERY:
            self._told_at = now
            what = what or f"the rate limit of {self.call.upstream.name}"
            waiting = {"event": "waiting", "session": self.order.session, "what": what}
            self.tell({**waiting, "seconds": round(seconds, 3)})


class KeyCover:
    """Takes the key out of an answer, whose error message may repeat it, also where two chunks share it."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._tips = tuple(self._key[:size] for size in range(len(self._key) - 1, 0, -1))
        self._held = b""

    def whole(self, text: bytes) -> bytes:
        """Cover the key in a text that has no continuation; its length stays."""
        return text.replace(self._key, b"*" * len(self._key)) if self._key else text

    def text(self, text: str) -> str:
        """Cover the key in what is said of an answer."""
        return self.whole(text.encode()).decode()

    def feed(self, chunk: bytes) -> bytes:
        """Take a chunk, and return what is certain now."""
        text = self.whole(self._held + chunk)
        self._held = next((tip for tip in self._tips if text.endswith(tip)), b"") if text.endswith(self._tips) else b""
        return text[: len(text) - len(self._held)]

    def close(self) -> bytes:
        """Return what was held back."""
        return self._held


@dataclass(frozen=True, slots=True)
class _Refusal:
    body: bytes
    retry_after: float | None
    is_for_good: bool


async def _read_refusal(answer: UpstreamAnswer) -> _Refusal:
    body = bytearray()
    async for chunk in answer.chunks():
        body += chunk[: LONGEST_REFUSAL - len(body)]
    headers = _headers_of(answer)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = {}
    known = document if isinstance(document, dict) else {}
    return _Refusal(bytes(body), read_retry_after(headers, known, utc_now()), is_for_good(headers, known))


def _headers_of(answer: UpstreamAnswer) -> dict[str, str]:
    return {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
