"""Agents on nodes ask their models through the coordinator: no key leaves it, and it counts and limits."""

import asyncio
import os
from pathlib import Path

import pytest

from shoal.model.events import PermissionDecided
from shoal.model.gateway import ModelAnswered
from shoal.model.nodes import parse_nodes
from shoal.model.plan import Plan
from shoal.model.policy import Network
from shoal.model.results import RunReport
from shoal.model.status import Status
from shoal.runs.request import RunRequest
from shoal.runs.run import run
from shoal.store.paths import StatePaths
from shoal.store.reader import read_session
from shoal.testing.model import ModelServer
from tests.acting import assert_nothing_left, shown, step
from tests.gateway.test_runs import ASK, KEY, LOOK, set_key


async def run_with_model(repo: Path, script: str, workers: int = 1) -> RunReport:
    request = RunRequest(folder=repo, environ=os.environ, grace=0.5)
    steps = (step("work", script, workers, network=Network.GATEWAY),)
    async with asyncio.timeout(120):
        return await run(
            Plan(name="t", steps=steps, nodes=parse_nodes("pipe:4")), request, stop=asyncio.Event(), listen=None
        )


async def test_an_agent_on_a_node_asks_its_model_and_finds_neither_the_key_nor_another_way_out(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Path(os.environ["XDG_STATE_HOME"])
    async with ModelServer() as model:
        set_key(monkeypatch, model)
        look = LOOK.replace("PORT", model.url.rpartition(":")[2])
        script = f"python3 - <<'END'\n{ASK}\nEND\n({look}) > seen 2>&1; cat seen"
        report = await run_with_model(repo, script)

    (result,) = report.steps[0].worker_results
    seen = shown(repo, result, "seen")
    events = [recorded.event for recorded in read_session(StatePaths.of(repo), result.session)]
    (answered,) = [event for event in events if isinstance(event, ModelAnswered)]
    denied = [event for event in events if isinstance(event, PermissionDecided) and not event.allowed]
    files = [path for top in (repo / ".shoal", state / "shoal" / "nodes") for path in top.rglob("*")]
    assert result.output.startswith("Deep."), result
    assert result.usage["input_tokens"] == 12
    assert (answered.status, answered.upstream, answered.usage["output_tokens"]) == (200, "openai", 3)
    assert "REACHED" not in seen
    assert "eth" not in seen
    assert any("nowhere.example.org:443" in event.subject for event in denied), denied
    assert KEY not in seen
    assert not [path for path in files if path.is_file() and KEY.encode() in path.read_bytes()]
    assert_nothing_left(repo)


async def test_several_agents_ask_at_once(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer() as model:
        set_key(monkeypatch, model)
        report = await run_with_model(repo, f"for n in 1 2 3; do python3 - <<'END'\n{ASK}\nEND\ndone", 3)

    assert [result.status for result in report.workers] == [Status.NO_CHANGES] * 3
    assert [result.usage["input_tokens"] for result in report.workers] == [36] * 3
    assert report.usage["input_tokens"] == 108
