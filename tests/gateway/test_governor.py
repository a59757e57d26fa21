"""The governor of an account: a storm of refusals, fairness, and several processes."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from shoal.gateway.account import read_retry_after, utc_now
from shoal.gateway.governor import Asker, Governor, is_alive, process_name, read_state
from shoal.testing.model import Fail, ModelServer, Request, Say, Turn

BODY = {"model": "m", "messages": [{"role": "user", "content": "go"}]}


class Limiter:
    """A provider's limit: so many requests in each window, and then refusals that say when the window ends."""

    def __init__(self, each: int, seconds: float) -> None:
        self.each = each
        self.seconds = seconds
        self.began = time.monotonic()
        self.left = each
        self.refused = 0

    def turn(self, request: Request) -> Turn:
        now = time.monotonic()
        if now - self.began >= self.seconds:
            self.began, self.left = now, self.each
        self.left -= 1
        if self.left >= 0:
            return Say("ok")
        self.refused += 1
        return Fail(429, retry_after=round(self.seconds - (now - self.began), 3))


@contextlib.asynccontextmanager
async def asking(script: object) -> AsyncIterator[tuple[ModelServer, httpx2.AsyncClient]]:
    async with (
        ModelServer(script) as server,  # type: ignore[arg-type]
        httpx2.AsyncClient(base_url=server.url, timeout=60) as http,
    ):
        yield server, http


async def ask(http: httpx2.AsyncClient, governor: Governor, asker: Asker) -> None:
    """Ask until there is an answer, as the gateway does."""
    while True:
        async with governor.slot(asker) as slot:
            answer = await http.post("/v1/messages", json=BODY)
            if answer.status_code == 200:
                await slot.answer()
                return
            await slot.refuse(read_retry_after(dict(answer.headers), answer.json(), utc_now()))


async def test_a_storm_of_refusals_costs_few_requests_and_starves_nobody() -> None:
    limiter = Limiter(each=20, seconds=0.5)
    ended: dict[str, list[float]] = {}
    governor = Governor("a", None)

    async def work(http: httpx2.AsyncClient, name: str) -> None:
        for _ in range(6):
            await ask(http, governor, Asker("run", name))
            ended.setdefault(name, []).append(time.monotonic())

    async with asking(limiter.turn) as (server, http):
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(work(http, f"s{number}"))
        sent = len(server.requests)

    assert limiter.refused > 0
    assert sent <= 1.3 * 120, f"{sent} requests for 120 answers"
    last = [times[-1] for times in ended.values()]
    assert max(last) - min(last) < 2.5, "all went on side by side"


async def test_where_every_second_answer_is_a_refusal_nobody_asks_in_vain_twice() -> None:
    """A provider that refuses by the count needs one try more for each answer, and that is all that is sent."""
    count = 0

    def turn(request: Request) -> Turn:
        nonlocal count
        count += 1
        return Fail(429, retry_after=0.01) if count % 2 == 0 else Say("ok")

    governor = Governor("a", None)
    async with asking(turn) as (server, http), asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(ask(http, governor, Asker("run", f"s{number}")))

    assert len(server.requests) <= 1.3 * 39, "20 answers and the 19 refusals between them"


async def test_sessions_of_a_run_take_turns(tmp_path: Path) -> None:
    governor = Governor("a", tmp_path)
    governor._state.limit = 1
    order: list[str] = []

    async def work(name: str, times: int) -> None:
        for _ in range(times):
            async with governor.slot(Asker("run", name)) as slot:
                order.append(name)
                await asyncio.sleep(0)
                await slot.refuse(0)
                (await anext(aiter_state(governor)))

    async def aiter_state(governor: Governor) -> AsyncIterator[None]:
        async with governor.change() as state:
            state.is_probing, state.limit = False, 1
        yield None

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(work("greedy", 4))
        group.create_task(work("modest", 4))

    assert "modest" in order[:4]
    places = [place for place, name in enumerate(order) if name == "modest"]
    assert places[-1] <= 10, order


async def test_who_gives_up_waiting_lets_the_others_go_on() -> None:
    governor = Governor("a", None)
    governor._state.limit = 1
    waits: list[float] = []
    async with governor.slot(Asker("r", "holder")):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), governor.slot(Asker("r0", "impatient"), on_wait=waits.append):
                pass
    async with asyncio.timeout(0.2), governor.slot(Asker("r1", "next")) as slot:
        assert slot.waited < 0.2

    assert waits
    assert governor._state.under_way == 0


PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from shoal.gateway.governor import Asker, Governor

async def main(folder, run, count):
    governor = Governor("a", Path(folder))
    async def work(name):
        for _ in range(count):
            async with governor.slot(Asker(run, name)) as slot:
                print(run, "in", time.monotonic(), flush=True)
                await asyncio.sleep(0.01)
                await slot.answer()
                print(run, "out", time.monotonic(), flush=True)
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(work(str(number)))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def test_processes_share_the_limit_and_one_that_dies_gives_its_slots_back(tmp_path: Path) -> None:
    asyncio.run(limit_to(tmp_path, 3))
    started = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path, run, "8"], stdout=subprocess.PIPE, text=True)
        for run in ("r1", "r2")
    ]
    events = [line.split() for process in started for line in process.communicate(timeout=60)[0].splitlines()]
    under_way, most = 0, 0
    for _, event, _ in sorted(events, key=lambda event: float(event[2])):
        under_way += 1 if event == "in" else -1
        most = max(most, under_way)

    assert Counter(run for run, event, _ in events if event == "in") == {"r1": 32, "r2": 32}
    assert 2 <= most <= 9, "the limit grows as answers come"
    holder = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("0.01", "60"), tmp_path, "r3", "1"], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    (file,) = tmp_path.glob("*.json")
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    held = read_state(file)
    assert held is not None
    assert held.under_way > 0
    holder.kill()
    holder.communicate()
    asyncio.run(limit_to(tmp_path, 3))
    left = read_state(file)
    assert left is not None
    assert left.under_way == 0
    assert len(list(tmp_path.iterdir())) == 2, "a lock, and a state"


async def limit_to(folder: Path, limit: float) -> None:
    async with Governor("a", folder).change() as state:
        state.limit = limit


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"boot": "x"}', b'{"limit": "many"}', b"\xff" * 100, b"[" * 9999]
)
async def test_a_damaged_state_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    governor = Governor("a", tmp_path)
    async with governor.slot(Asker("r", "s")):
        pass
    (file,) = tmp_path.glob("*.json")
    whole = json.loads(file.read_bytes())
    for damaged in (content, json.dumps({**whole, "shares": {"1.2": {"r": "x"}}, "limit": None}).encode()):
        file.write_bytes(damaged)

        async with governor.slot(Asker("r", "s")) as slot:
            assert slot.waited < 1

        assert read_state(file) is not None


async def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    async with Governor("a", tmp_path / "missing").slot(Asker("r", "s")) as slot:
        await slot.answer()


def test_a_process_is_known_by_its_start_too() -> None:
    mine = process_name(os.getpid())

    assert is_alive(mine)
    assert not any(map(is_alive, (f"{os.getpid()}.1", f"{os.getpid()}.", "1", "x.y", "", "999999999.5")))
