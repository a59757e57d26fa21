"""Floods of output: the coordinator stays small, and agents beside them are hardly slowed down."""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, environment

# A few seconds of real work: a loop, then git.
WORK = "python3 -c 'x = 0\nfor i in range({loops}): x += i'; for n in 1 2 3; do git log -p > log.txt; done"
FLOODS = {
    "yes": "exec yes",
    "errors": "exec yes >&2",
    "both": "yes >&2 & exec yes",
    "zeros": "exec cat /dev/zero",
    "noise": "exec cat /dev/urandom",
    "shell": "while :; do echo y; done",
    "python": "exec python3 -uc 'while True: print(1)'",
    "objects": 'while :; do echo "{}"; done',
}
MOST_MB = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run: the most memory that the coordinator had, the worst of the agents' ends, how long the good one took."""

    peak_mb: float
    statuses: dict[str, str]
    seconds: float


def ran(repo: Path, name: str) -> Outcome:
    """Run a pipeline by the real command, and look at its memory all the while."""
    report = repo.parent / "report.json"
    with report.open("wb") as out, (repo.parent / "errors").open("wb") as err:
        running = subprocess.Popen([SHOAL, "run", name, "--json"], cwd=repo, env=environment(), stdout=out, stderr=err)
        peak = 0.0
        while running.poll() is None:
            peak = max(peak, resident_mb(running.pid))
            time.sleep(0.05)
    said = json.loads(report.read_text() or "{}")
    assert said, (repo.parent / "errors").read_text()
    results = {step["step"]: step["worker_results"][0] for step in said["steps"]}
    statuses = {step: result["status"] for step, result in results.items()}
    return Outcome(peak, statuses, results["normal"]["duration_seconds"])


def resident_mb(pid: int) -> float:
    words = Path(f"/proc/{pid}/status").read_text().split()
    return int(words[words.index("VmRSS:") + 1]) / 1024 if "VmRSS:" in words else 0.0


def flooded(repo: Path, *scripts: str, seconds: int, loops: int) -> None:
    """Write pipelines: the good agent alone, and beside eight floods that last so many seconds."""
    agents = {"normal": WORK.format(loops=loops)}
    agents |= {f"flood-{n}": f"(sleep {seconds}; kill -9 -1) & {script}" for n, script in enumerate(scripts)}
    kinds = {name: {"adapter": "command", "command": ["sh", "-c", script]} for name, script in agents.items()}
    steps = [{"name": name, "agent": name, "prompt": "go", "on_failure": "best_effort"} for name in agents]
    pipelines = [{"name": "alone", "steps": steps[:1]}, {"name": "beside", "steps": steps}]
    document = {"runtime": {"max_concurrent_workers": 9}, "agents": kinds, "pipelines": pipelines}
    (repo / "shoal.yaml").write_text(json.dumps(document))


def assert_hardly_felt(repo: Path, rounds: int) -> None:
    """Twice the time at most; whatever else this machine does can only make it worse, so the best round counts."""
    ratios = []
    for _ in range(rounds):
        ratios.append(slowed(repo))
        if ratios[-1] <= 2:
            return
    pytest.fail(f"beside the floods it took {ratios} times as long")


def slowed(repo: Path) -> float:
    """See that the good agent succeeds and the coordinator stays small; say how many times as long the agent took."""
    alone, beside = ran(repo, "alone"), ran(repo, "beside")
    assert beside.statuses["normal"] == alone.statuses["normal"] == "succeeded"
    assert beside.peak_mb - alone.peak_mb < MOST_MB
    return beside.seconds / alone.seconds


@pytest.mark.deep
def test_floods_leave_the_coordinator_small_and_who_works_beside_them_succeeds(repo: Path) -> None:
    """How little they are felt is measured alone, below; beside other tests only a standstill can be told."""
    flooded(repo, *FLOODS.values(), seconds=2, loops=5_000_000)

    assert slowed(repo) < 20


@pytest.mark.deep
@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["all", "yes", "zeros", "python"])
def test_eight_floods_of_twenty_seconds_are_hardly_felt(repo: Path, kind: str) -> None:
    scripts = FLOODS.values() if kind == "all" else [FLOODS[kind]] * 8
    flooded(repo, *scripts, seconds=20, loops=60_000_000)

    assert_hardly_felt(repo, rounds=2)


@pytest.mark.deep
@pytest.mark.alone
def test_four_agents_that_print_twelve_megabytes_take_hardly_longer_than_one(repo: Path) -> None:
    say = {"adapter": "command", "command": ["sh", "-c", "yes 0123456789 | head -c 12000000"]}
    steps = [{"name": f"by-{count}", "agent": "say", "prompt": "go", "concurrency": count} for count in (1, 4)]
    pipelines = [{"name": step["name"], "steps": [step]} for step in steps]
    (repo / "shoal.yaml").write_text(json.dumps({"agents": {"say": say}, "pipelines": pipelines}))

    ratios = []
    for _ in range(3):  # whatever else this machine does can only make it worse, so the best round counts
        alone, together = (slowest(repo, f"by-{count}") for count in (1, 4))
        ratios.append(together / alone)
        if ratios[-1] <= 1.5:
            return
    pytest.fail(f"four took {ratios} times as long as one")


def slowest(repo: Path, name: str) -> float:
    """Say how long the slowest agent of a pipeline took, all of which must succeed."""
    done = subprocess.run([SHOAL, "run", name, "--json"], cwd=repo, env=environment(), capture_output=True, check=True)
    results = json.loads(done.stdout)["steps"][0]["worker_results"]
    assert {result["status"] for result in results} == {"no_changes"}
    return max(float(result["duration_seconds"]) for result in results)
