"""The flow of a run from the command line: conditions, loops, nested pipelines, commands and texts."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shoal, shoal_in
from tests.cli.flows import Ran, ran, written
from tests.conftest import git, make_repo

HOSTILE = "$(touch pwned) `touch pwned` ; touch pwned ' \" {{ 7 * 7 }} \\"
FLOW = """
pipelines:
  - name: main
    steps:
      - {name: say, agent: do, prompt: 'echo said; echo work > work.txt'}
      - {name: fails, agent: do, prompt: 'exit 1', optional: true}
      - {name: after-fails, needs: fails, agent: do, prompt: 'echo {{ steps.fails.status }} > status'}
      - {name: yes, needs: say, if: "'ai' in steps.say.output and input.go == 'on'", agent: do, prompt: 'cat work.txt > seen'}
      - {name: no, needs: say, if: "steps.say.fail_count > 0", agent: do, prompt: 'echo never > never'}
      - {name: after-no, needs: no, agent: do, prompt: 'cat work.txt > seen'}
      - name: texts
        needs: say
        agent: do
        prompt: |
          cp "$SHOAL_PROMPT_FILE" asked; echo "$OWN" > own
          {{ run.pipeline }} {{ step.name }} {{ worker.index }} of {{ worker.count }}
          {{ steps.say.output | trim }} {{ steps.say.branch }} {{ steps.say.commit }} {{ steps.say.success_count }}
          {{ input.go }} {{ input.bad }}
        concurrency: 2
        env: {OWN: "worker {{ worker.index }}"}
      - {name: shell, needs: say, command: 'printf "%s\\n" "{{ input.bad }}" > hostile; cat work.txt'}
      - {name: quoted, command: "printf '%s' '{{ input.bad }}'"}
      - {name: words, command: [printf, "%s", "{{ input.bad }}"], output_artifacts: []}
      - {name: wrong, command: 'echo no such luck >&2; exit 9', optional: true}
      - {name: bare, command: true}
      - {name: bare-words, command: [false], optional: true}
      - {name: held, command: 'echo x > x', contract: {type: non_empty_file, path: y}, optional: true}
"""


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run with a bit of everything."""
    repo = make_repo(tmp_path_factory.mktemp("flow") / "repo")
    return ran(repo, FLOW, "--input", "go=on", "--input", f"bad={HOSTILE}")


def test_a_step_whose_condition_holds_is_done_on_the_work_of_its_need(flow: Ran) -> None:
    assert flow.statuses["yes"] == "succeeded"
    assert flow.shown("yes", "seen") == "work"


def test_one_whose_condition_does_not_hold_is_skipped_and_who_needs_it_goes_on(flow: Ran) -> None:
    assert flow.statuses["no"] == "skipped"
    assert flow["no"]["error"] == "`if: steps.say.fail_count > 0` does not hold"
    assert flow.shown("after-no", "seen") == "work", "on what the skipped one would have started from"


def test_true_and_false_are_the_programs_of_those_names(flow: Ran) -> None:
    assert (flow.statuses["bare"], flow.statuses["bare-words"]) == ("succeeded", "failed")
    assert flow.worker("bare-words")["exit_code"] == 1


def test_optional_steps_spoil_neither_the_run_nor_those_that_need_them(flow: Ran) -> None:
    assert (flow.statuses["fails"], flow.statuses["wrong"], flow.statuses["held"]) == ("failed", "failed", "failed")
    assert flow.shown("after-fails", "status") == "failed"
    assert (flow.said.code, flow.report["status"]) == (0, "succeeded"), flow.said.err


def test_texts_are_filled_in_for_each_worker_by_what_came_before(flow: Ran) -> None:
    said = flow.worker("say")

    for index in range(2):
        _, first, second, third = flow.shown("texts", "asked", index).splitlines()[:4]
        assert first == f"main texts {index} of 2"
        assert second == f"said {said['branch']} {said['commit']} 1"
        assert third == f"on {HOSTILE}"
        assert flow.shown("texts", "own", index) == f"worker {index}"


def test_a_command_is_a_step_without_an_agent_and_takes_values_as_data(flow: Ran) -> None:
    assert flow.shown("shell", "hostile") == HOSTILE
    assert flow.worker("shell")["output"] == "work\n"
    assert "pwned" not in flow.tree("shell")
    assert flow.worker("words")["output"].rstrip("\n") == HOSTILE
    assert flow.worker("wrong")["exit_code"] == 9
    assert "no such luck" in flow.worker("wrong")["error"]
    assert "`y` is missing" in flow.worker("held")["error"]


