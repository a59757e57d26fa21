"""A run on nodes whose coordinator is killed: its nodes stop, and `shoal resume` continues it on the same nodes."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.cli.conftest import SHOAL
from tests.conftest import git
from tests.nodes.test_lost_nodes import node_processes

SECONDS = 120
PIPELINE = """
agents: {e: {adapter: command, command: [sh, -c, "GATE; echo $SHOAL_WORKER_INDEX > n-$SHOAL_WORKER_INDEX.txt"]}}
steps: [{name: s, agent: e, prompt: x, concurrency: 4}]
"""


def wait_until(condition: object, what: str) -> None:
    end = time.monotonic() + SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.05)


def test_a_killed_coordinator_is_resumed_on_its_nodes(repo: Path, tmp_path: Path) -> None:
    """Two of four workers have reported before the kill; the other two are done again, and nothing is there twice."""
    slow = "if [ $SHOAL_WORKER_INDEX -gt 1 ] && [ $IS_SLOW ]; then sleep 600; fi"
    file = tmp_path / "p.yaml"
    file.write_text(
        PIPELINE.replace("GATE", slow).replace("command: [sh", "env: {IS_SLOW: {from: SLOW}}, command: [sh")
    )
    environ = {**os.environ, "SLOW": "yes"}
    process = subprocess.Popen(
        [SHOAL, "run", str(file), "--on", "pipe:2,pipe:2"],
        cwd=repo, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    branches = "refs/heads/agent"
    try:
        wait_until(lambda: len(git(repo, "for-each-ref", branches).splitlines()) == 2, "two workers reported")
        nodes = node_processes(process.pid)
        assert len(nodes) == 2
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=SECONDS)
    reported = git(repo, "for-each-ref", branches).splitlines()
    wait_until(lambda: not any(Path(f"/proc/{node}").exists() for node in nodes), "the nodes ended")

    environ["SLOW"] = ""
    resumed = subprocess.run(
        [SHOAL, "resume", "--json"], cwd=repo, env=environ, capture_output=True, text=True, timeout=SECONDS
    )

    assert resumed.returncode == 0, resumed.stderr
    (done,) = json.loads(resumed.stdout)["steps"]
    assert done["success_count"] == 4
    now = git(repo, "for-each-ref", branches).splitlines()
    assert set(reported) <= set(now)
    assert len(now) == 4
    for worker in done["worker_results"]:
        assert git(repo, "show", f"{worker['branch']}:n-{worker['index']}.txt") == str(worker["index"])
    git(repo, "fsck", "--full", "--strict")
