"""Every example runs from the command line in a fresh repository, and shows what it says."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from ruamel.yaml import YAML

from tests.cli.conftest import SHOAL, environment, shoal_in
from tests.conftest import git

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))
PROGRAMS = sorted(path.name for path in (EXAMPLES / "python").glob("*.py"))
Step = dict[str, Any]


@dataclass(frozen=True)
class Ran:
    """An example that was run in *repo*: its exit code, its report, what else was said, and its steps by name."""

    repo: Path
    code: int
    report: dict[str, Any]
    said: str

    @property
    def steps(self) -> dict[str, Step]:
        return {step["step"]: step for step in self.report["steps"]}

    @property
    def statuses(self) -> dict[str, str]:
        return {name: step["status"] for name, step in self.steps.items()}

    def output(self, step: str) -> str:
        """What the only worker of *step* said."""
        (worker,) = self.steps[step]["worker_results"]
        return str(worker["output"]).strip()

    def file(self, step: str, path: str, worker: int = 0) -> str:
        """What a file holds on the branch of *step*."""
        branch = self.steps[step]["worker_results"][worker]["branch"]
        return git(self.repo, "show", f"{branch}:{path}")

    def files(self, step: str, worker: int = 0) -> set[str]:
        """Which files differ from the base on the branch of *step*."""
        branch = self.steps[step]["worker_results"][worker]["branch"]
        return set(git(self.repo, "diff", "--name-only", "main", branch).splitlines())


def run(repo: Path, name: str, *words: str, pipeline: str | None = None) -> Ran:
    """Run an example as its first lines say."""
    shutil.copy(EXAMPLES / name, repo / name)
    said = shoal_in(repo)("run", name, *([pipeline] if pipeline else ()), *words, "--json")
    return Ran(repo, said.code, json.loads(said.out), said.err)


def test_every_example_is_right_and_nothing_is_said_against_it(repo: Path) -> None:
    said = shoal_in(repo)("validate", *(str(EXAMPLES / name) for name in FILES))

    assert (said.code, said.err) == (0, "")
    assert re.findall(r"^(\S+): right", said.out, re.MULTILINE) == [str(EXAMPLES / name) for name in FILES]


def test_every_example_fits_the_schema_of_editors(repo: Path) -> None:
    validator = jsonschema_rs.Draft202012Validator(json.loads(shoal_in(repo)("schema").out))

    for name in FILES:
        document = YAML(typ="safe", pure=True).load((EXAMPLES / name).read_text())
        assert [error.message for error in validator.iter_errors(document)] == [], name


def test_every_example_is_listed_and_tested() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    tests = Path(__file__).read_text()

    assert re.findall(r"\(((?:python/)?[\w-]+\.(?:yaml|py))\)", listed) != []
    for name in FILES:
        assert f"({name})" in listed, name
        assert f'run(repo, "{name}"' in tests or f'started(repo, "{name}"' in tests, name
    for name in PROGRAMS:
        assert f"(python/{name})" in listed, name


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_it_says(repo: Path, name: str) -> None:
    program = EXAMPLES / "python" / name
    expected = re.findall(r"^# prints (.*)$", program.read_text(), re.MULTILINE)

    done = subprocess.run(
        [sys.executable, program], cwd=repo, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )

    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done.stderr
    assert expected


def test_independent_tasks_end_each_on_its_own_branch(repo: Path) -> None:
    ran = run(repo, "independent-tasks.yaml")

    assert (ran.code, ran.report["status"]) == (0, "succeeded")
    assert [ran.files(step) for step in ("errors", "tests", "readme")] == [
        {"parser.py"},
        {"test_numbers.py"},
        {"README.md"},
    ]
    assert len({step["worker_results"][0]["branch"] for step in ran.steps.values()}) == 3


def test_parts_are_merged_for_the_step_that_needs_them(repo: Path) -> None:
    ran = run(repo, "parallel-decomposition.yaml")

    assert ran.code == 0
    assert ran.file("join", "summary.txt").splitlines() == [
        "# refactored helpers",
        "# refactored main",
        "# refactored parser",
    ]
    assert ran.files("parser") == {"src/parser.py"}


def test_a_pipeline_goes_in_order_and_hands_on_texts_and_files(repo: Path) -> None:
    ran = run(repo, "pipeline.yaml", "--input", "a greeting")

    assert ran.code == 0
    assert list(ran.statuses) == ["design", "implement", "test"]
    assert "The designer says: one function: greet" in ran.steps["implement"]["worker_results"][0]["prompt"]
    assert ran.steps["design"]["worker_results"][0]["prompt"] == "Design an API for a greeting"
    assert ran.files("test") == {"api.md", "api.py", "test_api.py"}


def test_what_was_fired_is_gathered_by_artifacts(repo: Path) -> None:
    ran = run(repo, "fire-and-gather.yaml")

    assert ran.code == 0
    assert set(ran.file("synthesis", "summary.md").splitlines()) == {
        "found by failures",
        "found by timeouts",
        "found by accessibility",
    }
    assert ran.files("synthesis") == {"summary.md"}
    assert "The first one says: found by failures" in ran.steps["synthesis"]["worker_results"][0]["prompt"]


def test_the_first_that_works_wins_the_race(repo: Path) -> None:
    ran = run(repo, "race.yaml")

    assert ran.code == 0
    assert [one["status"] for one in ran.steps["fix"]["worker_results"]] == ["failed", "cancelled", "succeeded"]
    assert ran.steps["fix"]["selected"] == 2
    assert ran.output("ship") == "fixed by patch"


def test_stages_run_each_when_its_own_needs_are_met(repo: Path) -> None:
    ran = run(repo, "staged-pipeline.yaml")

    assert set(ran.statuses.values()) == {"succeeded"}
    assert ran.file("mend", "mend.txt") == '{"step": "analyse-bugs"}'
    assert ran.file("speed-up", "speed-up.txt") == '{"step": "analyse-speed"}'
    assert ran.output("verify") == "verified"


def test_identical_workers_are_clamped_and_aggregated(repo: Path) -> None:
    ran = run(repo, "concurrency.yaml")

    assert "concurrency 5 clamped to 3 (runtime.max_concurrent_workers)" in ran.said
    assert json.loads(ran.file("review", "ideas.json")) == [{"idea": 0}, {"idea": 1}, {"idea": 2}]
    aggregate = json.loads(ran.file("review", "aggregate.json"))
    assert (aggregate["total_workers"], aggregate["success_count"], aggregate["fail_count"]) == (3, 3, 0)
    assert [one["index"] for one in aggregate["worker_results"]] == [0, 1, 2]
    assert "3 agents had ideas" in ran.steps["review"]["worker_results"][0]["prompt"]


def test_some_of_the_work_is_used_where_the_rest_failed(repo: Path) -> None:
    ran = run(repo, "partial-failure.yaml")

    assert (ran.code, ran.report["status"]) == (1, "degraded")
    assert [(one["status"], one["attempts"]) for one in ran.steps["analyse"]["worker_results"]] == [
        ("succeeded", 1),
        ("succeeded", 2),
        ("failed", 2),
    ]
    assert ran.output("use") == "2 of 3"


def test_an_agent_is_told_how_many_helpers_it_may_start(repo: Path) -> None:
    ran = run(repo, "sub-agents.yaml")

    assert ran.output("implement").splitlines() == [
        "You implement things.",
        "",
        "## Concurrency",
        "",
        "You may spawn up to 3 concurrent sub-agents or workers for this step.",
    ]


def test_the_best_of_three_passes_its_tests_and_is_short(repo: Path) -> None:
    ran = run(repo, "best-of-n.yaml")

    solved = ran.steps["solve"]
    assert (ran.code, solved["selected"]) == (0, 2)
    assert [(row["index"], row["eligible"]) for row in solved["ranking"]] == [(2, True), (1, True), (0, False)]
    assert ran.output("use") == "answer = 42"


def test_a_matrix_has_a_worker_for_each_combination(repo: Path) -> None:
    ran = run(repo, "matrix.yaml")

    workers = ran.steps["port"]["worker_results"]
    assert [one["item"] for one in workers] == ["linux, 1", "linux, 2", "mac, 2, fancy", "web, 3"]
    assert [one["prompt"] for one in workers][-1] == "Port it to web 3"
    assert ran.file("port", "ports/mac-2.txt", worker=2) == "fancy"
    assert ran.output("list").split() == ["linux-1.txt", "linux-2.txt", "mac-2.txt", "web-3.txt"]


def test_a_plan_becomes_a_matrix_and_its_tasks_wait_for_each_other(repo: Path) -> None:
    ran = run(repo, "matrix-from-artifact.yaml")

    assert [one["item"] for one in ran.steps["work"]["worker_results"]] == ["schema", "query", "page"]
    # query.sql lists what its worker found: the work of the task that it had to wait for
    assert ran.file("work", "query.sql", worker=1).splitlines() == ["schema.sql", "made by 1"]
    assert ran.output("list").split()[:3] == ["page.html", "query.sql", "schema.sql"]


@contextlib.contextmanager
def started(repo: Path, name: str) -> Iterator["subprocess.Popen[str]"]:
    """Start an example, for somebody else to answer it."""
    shutil.copy(EXAMPLES / name, repo)
    command = [str(SHOAL), "run", name, "--events"]
    with subprocess.Popen(command, cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_gate_waits_for_a_person(repo: Path) -> None:
    shoal = shoal_in(repo)
    with started(repo, "gate.yaml") as process:
        assert process.stdout is not None
        opened = next(event for line in process.stdout if (event := json.loads(line))["event"] == "GateOpened")
        shown = shoal("status").out
        answered = shoal("approve")
        process.stdout.read()
        code = process.wait(60)

    assert opened["message"] == "Release version 1.0?"
    assert 'waiting for approval: ask "Release version 1.0?"' in shown
    assert (answered.code, code) == (0, 0)
    assert git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent/publish")


def test_a_gate_can_be_approved_beforehand(repo: Path) -> None:
    ran = run(repo, "gate.yaml", "--yes")

    assert ran.statuses == {"prepare": "succeeded", "ask": "succeeded", "publish": "succeeded"}
    assert ran.file("publish", "published.txt") == "1.0"


def test_a_loop_ends_when_the_tests_pass(repo: Path) -> None:
    ran = run(repo, "loop.yaml", pipeline="main")

    assert (ran.code, ran.steps["mend"]["rounds"]) == (0, 3)
    assert ran.steps["mend_fix"]["worker_results"][0]["prompt"].endswith("This is round 3 of 5.")
    assert ran.output("count") == "3"


def test_a_pipeline_is_used_twice_inside_of_another(repo: Path) -> None:
    ran = run(repo, "sub-pipeline.yaml", pipeline="main")

    assert list(ran.statuses) == [
        "english",
        "english_translate",
        "english_check",
        "french",
        "french_translate",
        "french_check",
        "publish",
    ]
    assert ran.output("publish").splitlines() == ["hello in en", "hello in fr"]


def test_work_that_breaks_a_contract_is_tried_again_and_told_why(repo: Path) -> None:
    ran = run(repo, "contracts.yaml")

    (worker,) = ran.steps["implement"]["worker_results"]
    assert (ran.code, worker["attempts"]) == (0, 2)
    assert all(one["passed"] for one in worker["contracts"])
    assert [one["type"] for one in worker["contracts"]] == [
        "source_diff",
        "non_empty_file",
        "json_schema",
        "test_suite",
        "no_test_deletions",
        "agent_review",
    ]
    assert "contract json_schema is not met" in ran.said
    assert json.loads(ran.file("implement", "release.json")) == {"version": "1.0"}


def test_an_agent_resolves_the_conflict_of_two_others(repo: Path) -> None:
    ran = run(repo, "resolve-conflicts.yaml")

    assert (ran.code, ran.statuses["tests__resolve"]) == (0, "succeeded")
    assert [one["resolved_by"] for one in ran.report["merge"]["results"]] == [None, None, "agent"]
    assert git(repo, "show", f"{ran.report['merge']['branch']}:add.py").startswith("def add(a: int, b: int = 0)")


def test_workers_differ_in_what_was_varied(repo: Path) -> None:
    ran = run(repo, "vary.yaml")

    assert ran.output("show").splitlines() == [
        *("## worker 0", "", "Make it rhyme.", "small at 0.2", ""),
        *("## worker 1", "", "Make it short.", "large at 0.9"),
    ]


@pytest.mark.parametrize(("answer", "left"), [("no", ["code.txt"]), ("yes", ["code.txt", "docs.txt"])])
def test_a_condition_passes_a_step_over_and_the_rest_goes_on(repo: Path, answer: str, left: list[str]) -> None:
    ran = run(repo, "conditions.yaml", "--input", f"docs={answer}")

    assert (ran.code, ran.statuses["critique"]) == (0, "failed")
    assert ran.statuses["document"] == ("succeeded" if answer == "yes" else "skipped")
    assert ran.output("ship").split() == left
