"""A day's control of a run: from one terminal to another, with a message that a real client acts on."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.conftest import SHOAL
from tests.cli.pty_terminal import PtyTerminal, open_pty
from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE, Scene, workers
from tests.conftest import git

WAIT = "while%20%5B%20!%20-e%20go%20%5D%3B%20do%20sleep%200.1%3B%20done"
SAID = "Also, [[s:write file=tea.txt content=tea%0A]] please."


def prepare(here: Scene) -> None:
    """Write a run of Claude Code and four commands, which all wait."""
    wait = f"echo part > part.txt; while [ ! -e {here.repo}/go ]; do sleep 0.05; done; echo done > done.txt"
    steps = [{"name": f"s{number}", "agent": "waiter", "prompt": "x"} for number in range(4)]
    document = {
        "runtime": {"sandbox": "none", "isolation_strategy": "worktree", "network": "host"},
        "agents": {
            "real": {**here.real.agent(here.model.url), "network": "host"},
            "waiter": {"adapter": "command", "command": ["sh", "-c", wait]},
        },
        "steps": [{"name": "w", "agent": "real", "prompt": f"[[s:shell cmd={WAIT}]]"}, *steps],
    }
    (here.repo / "shoal.yaml").write_text(json.dumps(document))


def shoal(here: Scene, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(SHOAL), *words], cwd=here.repo, env=here.environ(), capture_output=True, text=True, timeout=90
    )


@contextmanager
def terminal(here: Scene, *words: str) -> Iterator[PtyTerminal]:
    with open_pty(str(SHOAL), *words, cwd=here.repo, env=here.environ(), columns=120, rows=40) as opened:
        yield opened


def only_workspace(here: Scene, step: str) -> Path:
    (workspace,) = (here.repo / ".shoal/workspaces").glob(f"*/{step}/worker_0")
    return workspace


def test_a_run_is_detached_attached_spoken_to_stopped_in_part_and_waited_for(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    prepare(here)
    with terminal(here, "run", "shoal.yaml", "--detach") as first:
        first.until(lambda: "started in the background" in first.text)
    here.model.wait(1, timeout=60)
    with terminal(here, "attach") as second:
        second.until(lambda: all(f" s{number}" in f" {second.text}" for number in range(4)))
        sent = shoal(here, "send", "w", SAID)
        stopped = shoal(here, "stop", "s2")
        second.until(lambda: "stopping s2-" in second.text)
        second.process.send_signal(signal.SIGINT)
        second.until(lambda: "detached; " in second.text)
        left = second.process.wait(timeout=60)
    (only_workspace(here, "w") / "go").touch()
    (here.repo / "go").touch()
    waited = shoal(here, "wait", "--json")
    report: dict[str, Any] = json.loads(waited.stdout)
    found = workers(report)
    talks = [request.conversation.messages for request in here.model.requests]

    assert (sent.returncode, stopped.returncode, left, waited.returncode) == (0, 0, 130, 1), waited.stderr
    statuses = {step: worker["status"] for step, worker in found.items()}
    assert statuses == {**dict.fromkeys(("w", "s0", "s1", "s3"), "succeeded"), "s2": "cancelled"}, report
    assert git(here.repo, "show", f"{found['w']['branch']}:tea.txt") == "tea"
    assert any("file=tea.txt" in message.text for message in talks[-1]), "the model saw the message"
    assert git(here.repo, "show", f"{found['s2']['branch']}:part.txt") == "part"
    assert git(here.repo, "show", f"{found['s3']['branch']}:done.txt") == "done"
    assert here.left() == []
