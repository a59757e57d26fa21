"""Several workers with different or the same work, from the command line: `select`, `vary` and `strategy.matrix`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shoal, shoal_in
from tests.cli.flows import CHEAP, Ran, ran
from tests.conftest import make_repo

# Worker 0 writes one line, worker 1 three, worker 2 two; each says so in a file.
LINES = "n=$((SHOAL_WORKER_INDEX == 0 ? 1 : 4 - SHOAL_WORKER_INDEX)); seq $n > lines; echo $SHOAL_WORKER_INDEX > who"
# Workers 0 and 1 write as much, worker 2 more; where it is asked for, worker 0 a binary file besides.
TIE = "seq $((1 + SHOAL_WORKER_INDEX / 2 * 5)) > lines; echo $SHOAL_WORKER_INDEX > who; [ $SHOAL_WORKER_INDEX$BINARY = 01 ] && printf 'a\\0b' > blob; true"
CLERK = """cp "$SHOAL_PROMPT_FILE" asked; echo '{"ranking": [1, 0]}'"""
JUDGES = """
  judge: {adapter: scripted, script: [{say: 'The last one is best: {"ranking": [2, 0, 1]}'}]}
  mute: {adapter: scripted, script: [{say: 'I like them all'}]}
  echo: {adapter: command, command: [sh, -c, 'cat $SHOAL_SYSTEM_PROMPT_FILE -; echo; echo "{\"ranking\": [1, 0]}"']}
personas:
  reader: {agent: echo, system_prompt: 'Judge of {{ step.name }}.'}
"""
CHOICES = """
steps:
  - {name: by-command, agent: lines, prompt: go, concurrency: 3, select: {by: command, command: 'wc -l < lines'}}
  - {name: by-size, agent: lines, prompt: go, concurrency: 3, select: {by: diff_size}}
  - {name: by-both, agent: lines, prompt: go, concurrency: 3, select: {by: [command, diff_size], command: 'test -s lines && test $(cat who) != 0'}}
  - name: by-contract
    agent: lines
    prompt: go
    concurrency: 3
    select: {by: contract}
    contract: {type: command, command: 'test $(cat who) = 1', on_failure: warn}
  - {name: by-agent, agent: lines, prompt: go, concurrency: 3, select: {by: agent, agent: judge, criteria: It is short.}}
  - {name: by-nobody, agent: lines, prompt: go, concurrency: 2, select: {by: command, command: 'exit 1'}}
  - {name: unjudged, agent: lines, prompt: go, concurrency: 2, select: {by: agent, agent: mute}}
  - {name: some-fail, agent: do, prompt: 'echo x > x; [ $SHOAL_WORKER_INDEX = 1 ]', concurrency: 2, select: {by: diff_size}}
  - {name: idle, agent: do, prompt: '[ $SHOAL_WORKER_INDEX = 0 ] || : > empty', concurrency: 2, select: {by: diff_size}}
  - {name: idle-too, agent: do, prompt: '[ $SHOAL_WORKER_INDEX = 0 ] || echo x > x', concurrency: 2, select: {by: command, command: 'true'}}
  - {name: tied, agent: tie, prompt: go, concurrency: 3, select: {by: [diff_size, agent], agent: clerk}}
  - {name: binary, agent: tie, prompt: go, concurrency: 3, select: {by: diff_size}, env: {BINARY: "1"}, output_artifacts: [who]}
  - {name: after-binary, needs: binary, agent: do, prompt: 'cp "$SHOAL_INPUTS_DIR/binary/who.txt" seen'}
  - {name: after, needs: by-agent, agent: do, prompt: 'cat who > seen; echo {{ steps.by-agent.selected }} >> seen'}
  - {name: briefed, agent: lines, prompt: 'do {{ run.pipeline }}', concurrency: 2, select: {by: agent, persona: reader, criteria: 'as {{ step.name }}'}}
  - {name: asked, needs: by-size, base: needs, agent: do, prompt: 'cat who > seen'}
  - {name: after-nobody, needs: by-nobody, agent: do, prompt: 'echo x > x'}
"""


@pytest.fixture(scope="module")
def choices(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of steps that choose from their workers."""
    repo = make_repo(tmp_path_factory.mktemp("choices") / "repo")
    return ran(repo, CHOICES, more=JUDGES, lines=LINES, tie=TIE, clerk=CLERK)