def test_a_value_that_a_command_has_in_single_quotes_is_filled_in_too(flow: Ran) -> None:
    assert flow.worker("quoted")["output"].rstrip("\n") == HOSTILE


LOOPS = """
steps:
  - name: until
    agent: do
    prompt: 'echo {{ loop.round }}/{{ loop.max }} {{ loop.previous.output | default("nothing") | trim }} >> rounds; echo heard {{ loop.round }}'
    loop: {max: 5, until: "'heard 3' in this.output"}
  - {name: bound, agent: do, prompt: 'echo x >> tries', loop: {max: 2, until: "this.status == 'failed'"}}
  - {name: go-on, agent: do, prompt: 'echo x >> tries', loop: {max_iterations: 2, until: "false", on_exhausted: continue}}
  - {name: breaks, agent: do, prompt: 'echo x >> tries; [ {{ loop.round }} = 1 ]', loop: {max: 5, until: "false"}}
  - {name: apart, agent: do, prompt: 'echo {{ matrix.n }} {{ loop.round }} > same', strategy: {matrix: {n: [1, 2]}}, loop: {max: 3, until: "false"}}
  - {name: after-until, needs: until, agent: do, prompt: 'cat rounds > seen'}
  - {name: after-bound, needs: bound, agent: do, prompt: 'echo x > x'}
  - {name: after-go-on, needs: go-on, agent: do, prompt: 'cat tries > seen'}
"""


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of several loops."""
    return ran(make_repo(tmp_path_factory.mktemp("loops") / "repo"), LOOPS)


def test_a_loop_ends_by_its_condition_each_round_on_the_work_of_the_one_before(loops: Ran) -> None:
    assert (loops.statuses["until"], loops["until"]["rounds"]) == ("succeeded", 3)
    assert loops.shown("until", "rounds").splitlines() == ["1/5 nothing", "2/5 heard 1", "3/5 heard 2"]
    assert len(git(loops.repo, "for-each-ref", "refs/heads/agent/until").splitlines()) == 3
    assert loops.shown("after-until", "seen") == loops.shown("until", "rounds")


def test_a_loop_that_reaches_its_bound_has_failed_unless_it_may_go_on(loops: Ran) -> None:
    bound, on = loops["bound"], loops["go-on"]

    assert (bound["status"], bound["rounds"]) == ("failed", 2)
    assert bound["error"] == "`until: this.status == 'failed'` does not hold after 2 rounds"
    assert loops.shown("bound", "tries").split() == ["x", "x"]
    assert loops.statuses["after-bound"] == "skipped"
    assert (on["status"], on["rounds"], on["error"]) == ("succeeded", 2, None)
    assert loops.shown("after-go-on", "seen").split() == ["x", "x"]
    assert loops.said.code == 1


def test_a_round_that_fails_is_the_last(loops: Ran) -> None:
    assert (loops.statuses["breaks"], loops["breaks"]["rounds"]) == ("failed", 2)


def test_a_round_whose_workers_conflict_is_not_gone_on_from_without_their_work(loops: Ran) -> None:
    assert (loops.statuses["apart"], loops["apart"]["rounds"]) == ("failed", 1)
    assert loops["apart"]["error"].startswith("round 2 cannot build on the one before: apart: ")
    assert "conflicts in same" in loops["apart"]["error"]


INSIDE = """
pipelines:
  - name: main
    steps:
      - {name: first, agent: do, prompt: 'echo first > first; echo from first'}
      - {name: build, needs: first, pipeline: inner, input: {what: "{{ steps.first.output | trim }}", mode: "{{ input }}"}}
      - {name: last, needs: build, agent: do, prompt: 'cat first a b > seen; echo {{ steps.build.steps.two.output | trim }} >> seen'}
      - {name: broken, pipeline: bad}
      - {name: after-broken, needs: broken, agent: do, prompt: 'echo x > x'}
      - {name: again, pipeline: counting, loop: {max: 3, until: "'2' in steps.count.output"}}
  - name: inner
    steps:
      - {name: one, agent: do, prompt: 'echo "{{ input.what }}, {{ input.mode }}" > a; cat first'}
      - {name: two, needs: one, agent: do, prompt: 'echo {{ steps.one.output | trim }} > b; cat a'}
  - name: bad
    steps:
      - {name: one, agent: do, prompt: 'exit 1'}
      - {name: two, needs: one, agent: do, prompt: 'echo x > x'}
  - name: counting
    steps: [{name: count, agent: do, prompt: 'echo x >> count; grep -c x count'}]
