"""Combinations of keys either make sense or are refused at their position, with a way out."""

import pytest

from shoal.pipeline.load import parse
from shoal.pipeline.plan import plan
from shoal.pipeline.problems import BadDocument

AGENT = "agents: {w: {adapter: command, command: a}}\n"


def problems(written: str) -> list[str]:
    try:
        parse(written, "f.yaml")
    except BadDocument as error:
        return [str(problem).removeprefix("f.yaml:") for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("keys", "who", "way"),
    [
        ("agent: w, prompt: x, concurrency: 2", "has several workers", "like `steps.a.worker_results[0].branch`"),
        ("agent: w, prompt: x, strategy: {matrix: {n: [1, 2]}}", "has several workers", "or choose one by `select`"),
        ("gate: ok?", "is a gate", "name a step that it needs"),
    ],
)
def test_what_only_one_worker_has_is_refused_of_others(keys: str, who: str, way: str) -> None:
    text = f"{AGENT}steps:\n  - {{name: a, {keys}}}\n  - {{name: b, needs: [a], command: 'echo {{{{ steps.a.branch }}}}'}}\n"

    (found,) = problems(text)

    assert found.startswith(f"4:45: step `a` {who}, and no `branch` of its own")
    assert way in found


@pytest.mark.parametrize(
    "keys",
    ["concurrency: 2, select: {by: diff_size}", "concurrency: 1"],
)
def test_a_chosen_or_only_worker_speaks_for_its_step(keys: str) -> None:
    text = f"{AGENT}steps:\n  - {{name: a, agent: w, prompt: x, {keys}}}\n"
    used = "  - {name: b, needs: [a], command: 'echo {{ steps.a.branch }} {{ steps.a.exit_code }}'}\n"

    assert problems(text + used) == []


def test_a_loop_of_several_workers_needs_a_choice() -> None:
    text = f"{AGENT}steps:\n  - {{name: a, agent: w, prompt: x, concurrency: 2, loop: {{until: 'true'}}}}\n"

    (found,) = problems(text)

    what = "`loop`: each round builds on the one before, and nobody says on which of its several workers"
    assert found == f"3:52: {what}; give it a `select`, or take `concurrency` out"
    assert problems(text.replace("loop:", "select: {by: diff_size}, loop:")) == []


@pytest.mark.parametrize(
    ("text", "place", "way"),
    [
        ("agents: {w: {adapter: command, command: [sh, -c, 'echo {{ matrix.t }}']}}\nsteps: [{name: a, agent: w, prompt: x}]\n", "1:59", "an agent's command is the same for all steps"),
        ("steps: [{name: a, command: b, base: '{{ steps.b.branch }}'}]\n", "1:41", "name the step in `needs`"),
        ("runtime: {setup: 'echo {{ input }}'}\nsteps: [{name: a, command: b}]\n", "1:27", "set-up is made once"),
        ("steps: [{name: a, command: b, setup: {run: ['echo {{ run.id }}']}}]\n", "1:54", "set-up is made once"),
        ("runtime: {merge: {strategy: auto, verify: 'test {{ input }}'}}\nsteps: [{name: a, command: b}]\n", "1:52", "`verify` is the same"),
    ],
)  # fmt: skip
def test_a_place_where_nothing_is_filled_in_is_refused(text: str, place: str, way: str) -> None:
    (found,) = problems(text)

    assert found.startswith(f"{place}: `")
    assert "is not filled in here" in found
    assert way in found


def test_braces_of_other_languages_are_left_as_they_are() -> None:
    text = "runtime: {setup: \"docker ps --format '{{.Names}}'\"}\nsteps: [{name: a, command: b}]\n"

    assert problems(text) == []


def test_a_step_without_a_prompt_says_what_to_write() -> None:
    text = f"{AGENT}personas: {{p: {{agent: w}}}}\nsteps:\n  - {{name: a, persona: p, concurrency: 3}}\n"

    (found,) = problems(text)

    hint = 'like `prompt: Fix the tests`, or `prompt: "{{ input }}"` for what `--input` says'
    assert found == f"4:5: `prompt` or `exec` is missing; say what the agent is to do, {hint}"


CONFLICTING = "steps: [{name: a, command: b}, {name: b, command: b}, {name: c, needs: [a, b], command: b, %s}]\n"


@pytest.mark.parametrize(("keys", "rule"), [("on_conflict: ours", "ours"), ("on_conflict: theirs", "theirs"), ("on_conflict: report", "report"), ("base: auto", "report")])  # fmt: skip
def test_a_step_has_a_rule_for_needs_that_conflict(keys: str, rule: str) -> None:
    made = plan(parse(CONFLICTING % keys, "p.yaml"), environ={})

    assert [stage.on_conflict for stage in made.steps] == ["report", "report", rule]


@pytest.mark.parametrize("kind", ["gate: Go?", "pipeline: q"])
def test_a_gate_and_a_pipeline_have_the_rule_too(kind: str) -> None:
    last = f"{{name: c, needs: [a, b], on_conflict: ours, {kind}}}"
    outer = f"  - {{name: p, steps: [{{name: a, command: b}}, {{name: b, command: b}}, {last}]}}\n"

    assert problems(f"pipelines:\n{outer}  - {{name: q, steps: [{{name: x, command: b}}]}}\n") == []


@pytest.mark.parametrize("rule", ["agent", "redo"])
def test_a_rule_that_needs_an_agent_is_refused_between_steps(rule: str) -> None:
    (found,) = problems(CONFLICTING % f"on_conflict: {rule}")

    what = f"1:105: `on_conflict: {rule}` needs an agent, and none works between steps; use `ours` or `theirs`"
    assert found == f"{what}, or let one of the needs need the other, so that its agent sees that work"


def test_a_misspelt_rule_between_steps_names_the_right_one() -> None:
    (found,) = problems(CONFLICTING % "on_conflict: their")

    assert found.startswith("1:105: `on_conflict` cannot be 'their'; did you mean `theirs`")


@pytest.mark.parametrize("base", ["run", "HEAD~1"])
def test_a_rule_between_steps_without_merged_needs_is_refused(base: str) -> None:
    (found,) = problems(CONFLICTING % f"base: {base}, on_conflict: ours")

    what = f"`on_conflict` has no effect with `base: {base}`, which merges no work of needs"
    assert found.endswith(f": {what}; remove one of them")


@pytest.mark.parametrize("needs", ["", "needs: a, ", "needs: [a], ", "depends_on: [a, a], "])
def test_a_rule_between_steps_with_too_few_needs_is_refused(needs: str) -> None:
    (found,) = problems(f"steps:\n  - {{name: a, command: b}}\n  - {{name: c, {needs}on_conflict: ours, command: b}}\n")

    what = "`on_conflict` has no effect on a step with fewer than two needs; remove it"
    assert found == f"3:{15 + len(needs)}: {what}, or write it under `runtime.merge` for the end of the run"


def test_a_name_in_the_path_of_an_artifact_is_checked() -> None:
    text = f"{AGENT}steps:\n  - {{name: a, agent: w, prompt: x, strategy: {{matrix: {{t: [a]}}}}, output_artifacts: ['r-{{{{ matrix.u }}}}.json']}}\n"

    (found,) = problems(text)

    assert "the matrix has no axis `u`" in found
