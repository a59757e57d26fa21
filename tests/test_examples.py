"""Run every example from the command line in a fresh repository, and check that it shows what it claims."""

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
class ExampleRun:
    """The run of an example in *repo*: its exit code, report and stderr."""

    repo: Path
    code: int
    report: dict[str, Any]
    stderr: str

    @property
    def steps(self) -> dict[str, Step]:
        return {step["step"]: step for step in self.report["steps"]}

    @property
    def statuses(self) -> dict[str, str]:
        return {name: step["status"] for name, step in self.steps.items()}

    def output(self, step: str) -> str:
        """Return the output of the only worker of *step*."""
        (worker,) = self.steps[step]["worker_results"]
        return str(worker["output"]).strip()

    def file(self, step: str, path: str, worker: int = 0) -> str:
        """Return the content of a file on the branch of *step*."""
        branch = self.steps[step]["worker_results"][worker]["branch"]
        return git(self.repo, "show", f"{branch}:{path}")

    def files(self, step: str, worker: int = 0) -> set[str]:
        """Return the files that differ from the base on the branch of *step*."""
        branch = self.steps[step]["worker_results"][worker]["branch"]
        return set(git(self.repo, "diff", "--name-only", "main", branch).splitlines())


def run(repo: Path, name: str, *options: str, pipeline: str | None = None) -> ExampleRun:
    """Run an example as its first lines describe."""
    shutil.copy(EXAMPLES / name, repo / name)
    printed = shoal_in(repo)("run", name, *([pipeline] if pipeline else ()), *options, "--json")
    return ExampleRun(repo, printed.code, json.loads(printed.out), printed.err)


def test_every_example_is_right_and_nothing_is_said_against_it(repo: Path) -> None:
    printed = shoal_in(repo)("validate", *(str(EXAMPLES / name) for name in FILES))

    assert (printed.code, printed.err) == (0, "")
    assert re.findall(r"^(\S+): valid,", printed.out, re.MULTILINE) == [str(EXAMPLES / name) for name in FILES]


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
        assert f'run(repo, "{name}"' in tests or f'open_example(repo, "{name}"' in tests, name
    for name in PROGRAMS:
        assert f"(python/{name})" in listed, name


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_it_says(repo: Path, name: str) -> None:
    program = EXAMPLES / "python" / name
    expected = re.findall(r"^# prints (.*)$", program.read_text(), re.MULTILINE)

    completed = subprocess.run(
        [sys.executable, program], cwd=repo, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )

    assert (completed.returncode, completed.stdout.splitlines()) == (0, expected), completed.stderr
    assert expected


def test_independent_tasks_end_each_on_its_own_branch(repo: Path) -> None:
    example = run(repo, "independent-tasks.yaml")

    assert (example.code, example.report["status"]) == (0, "succeeded")
    assert [example.files(step) for step in ("errors", "tests", "readme")] == [
        {"parser.py"},
        {"test_numbers.py"},
        {"README.md"},
    ]
    assert len({step["worker_results"][0]["branch"] for step in example.steps.values()}) == 3


def test_parts_are_merged_for_the_step_that_needs_them(repo: Path) -> None:
    example = run(repo, "parallel-decomposition.yaml")

    assert example.code == 0
    assert example.file("join", "summary.txt").splitlines() == [
        "# refactored helpers",
        "# refactored main",
        "# refactored parser",
    ]
    assert example.files("parser") == {"src/parser.py"}


def test_a_pipeline_goes_in_order_and_hands_on_texts_and_files(repo: Path) -> None:
    example = run(repo, "pipeline.yaml", "--input", "a greeting")

    assert example.code == 0
    assert list(example.statuses) == ["design", "implement", "test"]
    assert "The designer says: one function: greet" in example.steps["implement"]["worker_results"][0]["prompt"]
    assert example.steps["design"]["worker_results"][0]["prompt"] == "Design an API for a greeting"
    assert example.files("test") == {"api.md", "api.py", "test_api.py"}


