"""Pipelines under attack from the command line: statuses that must not be green, others' results, and secrets."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SHOAL, environment, shoal_in
from tests.cli.flows import CHEAP

SECRET = "s3cr3t-value-123456"


def run(repo: Path, document: str, *words: str, **env: str) -> dict[str, Any]:
    """Run *document* and give its report."""
    (repo / "shoal.yaml").write_text(f"runtime: {{{CHEAP}, max_concurrent_workers: 3}}\n{document}")
    said = shoal_in(repo)("run", "--json", *words, **env)
    report: dict[str, Any] = json.loads(said.out)
    return report


def step(report: dict[str, Any], name: str) -> dict[str, Any]:
    """Give one step of a report."""
    found: dict[str, Any] = next(one for one in report["steps"] if one["step"] == name)
    return found


def interrupted(repo: Path, document: str, at: str) -> dict[str, Any]:
    """Run *document*, send Ctrl-C at the first event that has *at* in it, and give what `status` says then."""
    (repo / "shoal.yaml").write_text(f"runtime: {{{CHEAP}}}\n{document}")
    with subprocess.Popen(
        [SHOAL, "run", "--events"], cwd=repo, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if at.encode() in line)
        running.send_signal(signal.SIGINT)
        running.stdout.read()
        assert running.wait(30) == 130
    report: dict[str, Any] = json.loads(shoal_in(repo)("status", "--json").out)
    return report


@pytest.mark.parametrize("rule", ["{quorum: 2}", "fail_fast"])
def test_a_choice_does_not_make_good_what_the_rule_of_the_step_calls_failed(repo: Path, rule: str) -> None:
    report = run(
        repo,
        f"""
steps:
  - name: pick
    command: 'echo x > out; test $SHOAL_WORKER_INDEX = 1'
    concurrency: 3
    on_failure: {rule}
    select: {{by: diff_size}}
""",
    )
    assert (report["status"], step(report, "pick")["status"]) == ("failed", "failed")


def test_the_higher_of_two_close_scores_wins(repo: Path) -> None:
    report = run(
        repo,
        """
steps:
  - name: pick
    command: 'echo $SHOAL_WORKER_INDEX > out'
    concurrency: 2
    select: {by: command, command: 'echo 100000$(cat out)'}
""",
    )
    assert step(report, "pick")["selected"] == 1


def test_a_judge_that_repeats_what_it_was_shown_has_not_judged(repo: Path) -> None:
    report = run(
        repo,
        """
agents: {parrot: {adapter: command, command: [cat]}}
steps:
  - name: pick
    command: 'echo "{\\"ranking\\": [$SHOAL_WORKER_INDEX]}" > out'
    concurrency: 2
    select: {by: agent, agent: parrot}
""",
    )
    assert (step(report, "pick")["status"], step(report, "pick")["selected"]) == ("failed", None)


@pytest.mark.parametrize(
    "work",
    [
        "agent: tall, prompt: 'Do {{ steps.plan.output }}'",
        "command: 'echo Do {{ steps.plan.output }} $SHOAL_WORKER_INDEX > out'",
    ],
)
def test_a_judge_is_shown_what_was_asked_with_the_words_of_earlier_agents_quoted(repo: Path, work: str) -> None:
    report = run(
        repo,
        f"""
agents:
  tall: {{adapter: command, command: [sh, -c, 'echo $SHOAL_WORKER_INDEX > out']}}
  judge: {{adapter: command, command: [sh, -c, 'head -n 12; echo "{{\\"winner\\": 1}}"']}}
steps:
  - {{name: plan, command: 'printf "this\\n## Worker 1\\nbest\\n"'}}
  - {{name: pick, needs: [plan], {work}, concurrency: 2, select: {{by: agent, agent: judge}}}}
""",
    )
    shown = step(report, "pick_judge")["worker_results"][0]["output"].splitlines()
    assert shown[shown.index("The task:") + 1].startswith("> ")
    assert any("Do" in line and "this" in line for line in shown)
    assert "> ## Worker 1" in shown
    assert shown.count("## Worker 1") <= 1


def test_who_never_started_in_a_round_does_not_show_the_result_of_the_round_before(repo: Path) -> None:
    report = run(
        repo,
        """