def ranking(done: Ran, step: str) -> list[tuple[int, bool, list[str]]]:
    return [(row["index"], row["eligible"], row["reasons"]) for row in done[step]["ranking"]]


def test_the_best_by_the_score_of_a_command_is_chosen(choices: Ran) -> None:
    assert choices["by-command"]["selected"] == 1
    assert [(index, reasons) for index, _, reasons in ranking(choices, "by-command")] == [
        (1, ["the command exited 0", "score 3"]),
        (2, ["the command exited 0", "score 2"]),
        (0, ["the command exited 0", "score 1"]),
    ]


def test_the_smallest_change_is_chosen(choices: Ran) -> None:
    assert choices["by-size"]["selected"] == 0
    assert [(index, reasons) for index, _, reasons in ranking(choices, "by-size")] == [
        (0, ["2 lines changed"]),
        (2, ["3 lines changed"]),
        (1, ["4 lines changed"]),
    ]


def test_who_changed_nothing_is_not_chosen_before_who_changed_something(choices: Ran) -> None:
    assert (choices["idle"]["selected"], choices["idle-too"]["selected"]) == (1, 1)
    assert ranking(choices, "idle")[1][2] == ["it changed nothing, which ranks behind any size"]
    assert ranking(choices, "idle-too")[1][2] == ["the command exited 0", "it changed nothing"]


def test_the_command_of_a_selection_is_told_as_what_it_is_and_not_as_a_contract(repo: Path) -> None:
    did = "seq 9; exit $(($(cat who) ? 3 : 0))"
    steps = f"steps: [{{name: a, command: 'echo $SHOAL_WORKER_INDEX > who', concurrency: 2, select: {{by: command, command: '{did}'}}}}]"
    (repo / "p.yaml").write_text(f"runtime: {{{CHEAP}}}\n{steps}\n")

    said = shoal_in(repo)("run", "p.yaml")
    kept = json.loads(shoal_in(repo)("status", "--json").out)["steps"][0]

    assert said.out.count("it cannot be chosen: the command of `select` did not pass: it exited with 3") == 2, said.out
    assert "contract" not in said.out
    assert [one["contracts"] for one in kept["worker_results"]] == [[], []]
    assert [row["reasons"] for row in kept["ranking"]] == [
        ["the command exited 0", "score 9"],
        ["the command did not pass: it exited with 3"],
    ]


def test_of_those_that_pass_the_smallest_is_chosen_and_the_rest_is_not_eligible(choices: Ran) -> None:
    assert choices["by-both"]["selected"] == 2
    assert [(index, is_eligible) for index, is_eligible, _ in ranking(choices, "by-both")] == [
        (2, True),
        (1, True),
        (0, False),
    ]
    assert choices.workers("by-both") == ["succeeded"] * 3, "not to be chosen is no failure"


def test_who_meets_the_contracts_is_chosen(choices: Ran) -> None:
    assert choices["by-contract"]["selected"] == 1
    assert ranking(choices, "by-contract")[0][2] == ["1 of 1 contracts met"]


def test_a_judge_chooses_and_who_comes_after_builds_on_that_work(choices: Ran) -> None:
    assert choices["by-agent"]["selected"] == 2
    assert [(index, reasons) for index, _, reasons in ranking(choices, "by-agent")] == [
        (2, ["place 1 by the judge"]),
        (0, ["place 2 by the judge"]),
        (1, ["place 3 by the judge"]),
    ]
    assert choices.shown("after", "seen").split() == ["2", "2"]


def test_the_judge_is_told_the_work_as_it_was_and_not_its_template(choices: Ran) -> None:
    told = choices.worker("briefed_judge")["output"]

    assert told.startswith("Judge of briefed.")
    assert "The task:\n> do p\n\nWhat counts: as briefed\n" in told


def test_the_tree_of_a_chosen_worker_can_be_asked_for(choices: Ran) -> None:
    assert choices.shown("asked", "seen") == "0"


def test_a_judge_sees_only_those_that_are_level(choices: Ran) -> None:
    asked = choices.shown("tied_judge", "asked")

    assert choices["tied"]["selected"] == 1
    assert [f"## Worker {index}" in asked for index in range(3)] == [True, True, False]


