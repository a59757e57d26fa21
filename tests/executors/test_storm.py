"""A run on three hosts through a storm: one host loses its processes, one its cable, and the coordinator is killed."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import git
from tests.executors.hosts import Hosts, TestHost, open_hosts
from tests.outside import wait_until

pytestmark = [pytest.mark.deep, pytest.mark.alone, pytest.mark.timeout(900)]

SESSIONS = int(os.environ.get("SHOAL_STORM_SESSIONS", "24"))
CUT_SECONDS = 20.0
SHOAL = Path(sys.executable).with_name("shoal")
RUN_SECONDS = 600.0
FILE = f"""\
runtime: {{max_concurrent_workers: {SESSIONS}}}
agents: {{e: {{adapter: command, command: ["sh", "-c", "sleep 4; echo $SHOAL_WORKER_INDEX > n-$SHOAL_WORKER_INDEX.txt"]}}}}
steps: [{{name: s, agent: e, prompt: x, concurrency: {SESSIONS}}}]
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with open_hosts(tmp_path) as found:
        yield found


def start(repo: Path, hosts: Hosts, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (SHOAL, *words), cwd=repo, env=hosts.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> Any:  # noqa: ANN401 - a document
    out, err = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out)


def count_ended(repo: Path) -> int:
    """Count the branches with work."""
    return len(git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent").splitlines())


def test_every_session_is_there_once_whatever_is_killed_or_cut(repo: Path, hosts: Hosts) -> None:
    first, second, _ = hosts.hosts
    repo.joinpath("p.yaml").write_text(FILE)
    began = time.monotonic()
    run = start(repo, hosts, "run", "p.yaml", "--on", ",".join(f"{host.name}:4" for host in hosts.hosts), "--json")
    try:
        wait_until(lambda: count_ended(repo) >= 2, 120)
        first.kill_all()
        second.cut()
        cut_at = time.monotonic()
        wait_until(lambda: time.monotonic() > cut_at + CUT_SECONDS)
        assert run.poll() is None, "it waits for what the node behind the cut has done"
    finally:
        second.mend()
        run.kill()
    run.communicate()
    report = finish(start(repo, hosts, "resume", "--json"))
    seconds = time.monotonic() - began

    (step,) = report["steps"]
    assert step["success_count"] == SESSIONS
    results = {result["index"]: result for result in step["worker_results"]}
    assert sorted(results) == list(range(SESSIONS))
    for index, result in results.items():
        assert git(repo, "show", f"{result['branch']}:n-{index}.txt") == str(index)
    assert find_work(repo) == Counter(range(SESSIONS))
    finish(start(repo, hosts, "merge", "--json"))
    merged = git(repo, "log", "--no-merges", "--format=", "--name-only", f"main..shoal/{report['run']}").split()
    assert Counter(merged) == Counter(f"n-{index}.txt" for index in range(SESSIONS))
    assert_nothing_runs(hosts)
    assert_sound(repo, hosts)
    print(f"\n{SESSIONS} sessions in {seconds:.1f} s")


def find_work(repo: Path) -> Counter[int]:
    """Count the commits that have the work of each worker; a session that continues another's has its commit, too."""
    tips = set(git(repo, "for-each-ref", "--format=%(objectname)", "refs/heads/agent").split())
    return Counter(
        int(name.removeprefix("n-").removesuffix(".txt"))
        for tip in tips
        for name in git(repo, "diff", "--name-only", f"main...{tip}").splitlines()
    )


def assert_nothing_runs(hosts: Hosts) -> None:
    wait_until(lambda: not any(host.pids() for host in hosts.hosts), 60)


def assert_sound(repo: Path, hosts: Hosts) -> None:
    mirrors = [mirror for host in hosts.hosts for mirror in find_mirrors(host)]
    assert len(mirrors) == len(hosts.hosts)
    for folder in (repo, *mirrors):
        git(folder, "fsck", "--full", "--strict")


def find_mirrors(host: TestHost) -> list[Path]:
    """Find the repositories on a host, but for those of sessions."""
    return [
        head.parent
        for head in host.home.rglob("HEAD")
        if (head.parent / "objects").is_dir() and head.parent.parent.name != "boxes"
    ]