"""


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of a pipeline with others in it."""
    written(repo := make_repo(tmp_path_factory.mktemp("inside") / "repo"), INSIDE)
    (repo / "shoal.yaml").write_text((repo / "p.yaml").read_text())
    said = shoal_in(repo)("run", "main", "--json", "--input", "quick")
    return Ran(repo, said, json.loads(said.out))


def test_a_pipeline_inside_of_another_has_its_own_input_and_builds_on_its_needs(inside: Ran) -> None:
    assert inside.shown("build_one", "a") == "from first, quick"
    assert inside.shown("build_two", "b") == "first"
    assert inside.shown("last", "seen").splitlines() == ["first", "from first, quick", "first", "from first, quick"]
    assert inside.statuses["build"] == "succeeded"


def test_what_fails_inside_fails_the_whole_and_is_told_by_its_full_name(inside: Ran) -> None:
    names = ("broken", "broken_one", "broken_two", "after-broken")

    assert [inside.statuses[name] for name in names] == ["failed", "failed", "skipped", "skipped"]
    assert (inside.said.code, inside.report["status"]) == (1, "degraded")


def test_a_pipeline_may_be_a_loop(inside: Ran) -> None:
    assert (inside.statuses["again"], inside["again"]["rounds"]) == ("succeeded", 2)
    assert inside.shown("again_count", "count").split() == ["x", "x"]


APART = """
pipelines:
  - name: main
    steps:
      - {name: cells, pipeline: spread}
      - {name: after-cells, needs: cells, agent: do, prompt: 'echo x > x'}
      - {name: pair, pipeline: both}
      - {name: after-pair, needs: pair, agent: do, prompt: 'echo x > x'}
      - {name: beside-pair, needs: pair, base: run, agent: do, prompt: 'echo x > x'}
  - name: spread
    steps: [{name: each, agent: do, prompt: 'echo {{ matrix.n }} > same', strategy: {matrix: {n: [1, 2]}}}]
  - name: both
    steps:
      - {name: one, agent: do, prompt: 'echo 1 > same'}
      - {name: two, agent: do, prompt: 'echo 2 > same'}
"""


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of pipelines inside of another whose parts do not go together."""
    written(repo := make_repo(tmp_path_factory.mktemp("apart") / "repo"), APART)
    said = shoal_in(repo)("run", "p.yaml", "main", "--json")
    return Ran(repo, said, json.loads(said.out))


def test_parts_of_a_pipeline_inside_that_conflict_are_told_to_who_would_build_on_them(apart: Ran) -> None:
    for name in ("after-cells", "after-pair"):
        assert apart.statuses[name] == "failed"
        assert "conflicts in same" in apart[name]["error"], "not left out in silence"


def test_they_are_nobodys_failure_before_that(apart: Ran) -> None:
    assert (apart.statuses["cells"], apart.statuses["pair"]) == ("succeeded", "succeeded")
    assert apart.statuses["beside-pair"] == "succeeded"


def test_an_input_with_a_default_need_not_be_given(repo: Path) -> None:
    steps = """steps: [{name: a, command: "echo '{{ input.x | default('plain') }} {{ input | default('none') }}'"}]"""

    assert ran(repo, steps).worker("a")["output"] == "plain none\n"


def test_a_name_that_no_text_can_have_is_told_at_its_place_before_anything_runs(repo: Path, shoal: Shoal) -> None:
    written(
        repo,
        "steps:\n  - {name: a, agent: do, prompt: go}\n  - {name: b, agent: do, prompt: 'x {{ steps.a.output }}'}\n",
    )

    said = shoal("run", "p.yaml")

    assert (said.code, said.err) == (
        2,
        "p.yaml:7:40: step `a` need not have ended when this one starts; add it to `needs`\n",
    )
    assert not (repo / ".shoal").exists()
