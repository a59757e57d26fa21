"""Steps with needs: order, base, rules and retries, as in a file."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shoal
from tests.conftest import git

Results = dict[str, dict[str, object]]


def sh(script: str) -> dict[str, object]:
    return {"adapter": "command", "command": ["sh", "-c", script]}


def written(repo: Path, agents: dict[str, str], *steps: dict[str, object]) -> str:
    listed = [{"prompt": "go", "agent": step.get("name"), **step} for step in steps]
    document = {"agents": {name: sh(script) for name, script in agents.items()}, "steps": listed}
    (repo / "p.yaml").write_text(json.dumps(document, indent=1))
    return "p.yaml"


def results(out: str) -> Results:
    return {step["step"]: {**step, **step["worker_results"][0]} for step in json.loads(out)["steps"]}


def test_a_step_starts_from_the_merged_work_of_its_needs(shoal: Shoal, repo: Path) -> None:
    agents = {"a": "echo a > a", "b": "echo b > b", "c": "cat a b > c; test ! -e d0/new", "d": "ls > d"}
    file = written(
        repo,
        agents,
        {"name": "d", "depends_on": "c", "base": "run"},
        {"name": "c", "needs": ["a", "b"]},
        {"name": "a"},
        {"name": "b", "dependencies": []},
    )

    said = shoal("run", file, "--json")

    assert said.code == 0, said
    found = results(said.out)
    assert git(repo, "show", f"{found['c']['branch']}:c") == "a\nb"
    assert "c" not in git(repo, "show", f"{found['d']['branch']}:d").split()


def test_what_needs_a_failed_step_is_skipped_and_an_optional_one_stops_nobody(shoal: Shoal, repo: Path) -> None:
    agents = {"bad": "exit 1", "after": "echo x > x", "maybe": "exit 1", "on": "echo y > y"}
    file = written(
        repo,
        agents,
        {"name": "bad"},
        {"name": "after", "needs": ["bad"]},
        {"name": "maybe", "optional": True},
        {"name": "on", "needs": ["maybe"]},
    )

    said = shoal("run", file, "--json")

    assert said.code == 1
    found = results(said.out)
    assert {name: one["status"] for name, one in found.items()} == {
        "bad": "failed",
        "after": "skipped",
        "maybe": "failed",
        "on": "succeeded",
    }
    assert found["after"]["error"] == "dependency 'bad' failed"
    only = written(repo, agents, {"name": "maybe", "optional": True}, {"name": "on"})
    assert shoal("run", only).code == 0


def test_any_and_quorum_are_enough_and_the_rest_is_stopped(shoal: Shoal, repo: Path) -> None:
    agents = {
        "one": '[ "$SHOAL_WORKER_INDEX" = 1 ] && echo w > w || { [ "$SHOAL_WORKER_INDEX" = 0 ] && exit 1; sleep 99; }'
    }
    any_ = written(repo, agents, {"name": "one", "concurrency": 3, "on_failure": "any"})
    first = json.loads(shoal("run", any_, "--json").out)["steps"][0]
    quorum = written(repo, agents, {"name": "one", "concurrency": 2, "on_failure": {"quorum": 2}})
    second = json.loads(shoal("run", quorum, "--json").out)["steps"][0]

    assert first["status"] == "succeeded"
    assert [one["status"] for one in first["worker_results"]] == ["failed", "succeeded", "cancelled"]
    assert (first["success_count"], first["fail_count"], first["cancelled_count"]) == (1, 1, 1)
    assert (second["status"], second["on_failure"]) == ("failed", {"quorum": 2})


def test_a_retry_is_told_what_went_wrong_and_each_attempt_is_kept(shoal: Shoal, repo: Path) -> None:
    agents = {"one": 'cp "$SHOAL_PROMPT_FILE" told; grep -q "attempt 2" told || { echo so it is; exit 3; }'}
    file = written(repo, agents, {"name": "one", "retry": {"policy": "aggressive", "max_attempts": 2}})

    said = shoal("run", file, "--json")

    assert said.code == 0, said
    found = results(said.out)["one"]
    told = git(repo, "show", f"{found['branch']}:told")
    assert found["attempts"] == 2
    assert "Attempt 1 ended as failed, on branch agent/one/" in told
    assert "it exited with 3" in told
    assert "> so it is" in told


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (
            "[{name: a, agent: x, prompt: p, needs: [b]}, {name: b, agent: x, prompt: p, needs: [a]}]",
            "depend on each other",
        ),
        (
            "[{name: a, agent: x, prompt: p, needs: [ab]}, {name: aa, agent: x, prompt: p}]",
            "p.yaml:2:48: no step named",
        ),
        (
            "[{name: build, command: p, needs: buid}, {name: z, command: p}]",
            "p.yaml:2:42: no step named 'buid' to need; known: z\n",
        ),
        ("[{name: a, command: p, needs: b}]", "p.yaml:2:38: no step named 'b' to need; known: none\n"),
        ("[{name: a, agent: x, prompt: p, needs: [a]}]", "a → a"),
        ("[{name: a, agent: x, prompt: p, needs: [], depends_on: []}]", "both `needs` and `depends_on`"),
        ("[{name: a, agent: x, prompt: p, base: needs}]", "p.yaml:2:46: `base: needs` on a step that needs nothing"),
        (
            "[{name: a, agent: x, prompt: p, concurrency: 2}, {name: b, agent: x, prompt: p, needs: a, base: needs}]",
            "several",
        ),
        (
            "[{name: a, command: p, concurrency: 3}, {name: g, gate: ok?, needs: a}, {name: h, gate: ok?, needs: g},"
            " {name: b, agent: x, prompt: p, needs: h, base: needs}]",
            "p.yaml:2:159: `base: needs`: `a`, behind `h`, has several workers, and none of them is the one to build on",
        ),
        ("[{name: a, agent: x, prompt: p, retry: {max_attemps: 2}}]", "p.yaml:2:48: "),
        ("[{name: a, agent: x, prompt: p, retry: {max_attempts: 0}}]", "from 1 to 100"),
        ("[{name: a, agent: x, prompt: p, retry: -1}]", "must be at least 0"),
        ("[{name: a, agent: x, prompt: p, retry: {policy: wild}}]", "standard"),
        ("[{name: a, agent: x, prompt: p, on_failure: {quorum: 0}}]", "at least 1"),
        ("[{name: a, agent: x, prompt: p, on_failure: anny}]", "any"),
        (
            "[{name: a, agent: x, prompt: p, on_failure: {quorum: 3}, concurrency: 2}]",
            "p.yaml:2:52: a quorum of 3 needs more than 2 workers; ask for fewer, or for more workers",
        ),
        (
            "[{name: a, agent: x, prompt: p, on_failure: {quorum: 12}, concurrency: 12}]",
            "a quorum of 12 needs more than 10 workers",
        ),
        (
            "[{name: a, agent: x, prompt: p, on_failure: {quorum: 3}, strategy: {matrix: {n: [1, 2]}}}]",
            "a quorum of 3 needs more than 2 workers",
        ),
        (
            "[{name: a, command: p, output_artifacts: [t]}, {name: b, command: p, needs: a, on_failure: {quorum: 1},"
            " strategy: {items_source: a/t, dependency_key: after}}]",
            "p.yaml:2:87: items that wait for others (`dependency_key`) are all wanted",
        ),
        ("[{name: a, agent: x, prompt: p, optional: perhaps}]", "p.yaml:2:"),
    ],
)
def test_what_cannot_be_meant_is_told_with_its_place(shoal: Shoal, repo: Path, steps: str, told: str) -> None:
    (repo / "p.yaml").write_text(f"agents: {{x: {{adapter: command, command: 'true'}}}}\nsteps: {steps}\n")

    said = shoal("run", "p.yaml")

    assert said.code == 2
    assert told in said.err, said.err
    assert not (repo / ".shoal").exists()


INSIDE = """\
runtime: {max_concurrent_workers: %d}
pipelines:
  - name: main
    steps:
      - {name: all, command: p, concurrency: 3}
      - {name: sub, pipeline: round, needs: all}
      - {name: good, pipeline: single, needs: all}
      - {name: ask, gate: ok?, needs: [sub, good]}
      - {name: b, command: p, needs: ask, base: needs}
      - {name: c, command: p, needs: all, base: needs}
  - name: round
    steps:
      - {name: some, command: p, concurrency: 2}
      - {name: many, command: p, concurrency: 2, needs: some}
      - {name: one, command: p, needs: some}
      - {name: start, gate: ok?}
  - name: single
    steps:
      - {name: some, command: p, concurrency: 2}
      - {name: one, command: p, needs: some}
