"""Requests through the gateway's server: held to rate limits and budgets, and counted to the cent."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shoal.gateway.arrivals import serve_listener
from shoal.gateway.client_connection import RequestHead
from shoal.gateway.meters import TokenUsage
from shoal.gateway.model_calls import CheckedCall, Exchange, ModelCalls
from shoal.gateway.providers import ANTHROPIC, Route
from shoal.gateway.server import SessionServer
from shoal.model.budget import ScopedBudget, SpendingLimit
from shoal.model.gateway import Recording, SessionOrder, Upstream
from shoal.testing.model import Cut, Delay, Fail, ModelServer, Request, Say, Script, Turn, Usage

SONNET = "claude-sonnet-4-5"
BODY = {"model": SONNET, "max_tokens": 9, "messages": [{"role": "user", "content": "go"}]}


@dataclass
class Gateway:
    """The gateway's own process, without the process: sessions are served on loopback."""

    model: ModelServer
    calls: ModelCalls
    group: asyncio.TaskGroup
    said: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def client(
        self, session: str, run: str = "r", scopes: tuple[str, ...] = (), recording: Recording | None = None
    ) -> httpx2.AsyncClient:
        """Open a session, and give a client in it."""
        upstream = Upstream(name="anthropic", url=self.model.url, format="anthropic", key="real-key")
        order = SessionOrder(
            session=session, run=run, step="work", upstreams=(upstream,), scopes=scopes, recording=recording
        )
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        server = SessionServer(order, self.calls, lambda message: self.said.append(dict(message)))
        self.tasks.append(self.group.create_task(serve_listener(listener, server.serve)))
        headers = {"x-api-key": order.token}
        return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}/anthropic", headers=headers, timeout=60)

    def exchanges(self) -> list[dict[str, Any]]:
        return [message for message in self.said if message["event"] == "exchange"]


@contextlib.asynccontextmanager
async def serving(script: Script, state: Path) -> AsyncIterator[Gateway]:
    async with ModelServer(script) as model, asyncio.TaskGroup() as group:
        gateway = Gateway(model, ModelCalls({"XDG_STATE_HOME": str(state)}, group), group)
        yield gateway
        for task in gateway.tasks:
            task.cancel()
        await asyncio.wait(gateway.tasks)
        gateway.calls.close()


def limit(each: int, seconds: float) -> Callable[[Request], Turn]:
    """Refuse whatever is over so many requests in a window."""
    window = [time.monotonic(), each]

    def turn(request: Request) -> Turn:
        now = time.monotonic()
        if now - window[0] >= seconds:
            window[:] = [now, each]
        window[1] -= 1
        return Say("ok") if window[1] >= 0 else Fail(429, retry_after=round(seconds - (now - window[0]), 3))

    return turn


async def test_twenty_agents_in_a_storm_all_finish_and_none_sees_a_refusal(tmp_path: Path) -> None:
    async with serving(limit(20, 0.5), tmp_path) as gateway:
        ended: dict[str, float] = {}

        async def work(name: str) -> None:
            async with gateway.client(name, run=f"r{int(name) % 2}") as http:
                for _ in range(6):
                    answer = await http.post("/v1/messages", json=BODY)
                    assert answer.status_code == 200, answer.text
                ended[name] = time.monotonic()

        async with asyncio.TaskGroup() as agents:
            for number in range(20):
                agents.create_task(work(str(number)))
        sent = len(gateway.model.requests)

    assert len(ended) == 20
    assert sent <= 1.3 * 120, f"{sent} requests for 120 answers"
    assert max(ended.values()) - min(ended.values()) < 2.5
    assert sum(exchange["retries"] for exchange in gateway.exchanges()) == sent - 120
    assert {message["event"] for message in gateway.said} <= {"exchange", "waiting"}