def test_a_binary_file_is_no_small_change_and_the_chosen_workers_artifacts_are_handed_on(choices: Ran) -> None:
    assert choices["binary"]["selected"] == 1
    assert choices.shown("after-binary", "seen") == "1"


def test_a_judge_is_told_the_task_as_the_workers_had_it(repo: Path) -> None:
    by = "concurrency: 2, select: {by: agent, agent: judge}"
    done = ran(
        repo,
        f"""
        steps:
          - {{name: same, agent: do, prompt: 'true; echo {{{{ input }}}} > $SHOAL_WORKER_INDEX', {by}}}
          - {{name: own, agent: do, prompt: 'echo {{{{ input }}}} > {{{{ worker.index }}}}', {by}}}
          - {{name: plain, command: 'echo {{{{ input }}}} > $SHOAL_WORKER_INDEX', {by}}}
        """,
        "--input",
        "hello",
        judge="""cp "$SHOAL_PROMPT_FILE" asked; echo '{"ranking": [1, 0]}'""",
    )

    asked = {step: done.shown(f"{step}_judge", "asked") for step in ("same", "own", "plain")}
    assert "The task:\n> true; echo hello > $SHOAL_WORKER_INDEX\n\n## Worker 0" in asked["same"]
    assert "The task:\nWorker 0:\n> echo hello > 0\n\nWorker 1:\n> echo hello > 1\n" in asked["own"]
    assert "The task:\n> echo hello > $SHOAL_WORKER_INDEX\n" in asked["plain"]
    assert done["same"]["selected"] == 1


def test_where_nobody_will_do_the_step_has_failed_and_says_so(choices: Ran) -> None:
    assert (choices.statuses["by-nobody"], choices["by-nobody"]["selected"]) == ("failed", None)
    assert choices["by-nobody"]["error"] == "no result meets what is asked of a winner"
    assert choices.statuses["after-nobody"] == "skipped"
    assert (choices.statuses["unjudged"], choices["unjudged"]["selected"]) == ("failed", None)
    assert choices["unjudged"]["error"] == "the judge gave no order that can be read"


def test_those_that_failed_are_ranked_last(choices: Ran) -> None:
    assert (choices.statuses["some-fail"], choices["some-fail"]["selected"]) == ("succeeded", 1)
    assert [(index, is_eligible) for index, is_eligible, _ in ranking(choices, "some-fail")] == [
        (1, True),
        (0, False),
    ]


def test_the_report_of_the_run_has_the_same_steps_as_that_of_status(choices: Ran, shoal: Shoal) -> None:
    told = json.loads(shoal("status", "--json", cwd=choices.repo).out)

    assert {one["step"] for one in told["steps"]} == set(choices.statuses), "the judges' own sessions among them"