def test_what_was_fired_is_gathered_by_artifacts(repo: Path) -> None:
    example = run(repo, "fire-and-gather.yaml")

    assert example.code == 0
    assert set(example.file("synthesis", "summary.md").splitlines()) == {
        "found by failures",
        "found by timeouts",
        "found by accessibility",
    }
    assert example.files("synthesis") == {"summary.md"}
    assert "The first one says: found by failures" in example.steps["synthesis"]["worker_results"][0]["prompt"]


def test_the_first_that_works_wins_the_race(repo: Path) -> None:
    example = run(repo, "race.yaml")

    assert example.code == 0
    assert [worker["status"] for worker in example.steps["fix"]["worker_results"]] == [
        "failed",
        "cancelled",
        "succeeded",
    ]
    assert example.steps["fix"]["selected"] == 2
    assert example.output("ship") == "fixed by patch"


def test_stages_run_each_when_its_own_needs_are_met(repo: Path) -> None:
    example = run(repo, "staged-pipeline.yaml")

    assert set(example.statuses.values()) == {"succeeded"}
    assert example.file("mend", "mend.txt") == '{"step": "analyse-bugs"}'
    assert example.file("speed-up", "speed-up.txt") == '{"step": "analyse-speed"}'
    assert example.output("verify") == "verified"


def test_identical_workers_are_clamped_and_aggregated(repo: Path) -> None:
    example = run(repo, "concurrency.yaml")

    assert "concurrency 5 clamped to 3 (runtime.max_concurrent_workers)" in example.stderr
    assert json.loads(example.file("review", "ideas.json")) == [{"idea": 0}, {"idea": 1}, {"idea": 2}]
    aggregate = json.loads(example.file("review", "aggregate.json"))
    assert (aggregate["total_workers"], aggregate["success_count"], aggregate["fail_count"]) == (3, 3, 0)
    assert [worker["index"] for worker in aggregate["worker_results"]] == [0, 1, 2]
    assert "3 agents had ideas" in example.steps["review"]["worker_results"][0]["prompt"]


def test_some_of_the_work_is_used_where_the_rest_failed(repo: Path) -> None:
    example = run(repo, "partial-failure.yaml")

    assert (example.code, example.report["status"]) == (1, "degraded")
    assert [(worker["status"], worker["attempts"]) for worker in example.steps["analyse"]["worker_results"]] == [
        ("succeeded", 1),
        ("succeeded", 2),
        ("failed", 2),
    ]
    assert example.output("use") == "2 of 3"


def test_an_agent_is_told_how_many_helpers_it_may_start(repo: Path) -> None:
    example = run(repo, "sub-agents.yaml")

    assert example.output("implement").splitlines() == [
        "You implement things.",
        "",
        "## Concurrency",
        "",
        "You may spawn up to 3 concurrent sub-agents or workers for this step.",
    ]


def test_the_best_of_three_passes_its_tests_and_is_short(repo: Path) -> None:
    example = run(repo, "best-of-n.yaml")

    solved = example.steps["solve"]
    assert (example.code, solved["selected"]) == (0, 2)
    assert [(row["index"], row["eligible"]) for row in solved["ranking"]] == [(2, True), (1, True), (0, False)]
    assert example.output("use") == "answer = 42"


def test_a_matrix_has_a_worker_for_each_combination(repo: Path) -> None:
    example = run(repo, "matrix.yaml")

    workers = example.steps["port"]["worker_results"]
    assert [worker["item"] for worker in workers] == ["linux, 1", "linux, 2", "mac, 2, fancy", "web, 3"]
    assert [worker["prompt"] for worker in workers][-1] == "Port it to web 3"
    assert example.file("port", "ports/mac-2.txt", worker=2) == "fancy"
    assert example.output("list").split() == ["linux-1.txt", "linux-2.txt", "mac-2.txt", "web-3.txt"]


def test_a_plan_becomes_a_matrix_and_its_tasks_wait_for_each_other(repo: Path) -> None:
    example = run(repo, "matrix-from-artifact.yaml")

    assert [worker["item"] for worker in example.steps["work"]["worker_results"]] == ["schema", "query", "page"]
    # query.sql lists what its worker saw: the work of the task it depends on
    assert example.file("work", "query.sql", worker=1).splitlines() == ["schema.sql", "made by 1"]
    assert example.output("list").split()[:3] == ["page.html", "query.sql", "schema.sql"]