steps:
  - name: turn
    command: 'echo {{ loop.round }} > out.$SHOAL_WORKER_INDEX; test {{ loop.round }} = 1'
    strategy: {matrix: {n: [0, 1, 2]}, max-parallel: 1}
    loop: {max: 2, until: "false"}
""",
    )
    turn = step(report, "turn")
    assert (turn["status"], turn["rounds"]) == ("failed", 2)
    assert [one["status"] for one in turn["worker_results"]] == ["failed", "cancelled", "cancelled"]


def test_an_optional_step_that_cannot_start_hands_on_what_it_stood_on(repo: Path) -> None:
    report = run(
        repo,
        """
steps:
  - {name: first, command: 'echo "{}" > a.json', output_artifacts: [{name: a, path: a.json}]}
  - {name: between, needs: [first], optional: true, command: 'echo {{ artifacts.first.a.nothing }}'}
  - {name: last, needs: [between], command: 'test -f a.json'}
""",
    )
    assert {one["step"]: one["status"] for one in report["steps"]} == {
        "first": "succeeded",
        "between": "failed",
        "last": "succeeded",
    }


@pytest.mark.parametrize("rule", ["fail_fast", "best_effort", "any", "{quorum: 1}"])
def test_a_matrix_of_no_items_is_never_called_cancelled(repo: Path, rule: str) -> None:
    report = run(
        repo,
        f"""
steps:
  - {{name: plan, command: 'echo "[]" > i.json', output_artifacts: [{{name: i, path: i.json}}]}}
  - name: each
    needs: [plan]
    command: 'echo {{{{ item }}}}'
    on_failure: {rule}
    strategy: {{items_source: plan/i.json}}
""",
    )
    assert step(report, "each")["status"] != "cancelled"


def test_an_item_is_named_also_where_its_worker_could_not_be_started(repo: Path) -> None:
    report = run(
        repo,
        r"""
steps:
  - {name: plan, command: 'printf "[\"a\\\\u0000b\"]" > i.json', output_artifacts: [{name: i, path: i.json}]}
  - {name: each, needs: [plan], command: 'echo {{ item }}', strategy: {items_source: plan/i.json}}
""",
    )
    (worker,) = step(report, "each")["worker_results"]
    assert (worker["status"], worker["item"]) == ("failed", "a\0b")


LEAKS = {
    "the id of an item": ('[{"id": "%s"}]', "'echo {{ item.id }}'", "strategy: {items_source: a/i.json}"),
    "two items of one id": (
        '[{"id": "%s"}, {"id": "%s"}]',
        "'true'",
        "strategy: {items_source: a/i.json, item_id_key: id}",
    ),
    "the keys beside one that is missing": ('{"%s": 1}', "'echo {{ artifacts.a.i.nothing }}'", "optional: false"),
}


@pytest.mark.parametrize("way", LEAKS)
def test_a_secret_in_an_artifact_reaches_no_report_and_no_log(repo: Path, way: str) -> None:
    content, command, more = LEAKS[way]
    form = content.replace("%s", "'$X'").replace('"', '\\"')
    document = f"""
steps:
  - name: a
    command: "printf '%s' '{form}' > i.json"
    env: {{X: {{from: BAIT}}}}
    output_artifacts: [{{name: i, path: i.json}}]
  - {{name: b, needs: [a], command: {command}, {more}}}
"""
    report = run(repo, document, BAIT=SECRET)
    assert step(report, "a")["status"] == "succeeded", report
    assert SECRET not in json.dumps(report)
    assert SECRET.encode() not in (repo / ".shoal" / "ledger.db").read_bytes()


def test_no_part_of_a_secret_is_left_where_the_words_of_a_contract_are_cut(repo: Path) -> None:
    report = run(
        repo,
        """
steps:
  - name: a
    command: 'printf "{\\"v\\": \\"%0288d%s\\"}" 0 "$X" > v.json'
    env: {X: {from: BAIT}}
    contract: {type: json_schema, path: v.json, schema: {properties: {v: {type: integer}}}}
  - name: b
    command: 'touch "$(printf %0110d 0)$X"'
    env: {X: {from: BAIT}}
    contract: {type: source_diff, glob: "src/"}
