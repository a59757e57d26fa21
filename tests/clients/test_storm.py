"""Twenty real clients at a model that refuses every second of their requests: all finish, and few ask again."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from shoal.testing.model import Fail, ModelServer, Request, Say, Turn, Use
from tests.cli import warm
from tests.clients.real import CLAUDE, CODEX, EVERY, GOOSE, Scene, client_path

EACH = ((CLAUDE, 7), (CODEX, 7), (GOOSE, 6))
TURNS = 6
WINDOW, MOST = 1.0, 4
"""Of each provider's account: so many answers in so many seconds, which is about half of what the clients ask."""


class Storm:
    """Refuses what is over the limit of an account, and counts."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._began: dict[str, float] = {}
        self._left: Counter[str] = Counter()

    def __call__(self, request: Request) -> Turn:
        now, account = time.monotonic(), request.protocol
        if now - self._began.get(account, 0) >= WINDOW:
            self._began[account], self._left[account] = now, MOST
        self._left[account] -= 1
        if self._left[account] >= 0:
            self.answered[account] += 1
            is_last = request.position >= TURNS - 1
            return Say("Done.") if is_last else Use("shell", {"command": f"echo {request.position} >> work.txt"})
        self.refused[account] += 1
        return Fail(429, "slow down", retry_after=round(WINDOW - (now - self._began[account]), 3))


@pytest.mark.deep
def test_twenty_real_clients_in_a_storm_all_finish(repo: Path) -> None:
    storm = Storm()
    with ModelServer(storm) as model:
        here = Scene(CLAUDE, repo, model)
        environ = {name: text for real in EVERY for name, text in real.environ(model.url).items()}
        document = {
            "runtime": {"max_concurrent_workers": 20},
            "agents": {real.name: real.agent(model.url) for real in EVERY},
            "steps": [
                {
                    "name": f"{real.name}-{n}",
                    "agent": real.name,
                    "prompt": f"Do the work {n}.",
                    "stall_timeout": 15,
                }
                for real, count in EACH
                for n in range(count)
            ],
        }
        (repo / "shoal.yaml").write_text(json.dumps(document))
        env = {**here.environ(), **environ, "PATH": client_path(*(real.name for real in EVERY))}
        said = warm.ran(("run", "shoal.yaml", "--json"), cwd=repo, env=env, timeout=280)

    report = json.loads(said.out)
    results = [result for step in report["steps"] for result in step["worker_results"]]
    needed, sent = sum(storm.answered.values()), sum(storm.answered.values()) + sum(storm.refused.values())
    print(
        f"needed {storm.answered}, refused {storm.refused}, {sent / needed:.2f}x; ",
        sorted(result["duration_seconds"] for result in results),
    )
    assert {result["status"] for result in results} == {"succeeded"}, [result["error"] for result in results]
    assert {result["attempts"] for result in results} == {1}
    assert sent <= 1.3 * needed, (storm.answered, storm.refused)
