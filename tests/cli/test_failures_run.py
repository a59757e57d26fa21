"""Failed, skipped and stopped work: how it is reported, and what dependants get."""

import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shoal.model.events import SessionEnded, SessionStarted
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from tests.cli.conftest import SHOAL, environment, shoal_in
from tests.cli.flows import Ran, ran, written
from tests.conftest import git, make_repo

HALF = "concurrency: 2, on_failure: best_effort, agent: do, prompt: 'echo x > x; [ $SHOAL_WORKER_INDEX = 1 ]'"
SECRET = "s3cr3t-value-0123456789"
FAILURES = """
pipelines:
  - name: main
    steps:
      - {name: maybe, optional: true, agent: do, prompt: 'echo bad > bad; exit 1'}
      - {name: after-maybe, needs: maybe, agent: do, prompt: 'ls > seen'}
      - name: cells
        agent: do
        prompt: 'echo {{ matrix.n }} > n-{{ matrix.n }}; echo {{ matrix.n }} > out.txt; echo out.txt > .gitignore; [ {{ matrix.n }} != 2 ]'
        strategy: {matrix: {n: [1, 2, 3]}, fail-fast: false}
        output_artifacts: [out.txt]
      - {name: after-cells, needs: cells, agent: do, prompt: 'ls > seen; cp "$SHOAL_INPUTS_DIR/cells/out.txt" got'}
      - {name: partly, pipeline: half}
      - {name: spared, pipeline: optional-half}
      - {name: first, agent: do, prompt: 'echo first > first'}
      - {name: unmet, optional: true, needs: [first, bad], agent: do, prompt: 'true'}
      - {name: after-unmet, needs: unmet, agent: do, prompt: 'ls > seen'}
      - {name: bad, agent: do, prompt: 'exit 1'}
      - {name: say, agent: do, prompt: 'echo; echo said; echo'}
      - {name: quote, needs: say, command: 'printf "[%s]" "{{ steps.say.output }}" > quoted'}
      - {name: without, agent: do, prompt: "echo {{ input.mode | default('fast') }} {{ input | default('none') }} > said"}
      - {name: listed, agent: list, prompt: go, env: {TOP: {from: TOP}}, output_artifacts: [items.json]}
      - name: unlisted
        optional: true
        needs: [first, listed]
        agent: do
        prompt: 'true'
        strategy: {items_source: listed.items, item_key: nothing}
      - {name: after-unlisted, needs: unlisted, agent: do, prompt: 'ls > seen'}
      - {name: hostile, agent: do, prompt: 'printf %s "$TOP" > {{ step.name }}', env: {TOP: {from: BRACES}}}
      - {name: inside, needs: first, pipeline: optional-inside}
  - name: half
    steps: [{name: two, HALF}]
  - name: optional-half
    steps: [{name: two, optional: true, HALF}, {name: one, agent: do, prompt: 'true'}]
  - name: optional-inside
    steps:
      - {name: no, agent: do, prompt: 'exit 1', optional: true}
      - {name: skip, needs: no, if: 'false', agent: do, prompt: 'exit 1'}
      - {name: look, needs: skip, agent: do, prompt: 'ls > seen'}
      - {name: beside, base: run, agent: do, prompt: 'true'}
      - {name: after-beside, needs: beside, agent: do, prompt: 'ls > seen'}
""".replace("HALF", HALF)


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run in which everything fails once."""
    repo = make_repo(tmp_path_factory.mktemp("failures") / "repo")
    file = written(repo, FAILURES, list="""echo '{"'$TOP'": []}' > items.json""")
    said = shoal_in(repo)("run", file, "main", "--json", TOP=SECRET, BRACES="{{ 7 * 7 }}")
    assert said.out, said.err
    return Ran(repo, said, json.loads(said.out))


def test_nobody_builds_on_the_work_of_an_optional_step_that_failed(failures: Ran) -> None:
    assert failures.shown("maybe", "bad") == "bad", "it is kept"
    assert "bad" not in failures.shown("after-maybe", "seen").split()


def test_of_a_matrix_only_the_good_items_are_handed_on(failures: Ran) -> None:
    assert failures.workers("cells") == ["succeeded", "failed", "succeeded"]
    assert {"n-1", "n-3"} <= set(failures.shown("after-cells", "seen").split())
    assert "n-2" not in failures.shown("after-cells", "seen").split()
    assert failures.shown("after-cells", "got").split() == ["##", "worker", "0", "1", "##", "worker", "2", "3"]


def test_a_pipeline_of_which_a_part_failed_is_degraded_unless_that_was_optional(failures: Ran) -> None:
    assert (failures.statuses["partly"], failures.statuses["partly_two"]) == ("degraded", "degraded")
    assert (failures.statuses["spared"], failures.statuses["spared_two"]) == ("succeeded", "degraded")


def test_who_needs_an_optional_step_that_could_not_start_goes_on(failures: Ran) -> None:
    assert failures.statuses["unmet"] == "skipped"
    assert failures.statuses["after-unmet"] == "succeeded"


def test_who_needs_an_optional_step_that_could_not_be_laid_out_starts_where_it_would_have(failures: Ran) -> None:
    assert failures.statuses["unlisted"] == "failed"
    assert {"first", "items.json"} <= set(failures.shown("after-unlisted", "seen").split())


def test_no_secret_is_told_in_the_error_of_a_step(failures: Ran) -> None:
    assert failures["unlisted"]["error"].endswith("known: '[secret TOP]'")
    assert SECRET not in failures.said.out + failures.said.err


def test_what_comes_from_the_host_is_no_template(failures: Ran) -> None:
    assert failures.shown("hostile", "hostile") == "{{ 7 * 7 }}"


def test_attempts_that_never_came_to_an_agent_are_counted_and_wait_no_longer_than_asked(repo: Path) -> None:
    more = "setup: [exit 3], retry: {max_attempts: 8, wait_seconds: 0}"

    done = ran(repo, f"steps: [{{name: unready, agent: do, prompt: 'true', {more}}}]")

    worker = done.worker("unready")
    assert (worker["status"], worker["attempts"]) == ("failed", 8)
    assert worker["error"].startswith("setup failed: it exited with 3")
    known = list(read_events(StatePaths.of(repo)))
    begun = [one.at for one in known if isinstance(one.event, SessionStarted)]
    over = [one.at for one in known if isinstance(one.event, SessionEnded)]
    assert sum(later - before for before, later in zip(over, begun[1:], strict=False)) < 1.5, "none was asked for"


def test_inside_of_a_pipeline_all_stand_on_what_it_stands_on(failures: Ran) -> None:
    assert "first" in failures.shown("inside_look", "seen").split()
    assert "first" in failures.shown("inside_after-beside", "seen").split()


def test_an_input_that_nobody_gave_may_have_a_default(failures: Ran) -> None:
    assert failures.shown("without", "said") == "fast none"


def test_the_output_of_a_step_is_taken_as_a_shell_takes_it(failures: Ran) -> None:
    assert failures.worker("say")["output"] == "\nsaid\n\n"
    assert failures.shown("quote", "quoted") == "[\nsaid]"


def stopped(repo: Path, words: list[str], told: Path, **env: str) -> dict[str, Any]:
    """Run a file until one of its agents writes into *told*, stop it like a user, and return its report."""
    os.mkfifo(told)
    command = [str(SHOAL), "run", *words, "--json"]
    with subprocess.Popen(command, cwd=repo, env=environment(**env), stdout=subprocess.PIPE, text=True) as running:
        with open(told, "rb+", buffering=0) as heard:  # to open it so waits for nobody
            assert select.select([heard], [], [], 60)[0], "the agent never came so far"
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=60)
    report: dict[str, Any] = json.loads(out)
    return report


@pytest.mark.deep
def test_what_a_round_that_is_stopped_does_not_reach_does_not_look_done(repo: Path, tmp_path: Path) -> None:
    file = written(
        repo,
        f"""
        pipelines:
          - name: inner
            steps:
              - {{name: one, agent: do, prompt: '[ {{{{ loop.round }}}} = 1 ] || {{ echo > {tmp_path}/told; sleep 60; }}; echo x >> x'}}
              - {{name: two, needs: one, agent: do, prompt: 'echo y >> y'}}
          - name: main
            steps: [{{name: again, pipeline: inner, loop: {{max: 3, until: "false"}}}}]
        """,
    )

    report = stopped(repo, [file, "main"], tmp_path / "told")

    assert {one["status"] for one in report["steps"]} == {"cancelled"}


def test_a_step_that_is_stopped_while_its_judge_thinks_has_not_succeeded(repo: Path, tmp_path: Path) -> None:
    by = "concurrency: 2, select: {by: agent, agent: judge}"
    steps = f"steps: [{{name: pick, agent: do, prompt: 'echo $SHOAL_WORKER_INDEX > who', {by}}}]"
    file = written(repo, steps, judge=f"echo > {tmp_path}/told; sleep 60")

    report = stopped(repo, [file], tmp_path / "told")

    statuses = {one["step"]: one["status"] for one in report["steps"]}
    assert (report["status"], statuses["pick"]) == ("cancelled", "cancelled")
    assert [one["status"] for one in report["steps"][0]["worker_results"]] == ["succeeded", "succeeded"]


def test_work_that_is_stopped_while_it_is_checked_has_not_failed(repo: Path, tmp_path: Path) -> None:
    contract = f"contract: {{type: command, command: 'echo > {tmp_path}/told; sleep 60'}}"
    file = written(repo, f"steps: [{{name: work, agent: do, prompt: 'echo w > w', retry: 2, {contract}}}]")

    report = stopped(repo, [file], tmp_path / "told")

    (worker,) = report["steps"][0]["worker_results"]
    assert (worker["status"], worker["error"]) == ("cancelled", "it was stopped while its work was checked")
    assert git(repo, "show", f"{worker['branch']}:w") == "w"


def test_no_secret_is_told_of_an_item_that_never_began(repo: Path, tmp_path: Path) -> None:
    """Its need is named by what an agent wrote; that the last item is at work says that it was skipped before."""
    items = '[{"id": "\'$TOP\'"}, {"id": "b", "after": ["\'$TOP\'"]}, {"id": "c"}]'
    file = written(
        repo,
        f"""
        steps:
          - {{name: plan, agent: plan, prompt: go, env: {{TOP: {{from: TOP}}}}, output_artifacts: [items.json]}}
          - name: cells
            needs: plan
            agent: do
            prompt: '[ {{{{ item.id }}}} = c ] && {{ echo > {tmp_path}/told; sleep 60; }}; exit 1'
            strategy: {{items_source: plan.items, dependency_key: after, fail-fast: false, max-parallel: 1}}
        """,
        plan=f"echo '{items}' > items.json",
    )

    report = stopped(repo, [file], tmp_path / "told", TOP=SECRET)

    skipped = next(one for one in report["steps"] if one["step"] == "cells")["worker_results"][1]
    assert (skipped["status"], skipped["error"]) == ("skipped", "dependency '[secret TOP]' failed")