VARIED = """
steps:
  - name: listed
    agent: look
    prompt: "Do it"
    concurrency: 4
    vary:
      - {model: small, temperature: 0.2}
      - {prompt: "Think of {{ worker.index }} things.", env: {STYLE: terse}}
      - {model: large, env: {STYLE: long}}
  - {name: columns, agent: look, prompt: Do it, concurrency: 2, vary: {temperature: [0, 1.5], model: same}}
"""
LOOK = 'cat > asked; echo "${SHOAL_MODEL:-none} ${SHOAL_TEMPERATURE:-none} ${STYLE:-none}"'


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of workers that differ."""
    return ran(make_repo(tmp_path_factory.mktemp("varied") / "repo"), VARIED, look=LOOK)


def outputs(done: Ran, step: str) -> list[str]:
    return [one["output"].strip() for one in done[step]["worker_results"]]


def test_each_worker_has_a_model_a_temperature_and_variables_of_its_own(varied: Ran) -> None:
    assert outputs(varied, "listed")[:3] == ["small 0.2 none", "none none terse", "large none long"]
    assert outputs(varied, "columns") == ["same 0 none", "same 1.5 none"]


def test_a_line_of_the_prompt_is_one_workers_own(varied: Ran) -> None:
    assert varied.shown("listed", "asked", 0) == "Do it"
    assert varied.shown("listed", "asked", 1) == "Do it\n\nThink of 1 things."


def test_with_fewer_differences_than_workers_they_come_round_again(varied: Ran) -> None:
    assert outputs(varied, "listed")[3] == outputs(varied, "listed")[0]


TASKS: dict[str, Any] = {
    "plan": {
        "tasks": [
            {"id": "api", "file": "api.txt"},
            {"id": "ui", "file": "ui.txt", "after": ["api"]},
            {"id": "docs", "file": "docs.txt"},
        ]
    }
}
MATRIX = """
steps:
  - name: axes
    agent: do
    prompt: 'echo {{ matrix.os }} {{ matrix.version }} {{ matrix.extra | default("-") }} > cell-{{ matrix.os }}-{{ matrix.version }}'
    strategy:
      matrix:
        os: [mac, win]
        version: [1, 2]
        include: [{os: mac, extra: more}, {os: bsd, version: 9}]
        exclude: [{os: win, version: 2}]
  - {name: after-axes, needs: axes, agent: do, prompt: 'ls cell-* > seen; echo {{ steps.axes.success_count }} >> seen'}
  - {name: patient, agent: do, prompt: 'echo x > {{ matrix.n }}; [ {{ matrix.n }} != 1 ]', strategy: {matrix: {n: [1, 2, 3]}, fail-fast: false, max-parallel: 1}}
  - {name: hurried, agent: do, prompt: 'echo x > {{ matrix.n }}; [ {{ matrix.n }} != 1 ]', strategy: {matrix: {n: [1, 2, 3]}, max-parallel: 1}}
  - {name: plan, agent: plan, prompt: go, output_artifacts: [{name: tasks, path: tasks.json}]}
  - name: items
    needs: plan
    agent: do
    prompt: 'ls > before-{{ task.id }}; echo {{ item.id }} > {{ task.file }}; echo {{ task.id }} > same-artifact.txt'
    output_artifacts: [{name: done, path: same-artifact.txt}]
    strategy: {type: matrix, items_source: plan/tasks, item_key: plan.tasks, dependency_key: after, max_concurrency: 2}
  - {name: after-items, needs: items, agent: do, prompt: 'echo x > x'}
  - {name: beside-items, needs: items, base: run, agent: do, prompt: 'cat "$SHOAL_INPUTS_DIR/items/done.txt"'}
  - name: broken-item
    needs: plan
    agent: do
    prompt: 'echo x > {{ task.file }}; [ {{ task.id }} != api ]'
    strategy: {items_source: plan/tasks, item_key: plan.tasks, dependency_key: after, fail-fast: false}
  - name: hurried-items
    needs: plan
    agent: do
    prompt: 'echo x > {{ task.file }}; [ {{ task.id }} != api ]'
    strategy: {items_source: plan/tasks, item_key: plan.tasks, dependency_key: after, max_concurrency: 1}
  - name: no-list
    needs: plan
    agent: do
    prompt: 'echo x > x'
    strategy: {items_source: plan/tasks, item_key: plan.nothing}
"""


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of matrices in both forms."""
    repo = make_repo(tmp_path_factory.mktemp("matrix") / "repo")
    plan = f"cat > tasks.json <<'END'\n{json.dumps(TASKS)}\nEND\n"
    return ran(repo, MATRIX, plan=plan)


def items(done: Ran, step: str) -> dict[str, str]:
    return {one["item"]: one["status"] for one in done[step]["worker_results"]}


def test_there_is_a_worker_for_each_combination_of_axes(matrix: Ran) -> None:
    cells = [("mac", "1", "more"), ("mac", "2", "more"), ("win", "1", "-"), ("bsd", "9", "-")]

    assert matrix["axes"]["total_workers"] == 4
    for index, (os, version, extra) in enumerate(cells):
        assert matrix.shown("axes", f"cell-{os}-{version}", index) == f"{os} {version} {extra}"


def test_who_comes_after_a_matrix_builds_on_all_of_its_work(matrix: Ran) -> None:
    assert matrix.shown("after-axes", "seen").split() == ["cell-bsd-9", "cell-mac-1", "cell-mac-2", "cell-win-1", "4"]