async def test_who_must_wait_long_is_said_to_wait_and_a_refusal_for_good_is_passed_on(tmp_path: Path) -> None:
    async with serving([Fail(429, retry_after=1.0), Say("ok")], tmp_path) as gateway, gateway.client("s") as http:
        assert (await http.post("/v1/messages", json=BODY)).status_code == 200
    (waiting,) = [message for message in gateway.said if message["event"] == "waiting"]
    (exchange,) = gateway.exchanges()

    assert 0.5 < waiting["seconds"] <= 1
    assert (exchange["retries"], exchange["status"]) == (1, 200)
    assert exchange["waited_seconds"] > 0.8
    async with serving([Fail(429, retry_after=3600)], tmp_path / "other") as gateway, gateway.client("s") as http:
        refused = await http.post("/v1/messages", json=BODY)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3600")
    assert len(gateway.model.requests) == 1


async def test_a_budget_that_is_reached_ends_its_sessions_and_the_sum_is_exact(tmp_path: Path) -> None:
    spent = Usage(input=1234, output=567, cached=1000)
    async with serving(lambda _: Say("ok", spent), tmp_path) as gateway:
        gateway.calls.book.add(ScopedBudget(scope="step:a", limit=SpendingLimit(usd=Decimal("0.05"))))
        async with gateway.client("a", scopes=("run", "step:a")) as a, gateway.client("b", scopes=("run",)) as b:
            statuses = [(await a.post("/v1/messages", json=BODY)).status_code for _ in range(7)]
            refused = await a.post("/v1/messages", json=BODY)
            assert (await b.post("/v1/messages", json=BODY)).status_code == 200, "the others go on"
        log = gateway.model.usage
        book = gateway.calls.book.budgets(["step:a"])[0]

    each = (Decimal(234) * 3 + 1000 * Decimal("0.3") + 567 * 15) / 1_000_000
    assert statuses == [200] * 6 + [403]
    assert "the budget of step a is reached: $0.06 of $0.05" in refused.json()["error"]["message"]
    assert book.spent.usd == 6 * each
    assert (log.input, log.output) == (7 * 1234, 7 * 567)
    assert sum(Decimal(exchange["spent"]["usd"]) for exchange in gateway.exchanges()) == 7 * each
    reached = [message for message in gateway.said if message["event"] == "budget"]
    assert [message["session"] for message in reached] == ["a", "a"]


async def test_a_model_without_a_price_is_refused_only_under_a_budget_of_dollars(tmp_path: Path) -> None:
    async with serving([Say("ok")], tmp_path) as gateway:
        gateway.calls.book.add(ScopedBudget(scope="run", limit=SpendingLimit(usd=Decimal(5))))
        async with gateway.client("a", scopes=("run",)) as a, gateway.client("b") as b:
            refused = await a.post("/v1/messages", json={**BODY, "model": "mine"})
            free = await b.post("/v1/messages", json={**BODY, "model": "mine"})

    assert (refused.status_code, free.status_code) == (403, 200)
    assert "'mine' has no price" in refused.text
    (exchange,) = gateway.exchanges()
    assert exchange["spent"]["unpriced"] == ["mine"]


@pytest.mark.parametrize(
    "turn", [Cut(after_chunks=12, of=Say("word " * 100)), Delay(0, Say("word " * 300), between=0.01)]
)
async def test_who_hangs_up_before_the_count_comes_has_spent_it_all_the_same(tmp_path: Path, turn: Turn) -> None:
    async with serving([turn], tmp_path) as gateway:
        gateway.calls.book.add(ScopedBudget(scope="run", limit=SpendingLimit(tokens=10**6)))
        async with gateway.client("a", scopes=("run",)) as http:
            with contextlib.suppress(httpx2.RemoteProtocolError):
                async with http.stream("POST", "/v1/messages", json={**BODY, "stream": True}) as answer:
                    async for _ in answer.aiter_raw():
                        if isinstance(turn, Delay):
                            break
        while not gateway.exchanges():
            await asyncio.sleep(0.01)
        (budget,) = gateway.calls.book.budgets(["run"])

    assert gateway.exchanges()[0]["usage"]["is_estimated"]
    assert 0 < budget.spent.tokens < 3000


