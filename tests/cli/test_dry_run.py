"""`shoal run --dry-run`: the plan in words and as JSON; nothing starts, and nothing is written."""

import json
from pathlib import Path

from tests.cli.conftest import Shoal

PIPELINE = """\
runtime: {max_concurrent_workers: 4, network: none}
agents:
  x: {adapter: command, command: ["sh", "-c", "touch started"], limits: {memory_mb: 100, time_seconds: 60}}
pipelines:
  - name: main
    steps:
      - name: plan
        agent: x
        prompt: Plan it
        timeout: 90
        output_artifacts: [{name: plan, path: plan.json}]
      - name: build
        needs: plan
        agent: x
        prompt: Build it
        concurrency: 9
        on_failure: best_effort
        retry: {max_attempts: 3}
        contract: {type: test_suite, command: make test}
      - {name: aside, agent: x, prompt: Look, base: HEAD, network: host, optional: true}
      - {name: grid, agent: x, prompt: "Do {{ matrix.os }}", strategy: {matrix: {os: [mac, win]}, max-parallel: 1}}
      - {name: ask, needs: [build], gate: {message: "Ship it?", timeout: 1h}}
      - {name: ship, needs: ask, pipeline: inner, if: "steps.build.success_count > 1"}
      - {name: tell, needs: [ship], command: "echo done", loop: {until: "true", max: 3}}
  - name: inner
    steps:
      - {name: a, agent: x, prompt: go}
      - {name: b, needs: a, agent: x, prompt: go}
"""


def everything(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def test_it_tells_the_plan_and_changes_nothing(shoal: Shoal, repo: Path) -> None:
    (repo / "shoal.yaml").write_text(PIPELINE)
    before = everything(repo)

    said = shoal("run", "main", "--dry-run")

    assert (said.code, said.err) == (0, "")
    assert everything(repo) == before
    first, *lines = said.out.splitlines()
    assert first == "main: 9 steps, 11 agents in all, at most 4 at once"
    assert [line for line in lines if line.startswith("wave")] == [f"wave {number}" for number in range(1, 8)]
    for wanted in (
        "needs plan; starts from the work of plan",
        "starts from HEAD",
        "up to 3 attempts each",
        "on failure: best_effort",
        "contract test_suite: the command `make test` exits with 0",
        "asks: Ship it? (after 1 h 00 min: reject)",
        "only if steps.build.success_count > 1",
        "up to 3 rounds, until true",
        "matrix: ",
        "artifacts: plan (plan.json)",
        "optional: its failure does not stop the run",
        "clamped to 4",
        "100 MB memory",
        "network host",
        "timeout: 1 min 30 s",
        "merge: none",
        "dry run: nothing was started or written",
    ):
        assert wanted in said.out, wanted


def test_the_same_as_one_document(shoal: Shoal, repo: Path) -> None:
    (repo / "shoal.yaml").write_text(PIPELINE)

    said = shoal("run", "main", "--dry-run", "--json")
    document = json.loads(said.out)
    steps = {step["step"]: step for step in document["steps"]}

    assert said.err == ""
    assert list(steps) == ["plan", "aside", "grid", "build", "ask", "ship", "ship_a", "ship_b", "tell"]
    assert [step["wave"] for step in steps.values()] == [1, 1, 1, 2, 3, 4, 5, 6, 7]
    assert [steps[name]["kind"] for name in ("plan", "ask", "ship", "tell")] == [
        "agents",
        "gate",
        "pipeline",
        "command",
    ]
    assert (steps["build"]["workers"], steps["build"]["starts_from"]) == (4, ["plan"])
    assert (steps["plan"]["starts_from"], steps["aside"]["starts_from"]) == ("run", "HEAD")
    assert steps["build"]["limits"]["memory_mb"] == 100
    assert (steps["plan"]["network"], steps["aside"]["network"]) == ("none", "host")
    assert (document["total_workers"], document["agents_at_once"], document["merge"]) == (11, 4, None)
    assert any("clamped" in note for note in document["notes"])


def test_the_bound_counts_steps_of_different_waves(shoal: Shoal, repo: Path) -> None:
    (repo / "shoal.yaml").write_text(PIPELINE.replace("max_concurrent_workers: 4", "max_concurrent_workers: 50"))

    document = json.loads(shoal("run", "main", "--dry-run", "--json").out)

    assert document["agents_at_once"] == 9 + 1 + 1  # build, beside it aside, and one of the matrix


def test_a_bound_on_agents_at_once_does_not_change_how_many_workers_there_are(shoal: Shoal, repo: Path) -> None:
    (repo / "shoal.yaml").write_text(PIPELINE)

    fewer, more = (json.loads(shoal("run", "main", "-j", n, "--dry-run", "--json").out) for n in ("2", "20"))

    assert [(one["total_workers"], one["agents_at_once"]) for one in (fewer, more)] == [(11, 2), (11, 6)]


def test_it_tells_what_each_stage_really_starts_from(shoal: Shoal, repo: Path) -> None:
    """A concurrent need gives no tree, a gate has none of its own, and inside of a pipeline its start counts."""
    (repo / "shoal.yaml").write_text(PIPELINE)

    said = shoal("run", "main", "--dry-run")
    steps = {step["step"]: step for step in json.loads(shoal("run", "main", "--dry-run", "--json").out)["steps"]}

    assert [steps[name]["starts_from"] for name in ("ask", "ship", "ship_a", "ship_b")] == [
        ["plan"],
        ["plan"],
        ["plan"],
        ["ship_a"],
    ]
    assert (steps["ask"]["aggregates"], steps["build"]["aggregates"]) == (["build"], [])
    assert "needs build; starts from the work of plan\n" in said.out
    assert "gets only the aggregate and artifacts of build: several workers and no `select`\n" in said.out


def test_it_tells_what_would_be_merged(shoal: Shoal, repo: Path) -> None:
    (repo / "auto.yaml").write_text("runtime: {auto_merge: true}\nsteps: [{name: a, command: 'true'}]\n")
    (repo / "more.yaml").write_text(
        "runtime: {merge: {strategy: squash, into: main, verify: make test, on_conflict: theirs}}\n"
        "steps: [{name: a, command: 'true'}]\n"
    )

    auto, more = (shoal("run", f"{name}.yaml", "--dry-run").out.splitlines() for name in ("auto", "more"))
    document = json.loads(shoal("run", "more.yaml", "--dry-run", "--json").out)

    assert "merge: successful work onto shoal/<run> (auto), conflicts: report" in auto
    whole = (
        "merge: successful work onto shoal/<run> (squash), verified by `make test`, then into main, conflicts: theirs"
    )
    assert whole in more
    assert document["merge"] == {"strategy": "squash", "into": "main", "verify": "make test", "on_conflict": "theirs"}


def test_tasks_can_be_planned_too(shoal: Shoal, repo: Path) -> None:
    said = shoal("run", "--task", "one", "--task", "two", "--command", "touch started", "--dry-run")

    assert said.code == 0
    assert "2 steps, 2 agents in all, at most 2 at once" in said.out
    assert not (repo / ".shoal").exists()


def test_a_mistake_is_told_as_ever(shoal: Shoal, repo: Path) -> None:
    (repo / "shoal.yaml").write_text("steps: [{name: a}]\n")

    said = shoal("run", "--dry-run")

    assert said.code == 2
    assert "shoal.yaml:1:9: " in said.err