def test_the_first_failure_stops_a_matrix_unless_it_is_told_not_to(matrix: Ran) -> None:
    assert matrix.workers("patient") == ["failed", "succeeded", "succeeded"]
    assert (matrix.statuses["patient"], matrix["patient"]["on_failure"]) == ("degraded", "best_effort")
    assert matrix.workers("hurried") == ["failed", "cancelled", "cancelled"], "one at a time, so none else has begun"
    assert matrix.statuses["hurried"] == "failed"
    assert items(matrix, "hurried-items") == {"api": "failed", "ui": "cancelled", "docs": "cancelled"}


def test_there_is_a_worker_for_each_item_that_an_earlier_step_left(matrix: Ran) -> None:
    assert items(matrix, "items") == {"api": "succeeded", "ui": "succeeded", "docs": "succeeded"}
    for index, name in enumerate(("api", "ui", "docs")):
        assert matrix.shown("items", f"{name}.txt", index) == name


def test_an_item_waits_for_those_that_it_names_and_builds_on_their_work(matrix: Ran) -> None:
    assert "api.txt" in matrix.shown("items", "before-ui", 1).split()
    assert "api.txt" not in matrix.shown("items", "before-docs", 2).split()


def test_items_whose_work_does_not_go_together_are_told_to_who_would_build_on_them(matrix: Ran) -> None:
    assert matrix.statuses["after-items"] == "failed"
    assert "conflicts in same-artifact.txt" in matrix["after-items"]["error"]
    said = matrix.worker("beside-items")["output"].split()
    assert [word for word in said if word in ("api", "ui", "docs")] == ["api", "ui", "docs"], "texts in their order"


def test_what_needs_a_failed_item_is_skipped_and_says_why(matrix: Ran) -> None:
    assert items(matrix, "broken-item") == {"api": "failed", "ui": "skipped", "docs": "succeeded"}
    assert matrix.worker("broken-item", 1)["error"] == "dependency 'api' failed"
    assert matrix.statuses["broken-item"] == "degraded"


def test_items_that_are_not_there_fail_the_step_with_the_reason(matrix: Ran) -> None:
    assert matrix.statuses["no-list"] == "failed"
    assert "nothing" in matrix["no-list"]["error"]


def test_a_quorum_that_the_items_are_too_few_for_fails_with_the_reason(repo: Path) -> None:
    steps = """steps:
      - {name: plan, agent: do, prompt: "echo '[1, 2]' > n.json", output_artifacts: [n.json]}
      - {name: each, needs: plan, agent: do, prompt: 'echo x', on_failure: {quorum: 3}, strategy: {items_source: plan/n.json}}
    """

    done = ran(repo, steps)

    assert (done.statuses["each"], done["each"]["error"]) == ("failed", "a quorum of 3 needs more than 2 workers")


def test_the_log_tells_of_workers_that_never_began_as_the_report_does(matrix: Ran) -> None:
    kept = json.loads(shoal_in(matrix.repo)("status", "--json").out)

    told = {one["step"]: one["worker_results"] for one in kept["steps"]}
    assert [one["status"] for one in told["hurried"]] == ["failed", "cancelled", "cancelled"]
    assert told == {one["step"]: one["worker_results"] for one in matrix.report["steps"]}


@pytest.mark.parametrize("is_ordered", [False, True])
def test_no_more_run_at_once_than_the_matrix_allows(repo: Path, tmp_path: Path, is_ordered: bool) -> None:
    """A worker that finds more than one beside itself would say so; items that wait for others are held to it too."""
    inside = f"mkdir {tmp_path}/$SHOAL_WORKER_INDEX.in; ls -d {tmp_path}/*.in | wc -l; rmdir {tmp_path}/$SHOAL_WORKER_INDEX.in"
    listed = [{"id": number, "after": [0] if number == 5 else []} for number in range(6)]
    items = "items_source: plan.items, dependency_key: after" if is_ordered else "matrix: {n: [1, 2, 3, 4, 5, 6]}"

    done = ran(
        repo,
        f"""
        steps:
          - {{name: plan, agent: plan, prompt: go, output_artifacts: [items.json]}}
          - {{name: many, needs: plan, agent: do, prompt: '{inside}', strategy: {{{items}, max-parallel: 2}}}}
        """,
        runtime=CHEAP,
        plan=f"echo '{json.dumps(listed)}' > items.json",
    )

    assert done.workers("many") == ["no_changes"] * 6
    assert max(int(one) for one in outputs(done, "many")) <= 2