async def test_who_hangs_up_before_an_answer_begins_has_spent_what_was_asked(tmp_path: Path) -> None:
    async with serving([Delay(60, Say("late"))], tmp_path) as gateway:
        gateway.calls.book.add(ScopedBudget(scope="run", limit=SpendingLimit(usd=Decimal(5))))
        async with gateway.client("a", scopes=("run",)) as http:
            body = {**BODY, "system": "word " * 1000}
            asked = asyncio.ensure_future(http.post("/v1/messages", json=body))
            while not gateway.model.requests:
                await asyncio.sleep(0.01)
            asked.cancel()
            await asyncio.wait([asked])
        while not gateway.exchanges():
            await asyncio.sleep(0.01)
        (budget,) = gateway.calls.book.budgets(["run"])

    assert budget.spent.tokens > 1000
    assert budget.spent.usd > 0


@pytest.mark.parametrize("more", [{"service_tier": "priority"}, {"speed": "fast"}, {"Service_Tier": "scale"}])
async def test_what_changes_the_price_is_refused_only_under_a_budget_of_dollars(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    async with serving([Say("ok")] * 4, tmp_path) as gateway:
        gateway.calls.book.add(ScopedBudget(scope="step:a", limit=SpendingLimit(usd=Decimal(5))))
        async with gateway.client("a", scopes=("step:a",)) as a, gateway.client("b", scopes=("step:b",)) as b:
            refused = await a.post("/v1/messages", json={**BODY, **more})
            usual = await a.post("/v1/messages", json={**BODY, "service_tier": "auto"})
            free = await b.post("/v1/messages", json={**BODY, **more})

    assert (refused.status_code, usual.status_code, free.status_code) == (403, 200, 200)
    assert "changes the price" in refused.text


async def test_who_hangs_up_on_a_long_silent_answer_has_spent_what_a_model_may_have_written(tmp_path: Path) -> None:
    body = {**BODY, "max_tokens": 20}
    async with serving([Delay(30, Say("ok"))], tmp_path) as gateway:
        async with gateway.client("a", scopes=("run",)) as http:
            with contextlib.suppress(httpx2.TimeoutException):
                await http.post("/v1/messages", json=body, timeout=1.0)
        while not gateway.exchanges():
            await asyncio.sleep(0.01)

    usage = gateway.exchanges()[0]["usage"]
    assert usage["output"] == 20
    assert usage["is_estimated"]


async def test_an_answer_by_an_unknown_name_costs_what_the_model_that_was_asked_does() -> None:
    calls, upstream = (
        ModelCalls({}, asyncio.TaskGroup()),
        Upstream(name="anthropic", url="http://x", format="anthropic"),
    )
    order = SessionOrder(session="s", run="r", step="w", upstreams=(upstream,), scopes=("run",))
    request = RequestHead(method="POST", target="/", headers=[])
    route = Route(method="POST", path="/v1/messages", query="", is_answer=True)
    exchange = Exchange(upstream="anthropic", path="/", model=SONNET, usage=TokenUsage(model="mine", output=10**6))
    calls.count(order, CheckedCall(upstream, ANTHROPIC, route, request), exchange)

    assert exchange.spent is not None
    assert exchange.spent.usd > 0


async def test_an_answer_that_cannot_be_recorded_is_counted(tmp_path: Path) -> None:
    nowhere = Recording(folder=str(tmp_path / "gone"), key="a")
    async with serving([Say("ok")], tmp_path) as gateway:
        async with gateway.client("a", scopes=("run",), recording=nowhere) as http:
            with contextlib.suppress(httpx2.RemoteProtocolError):
                await http.post("/v1/messages", json=BODY)
        while not gateway.exchanges():
            await asyncio.sleep(0.01)

    assert gateway.exchanges()[0]["spent"]["tokens"] > 0