"""


def test_the_tree_that_a_base_asks_for_is_looked_for_inside_of_pipelines(shoal: Shoal, repo: Path) -> None:
    (repo / "p.yaml").write_text(INSIDE % 4)

    said = shoal("validate", "p.yaml")

    who = "has several workers, and none of them is the one to build on; give it a `select`, or use `auto` or `run`"
    assert said.err.splitlines() == [
        f"p.yaml:9:49: `base: needs`: `all`, behind `ask`, {who}",
        f"p.yaml:9:49: `base: needs`: `many`, behind `ask`, {who}",
        f"p.yaml:10:49: `base: needs`: `all` {who}",
    ]


def test_workers_clamped_to_one_give_their_tree(shoal: Shoal, repo: Path) -> None:
    (repo / "p.yaml").write_text(INSIDE % 1)

    said = shoal("validate", "p.yaml")

    assert said.code == 0, said


def test_every_circle_is_told_at_the_need_that_closes_it(shoal: Shoal, repo: Path) -> None:
    steps = "[{name: a, needs: a}, {name: b, needs: [d, c]}, {name: c, needs: b}, {name: d}]"
    (repo / "p.yaml").write_text(f"steps: {steps.replace('{', '{command: x, ')}\n")

    said = shoal("validate", "p.yaml")

    assert said.err.splitlines() == [
        "p.yaml:1:38: these steps depend on each other: a → a; remove a dependency",
        "p.yaml:1:75: these steps depend on each other: b → c → b; remove a dependency",
    ]


def test_a_base_that_git_does_not_know_is_told_before_anything_is_written(shoal: Shoal, repo: Path) -> None:
    file = written(repo, {"a": "true"}, {"name": "a", "base": "nowhere"})

    said = shoal("run", file)

    assert (said.code, said.err) == (
        2,
        f"shoal: step a: base 'nowhere' is not a commit of {repo}; `git log --oneline` lists some\n",
    )
    assert not (repo / ".shoal").exists()


def test_a_branch_that_stands_in_the_way_of_a_step_is_told_before_anything_is_written(shoal: Shoal, repo: Path) -> None:
    file = written(repo, {"a": "true"}, {"name": "a"})
    git(repo, "branch", "agent/a")

    said = shoal("run", file)

    assert said.code == 2
    assert "its branch 'agent/a' stands where the branches of step 'a' go" in said.err
    assert not (repo / ".shoal").exists()
