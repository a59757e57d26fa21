"""Runs on `network: gateway`: what agents see there, and what becomes of them when its process is killed."""

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.model.events import Output, PermissionDecided
from shoal.model.gateway import ModelAnswered
from shoal.model.policy import Network
from shoal.model.retry import Retry
from shoal.model.status import Status
from shoal.store.paths import StatePaths
from shoal.store.reader import read_session
from shoal.testing.model import ModelServer
from tests.acting import assert_nothing_left, ran, shown, step
from tests.cli.conftest import SHOAL

KEY = "sk-the-real-key-of-the-user"
ASK = """
import json, os, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "[[s:text in=12 out=3 say=Deep.]]"}]}).encode()
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
print(json.load(urllib.request.urlopen(request, timeout=20))["choices"][0]["message"]["content"])
"""
LOOK = """
env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; cat /proc/net/dev
python3 -c 'import socket
for place in ("1.1.1.1", 443), ("127.0.0.1", PORT), ("169.254.169.254", 80):
    try: socket.create_connection(place, 2); print("REA" + "CHED", place)
    except OSError: pass
'; curl -sv https://nowhere.example.org/ 2>&1 | tail -3
"""


def gateways(parent: int) -> list[int]:
    """Find the gateway processes that *parent* has started."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat, command = Path(f"/proc/{name}/stat").read_text(), Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if stat.rpartition(")")[2].split()[1] == str(parent) and b"shoal.gateway.process" in command:
            found.append(int(name))
    return found


def set_key(monkeypatch: pytest.MonkeyPatch, model: ModelServer) -> None:
    for name, value in (("OPENAI_API_KEY", KEY), ("OPENAI_BASE_URL", f"{model.url}/v1")):
        monkeypatch.setenv(name, value)


async def test_a_command_asks_the_model_and_finds_neither_the_key_nor_another_way_out(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer() as model:
        set_key(monkeypatch, model)
        look = LOOK.replace("PORT", model.url.rpartition(":")[2])
        script = f"python3 - <<'END'\n{ASK}\nEND\n({look}) > seen 2>&1; cat seen"
        report = await ran(repo, step("work", script, network=Network.GATEWAY))

    (result,) = report.steps[0].worker_results
    seen = shown(repo, result, "seen")
    events = [recorded.event for recorded in read_session(StatePaths.of(repo), result.session)]
    (answered,) = [event for event in events if isinstance(event, ModelAnswered)]
    denied = [event for event in events if isinstance(event, PermissionDecided) and not event.allowed]
    state = b"".join(path.read_bytes() for path in (repo / ".shoal").rglob("*") if path.is_file())
    assert result.output.startswith("Deep.")
    assert result.usage["input_tokens"] == 12
    assert (answered.status, answered.upstream, answered.usage["output_tokens"]) == (200, "openai", 3)
    assert "REACHED" not in seen
    assert "eth" not in seen
    assert any("nowhere.example.org:443" in event.subject and "hosts: [" in event.rule for event in denied), denied
    assert KEY not in seen
    assert KEY.encode() not in state
    assert gateways(os.getpid()) == []
    assert_nothing_left(repo)


async def test_a_killed_gateway_fails_its_sessions_and_keeps_their_work(repo: Path) -> None:
    def kill_on_ready(recorded: object) -> None:
        event = getattr(recorded, "event", None)
        if isinstance(event, Output) and "ready" in event.text:
            for pid in gateways(os.getpid()):
                os.kill(pid, signal.SIGKILL)

    script = "echo half > half.txt; echo ready; exec sleep 100"
    report = await ran(repo, step("work", script, network=Network.GATEWAY), listen=kill_on_ready)

    (result,) = report.steps[0].worker_results
    assert result.status is Status.FAILED
    assert "the gateway to its model ended" in str(result.error)
    assert shown(repo, result, "half.txt") == "half"
    assert gateways(os.getpid()) == []
    assert_nothing_left(repo)


async def test_a_retry_after_a_killed_gateway_gets_a_new_one(repo: Path) -> None:
    killed: list[int] = []

    def kill_once(recorded: object) -> None:
        event = getattr(recorded, "event", None)
        if isinstance(event, Output) and "ready" in event.text and not killed:
            killed.extend(gateways(os.getpid()))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    script = f'echo ready; [ -z "$(ls {repo}/never 2>/dev/null)" ]; python3 -c "import time; time.sleep(3)"; echo x > done.txt'
    task = step("work", script, network=Network.GATEWAY, retry=Retry.of(2))
    report = await ran(repo, task, listen=kill_once)

    (result,) = report.steps[0].worker_results
    assert killed
    assert (result.status, result.attempts) == (Status.SUCCEEDED, 2)


def test_a_killed_run_takes_its_gateway_with_it(repo: Path) -> None:
    agent = {"adapter": "command", "network": "gateway", "command": ["sh", "-c", "touch started; sleep 100"]}
    document = {"agents": {"a": agent}, "steps": [{"name": "w", "agent": "a", "prompt": "x"}]}
    (repo / "shoal.yaml").write_text(json.dumps(document))
    with subprocess.Popen(
        [SHOAL, "run", "--isolation", "worktree"], cwd=repo, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        while not (found := gateways(running.pid)) or not list((repo / ".shoal").rglob("started")):
            time.sleep(0.02)  # the test's own time ends a wait for nothing
        running.kill()
    while any(Path(f"/proc/{pid}").exists() for pid in found):
        time.sleep(0.02)


async def test_twenty_agents_share_one_gateway(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer() as model:
        set_key(monkeypatch, model)
        script = f"python3 - <<'END'\n{ASK}\nEND"
        report = await ran(repo, step("work", script, 20, network=Network.GATEWAY))

    assert {result.output for result in report.steps[0].worker_results} == {"Deep.\n"}
    assert len(model.requests) == 20


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"])
async def test_no_output_of_an_agent_says_where_a_key_is_sent(repo: Path, name: str) -> None:
    worker = step("work", "true", network=Network.GATEWAY)
    aimed = replace(worker, task=replace(worker.task, env={name: "{{ steps.plan.output }}"}))

    with pytest.raises(BadInput, match="cannot contain a template"):
        await ran(repo, aimed)