@contextlib.contextmanager
def open_example(repo: Path, name: str) -> Iterator["subprocess.Popen[str]"]:
    """Start an example and leave it running, so that a test can answer its gate."""
    shutil.copy(EXAMPLES / name, repo)
    command = [str(SHOAL), "run", name, "--events"]
    with subprocess.Popen(command, cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_gate_waits_for_a_person(repo: Path) -> None:
    shoal = shoal_in(repo)
    with open_example(repo, "gate.yaml") as process:
        assert process.stdout is not None
        opened = next(event for line in process.stdout if (event := json.loads(line))["event"] == "GateOpened")
        status = shoal("status").out
        approval = shoal("approve")
        process.stdout.read()
        code = process.wait(60)

    assert opened["message"] == "Release version 1.0?"
    assert 'waiting for approval: ask "Release version 1.0?"' in status
    assert (approval.code, code) == (0, 0)
    assert git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent/publish")


def test_a_gate_can_be_approved_beforehand(repo: Path) -> None:
    example = run(repo, "gate.yaml", "--yes")

    assert example.statuses == {"prepare": "succeeded", "ask": "succeeded", "publish": "succeeded"}
    assert example.file("publish", "published.txt") == "1.0"


def test_a_loop_ends_when_the_tests_pass(repo: Path) -> None:
    example = run(repo, "loop.yaml", pipeline="main")

    assert (example.code, example.steps["mend"]["rounds"]) == (0, 3)
    assert example.steps["mend_fix"]["worker_results"][0]["prompt"].endswith("This is round 3 of 5.")
    assert example.output("count") == "3"


def test_a_pipeline_is_used_twice_inside_of_another(repo: Path) -> None:
    example = run(repo, "sub-pipeline.yaml", pipeline="main")

    assert list(example.statuses) == [
        "english",
        "english_translate",
        "english_check",
        "french",
        "french_translate",
        "french_check",
        "publish",
    ]
    assert example.output("publish").splitlines() == ["hello in en", "hello in fr"]


def test_work_that_breaks_a_contract_is_tried_again_and_told_why(repo: Path) -> None:
    example = run(repo, "contracts.yaml")

    (worker,) = example.steps["implement"]["worker_results"]
    assert (example.code, worker["attempts"]) == (0, 2)
    assert all(contract["passed"] for contract in worker["contracts"])
    assert [contract["type"] for contract in worker["contracts"]] == [
        "source_diff",
        "non_empty_file",
        "json_schema",
        "test_suite",
        "no_test_deletions",
        "agent_review",
    ]
    assert "contract json_schema is not met" in example.stderr
    assert json.loads(example.file("implement", "release.json")) == {"version": "1.0"}


def test_an_agent_resolves_the_conflict_of_two_others(repo: Path) -> None:
    example = run(repo, "resolve-conflicts.yaml")

    assert (example.code, example.statuses["tests__resolve"]) == (0, "succeeded")
    assert [result["resolved_by"] for result in example.report["merge"]["results"]] == [None, None, "agent"]
    assert git(repo, "show", f"{example.report['merge']['branch']}:add.py").startswith("def add(a: int, b: int = 0)")


def test_workers_differ_in_what_was_varied(repo: Path) -> None:
    example = run(repo, "vary.yaml")

    assert example.output("show").splitlines() == [
        *("## worker 0", "", "Make it rhyme.", "small at 0.2", ""),
        *("## worker 1", "", "Make it short.", "large at 0.9"),
    ]


@pytest.mark.parametrize(("answer", "left"), [("no", ["code.txt"]), ("yes", ["code.txt", "docs.txt"])])
def test_a_condition_passes_a_step_over_and_the_rest_goes_on(repo: Path, answer: str, left: list[str]) -> None:
    example = run(repo, "conditions.yaml", "--input", f"docs={answer}")

    assert (example.code, example.statuses["critique"]) == (0, "failed")
    assert example.statuses["document"] == ("succeeded" if answer == "yes" else "skipped")
    assert example.output("ship").split() == left