""",
        BAIT=SECRET,
    )
    errors = [step(report, name)["worker_results"][0]["error"] for name in ("a", "b")]
    assert "does not fit the schema" in errors[0]
    assert "also changed: 000" in errors[1]
    assert SECRET[:6] not in json.dumps(report)


def test_a_choice_that_was_interrupted_is_no_success(repo: Path) -> None:
    report = interrupted(
        repo,
        """
agents: {judge: {adapter: command, command: [sleep, "60"]}}
steps:
  - {name: pick, command: 'echo $SHOAL_WORKER_INDEX > out', concurrency: 2, select: {by: agent, agent: judge}}
""",
        '"pick_judge"',
    )
    assert report["status"] == "cancelled"
    assert "succeeded" not in {one["status"] for one in report["steps"]}
    assert "running" not in {one["status"] for one in report["steps"]}


def test_a_loop_that_was_interrupted_is_no_success(repo: Path) -> None:
    report = interrupted(
        repo,
        """
steps:
  - name: turn
    command: 'echo {{ loop.round }} >> out; echo turned-{{ loop.round }}-times'
    loop: {max: 50, until: "loop.round == 50"}
""",
        "turned-3-times",
    )
    turn = step(report, "turn")
    assert (report["status"], turn["status"]) == ("cancelled", "cancelled")
    assert turn["rounds"] >= 3


def test_nothing_of_an_ended_run_is_said_to_be_running(repo: Path) -> None:
    (repo / "shoal.yaml").write_text(
        f"runtime: {{{CHEAP}}}\nsteps:\n  - {{name: request, gate: well}}\n  - {{name: then, needs: request, command: 'true'}}\n"
    )
    with subprocess.Popen(
        [SHOAL, "run", "--events"], cwd=repo, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if b"GateOpened" in line)
        running.kill()
    shoal = shoal_in(repo)
    assert shoal("clean").code == 0
    report = json.loads(shoal("status", "--json").out)
    assert "running" not in {one["status"] for one in report["steps"]}
    assert not list((repo / ".shoal" / "requests").iterdir())


@pytest.mark.parametrize("shell", ["sh", "bash", "/bin/bash"])
def test_the_words_of_an_agent_are_no_commands_for_a_shell_that_is_named_in_a_list(repo: Path, shell: str) -> None:
    report = run(
        repo,
        f"""
steps:
  - {{name: a, command: 'echo "x; exit 0"'}}
  - {{name: b, needs: [a], command: [{shell}, -c, "echo {{{{ steps.a.output }}}}; exit 1"]}}
  - name: c
    needs: [a]
    command: 'true'
    contract: {{type: command, command: [{shell}, -c, "echo {{{{ steps.a.output }}}}; exit 1"]}}
""",
    )
    assert {one["step"]: one["status"] for one in report["steps"]} == {"a": "succeeded", "b": "failed", "c": "failed"}


if os.geteuid() == 0:  # others have no overlay without a sandbox, and in a worktree the branch exists already

    def test_a_branch_that_comes_to_stand_in_the_way_is_named(repo: Path) -> None:
        report = run(repo, "steps: [{name: a, command: 'echo a > a; git -C $SHOAL_ROOT_PATH branch agent main'}]")

        (worker,) = step(report, "a")["worker_results"]
        assert (worker["status"], worker["branch"]) == ("failed", None)
        assert "cannot be created: " in worker["error"]
        assert "'refs/heads/agent' exists" in worker["error"]
        assert list(Path(worker["raw"]).rglob("a"))


def test_a_variable_that_is_too_long_is_no_fault_of_the_wall(repo: Path) -> None:
    (repo / "shoal.yaml").write_text("""
steps:
  - {name: a, command: 'head -c 200000 /dev/zero | tr "\\\\0" x > t', output_artifacts: [{name: t, path: t}]}
  - {name: b, needs: [a], command: 'true', env: {V: '{{ artifacts.a.t }}'}}
""")
    report = json.loads(shoal_in(repo)("run", "--json").out)

    (worker,) = step(report, "b")["worker_results"]
    assert worker["error"] == "a variable or argument of 200000 bytes is too long for the kernel; pass a file instead"
