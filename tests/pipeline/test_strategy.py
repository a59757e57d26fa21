"""`strategy`, `vary` and `select` in a file: what they mean, and every mistake at its own line and column."""

import pytest

from shoal.model.artifact import Artifact, Type
from shoal.model.matrix import Matrix, Source
from shoal.model.plan import Variation
from shoal.model.select import Select
from shoal.pipeline.fields import Shape
from shoal.pipeline.keys.select import SelectShape, select_problems
from shoal.pipeline.keys.strategy import StrategyShape, matrix_problems
from shoal.pipeline.keys.vary import Vary, vary_problems
from shoal.pipeline.problems import Position, Problem
from shoal.pipeline.tree import Fields, plain
from shoal.pipeline.validation_errors import shape_problems
from shoal.pipeline.yaml_reader import compose

PLAN = """\
output_artifacts: [{name: tasks, path: out/tasks.json}, {path: list.json}, note.txt]
"""
LEFT = {"plan": [Artifact(name="tasks", path="out/tasks.json", type=Type.JSON)]}


class Keys(Shape):
    """The three keys, and those of a step that they look at."""

    strategy: StrategyShape | None = None
    vary: Vary | None = None
    select: SelectShape | None = None
    concurrency: int = 1
    on_failure: str | None = None
    contract: object = None


def tree(text: str) -> Fields:
    found = compose(text, "f.yaml").tree
    assert isinstance(found, Fields)
    return found


def keys(text: str) -> Keys:
    return Keys.model_validate(plain(tree(text)))


def wrong(text: str) -> list[str]:
    """Give all problems of a step, without the file's name."""

    def at(where: Position, what: str) -> Problem:
        return Problem("f", where, what)

    step = tree(text)
    needed = {"plan": tree(PLAN)}
    meaning = [*matrix_problems(step, needed, at), *vary_problems(step, at), *select_problems(step, at)]
    return [str(one).removeprefix("f:") for one in sorted({*shape_problems(Keys, step, "f"), *meaning})]


def matrix(text: str) -> Matrix:
    assert wrong(text) == []
    strategy = keys(text).strategy
    assert strategy is not None
    return strategy.to_matrix(LEFT)


def test_the_form_of_github_actions() -> None:
    found = matrix(
        "strategy: {matrix: {os: [a, b], py: [1], include: [{os: c}], exclude: [{os: a}]}, max-parallel: 2, fail-fast: false}"
    )

    assert (found.axes, found.most, found.is_fail_fast) == ({"os": ["a", "b"], "py": [1]}, 2, False)
    assert (found.include, found.exclude, found.source) == ([{"os": "c"}], [{"os": "a"}], None)


@pytest.mark.parametrize("name", ["max-parallel", "max_parallel", "max_concurrency"])
def test_the_bound_has_three_spellings(name: str) -> None:
    assert matrix(f"strategy: {{matrix: {{a: [1, 2]}}, {name}: 2, fail_fast: true}}").most == 2


@pytest.mark.parametrize("source", ["plan/out/tasks.json", "plan.tasks", "plan/tasks.json", "plan/tasks"])
def test_the_form_of_items(source: str) -> None:
    found = matrix(
        f"strategy: {{type: matrix, items_source: {source}, item_key: a.b, item_id_key: key, dependency_key: deps, max_concurrency: 3}}"
    )

    assert found == Matrix(
        source=Source(step="plan", artifact="tasks"), item_key="a.b", item_id_key="key", dependency_key="deps", most=3
    )


def test_an_artifact_without_a_name_is_found_by_its_file() -> None:
    assert wrong("strategy: {items_source: plan/list.json}") == []
    assert wrong("strategy: {items_source: plan.list}") == []
    assert wrong("strategy: {items_source: plan/note.txt}") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("strategy: {}", "1:11: `matrix` or `items_source` is missing; write one, like `matrix: {os: [linux, mac], python: [3, 4]}`"),
        ("strategy: {matrix: {a: [1]}, max-paralel: 2}", "1:30: unknown key `max-paralel`; did you mean `max-parallel`?"),
        ("strategy: {type: tree, matrix: {a: [1]}}", "1:18: `type` cannot be 'tree'; known: matrix"),
        ("strategy: {matrix: [1]}", "1:20: `matrix` must be a mapping of lists, like {os: [linux, mac], python: [3, 4]}, not a list; items of an earlier step come by `items_source`"),
        ("strategy: {matrix: {a: 1}}", "1:24: the axis `a` must be a list of values, not 1"),
        ("strategy: {matrix: {a: []}}", "1:24: the axis `a` is empty; write at least one value"),
        ("strategy: {matrix: {_a: [1]}}", "1:21: `_a` is not a valid axis name; use letters, digits, `-` and `_`"),
        ("strategy: {matrix: {items_source: plan.tasks}}", "1:21: `items_source` belongs beside `matrix`, not in it; move it out"),
        ("strategy: {matrix: {a: [1], include: {a: 1}}}", "1:38: `include` must be a list of combinations, not a mapping"),
        ("strategy: {matrix: {a: [1], include: [x]}}", "1:39: an entry of `include` is a combination, like {os: mac}, not 'x'"),
        ("strategy: {matrix: {a: [1], include: [{}]}}", "1:39: an entry of `include` is a combination, like {os: mac}, not nothing"),
        ("strategy: {matrix: {python: [1, 2], exclude: [{pyhton: 1}]}}", "1:48: no axis named `pyhton`; did you mean `python`?"),
        ("strategy: {matrix: {a: [1], exclude: [{a: 1}]}}", "1:20: the matrix has no combinations left; exclude fewer, or include one"),
        ("strategy: {matrix: {a: [1]}, max-parallel: 0}", "1:44: `max-parallel` must be at least 1, not 0"),
        ("strategy: {matrix: {a: [1]}, fail-fast: 3}", "1:41: `fail-fast` must be true or false, not 3"),
        ("strategy: {matrix: {a: [1]}, max-parallel: 2, max_concurrency: 2}", "1:47: `max-parallel` and `max_concurrency` are the same; keep one of them"),
        ("{strategy: {matrix: {a: [1]}, fail-fast: true}, on_failure: any}", "1:49: `on_failure` and `fail-fast` say the same in two ways; keep one of them"),
        ("strategy: {matrix: {a: [1]}, item_key: x}", "1:30: `item_key` does not go with `matrix`; take the items or the axes"),
        ("strategy: {items_source: /etc/passwd}", "1:26: `items_source` is a step and one of its artifacts, like `plan/tasks.json` or `plan.tasks`, not '/etc/passwd'"),
        ("strategy: {items_source: plan/../x}", "1:26: `items_source` is a step and one of its artifacts, like `plan/tasks.json` or `plan.tasks`, not 'plan/../x'"),
        ("strategy: {items_source: other/x.json}", "1:26: items come from a step that this one needs, and `other` is none of them; add it to `needs`"),
        ("strategy: {items_source: plan.task}", "1:26: step `plan` leaves no artifact 'task'; did you mean `tasks`?"),
        ("strategy: {items_source: plan.tasks, item_key: a..b}", "1:48: 'a..b' is not a dotted path; write it like `plan.tasks`"),
        ("strategy: {items_source: plan.tasks, stacked: true}", "1:38: `stacked` is not supported yet in this version; remove it"),
        ("strategy: {matrix: {a: [1]}}\nconcurrency: 2", "2:1: `concurrency` and `strategy.matrix` (line 1, column 12) exclude each other; keep one of them"),
        ("strategy: {items_source: plan.tasks}\nconcurrency: 2", "2:1: `concurrency` and `strategy.items_source` (line 1, column 12) exclude each other; keep one of them"),
        ("strategy: {items_source: plan.tasks, dependency_key: after}\non_failure: any", "2:1: items that wait for others (`dependency_key`) are all wanted, and some of them are never enough; use `fail_fast` or `best_effort`"),
        # vary
        ("vary: 3", "1:7: `vary` must be a list of differences, like [{temperature: 0.2}, {temperature: 0.9}], not 3"),
        ("{vary: [], concurrency: 2}", "1:8: `vary` must be a list of differences, like [{temperature: 0.2}, {temperature: 0.9}], not nothing"),
        ("{vary: [{modle: x}], concurrency: 2}", "1:10: unknown key `modle`; did you mean `model`?"),
        ("{vary: [{model: x}, {temperature: 3}], concurrency: 2}", "1:35: `temperature` must be at most 2.0, not 3"),
        ("{vary: [{model: ''}], concurrency: 2}", "1:17: the text is empty; write some, or remove the key"),
        ("{vary: [{env: {A B: x}}], concurrency: 2}", "1:16: `A B` is not a valid variable name; use letters, digits and `_`"),
        ("{vary: [{env: {SHOAL_X: x}}], concurrency: 2}", "1:16: `SHOAL_X` is set by Shoal itself; choose a name that does not start with SHOAL_"),
        ("{vary: {temperature: [1, 3]}, concurrency: 2}", "1:26: an item of `temperature` must be at most 2.0, not 3"),
        ("{vary: {modle: [a, b]}, concurrency: 2}", "1:9: unknown key `modle`; did you mean `model`?"),
        ("{vary: {model: [a, b], temperature: [1]}, concurrency: 2}", "1:8: `model` has 2 values and `temperature` has 1; write as many of each"),
        ("{vary: {model: a}, concurrency: 2}", "1:8: `vary` as a mapping has lists in it, like {temperature: [0.2, 0.9]}; write at least one value"),
        ("vary: [{model: a}, {model: b}]", "1:7: `vary` has 2 entries for 1 worker; raise `concurrency`, or take some out"),
        ("{vary: {model: [a, b, c]}, concurrency: 2}", "1:8: `vary` has 3 entries for 2 workers; raise `concurrency`, or take some out"),
        ("{vary: [{model: a}], strategy: {matrix: {a: [1]}}}", "1:8: `vary` goes with `concurrency`, and a matrix has values of its own; use `{{ matrix.… }}`"),
        # select
        ("{select: {by: tests}, concurrency: 2}", "1:15: `by` cannot be 'tests'; known: command, contract, diff_size, agent"),
        ("{select: {by: []}, concurrency: 2}", "1:15: `by` is empty; name one of command, contract, diff_size, agent"),
        ("{select: {by: [diff_size, diff_size]}, concurrency: 2}", "1:15: `by` names a criterion twice; remove one"),
        ("{select: {by: command}, concurrency: 2}", "1:10: `command` is missing; say what to run on each result, or select by something else"),
        ("{select: {by: command, command: ''}, concurrency: 2}", "1:33: `command` must be a text for the shell or a list of words, like \"pytest -q\" or [\"pytest\", \"-q\"]"),
        ("{select: {by: agent}, concurrency: 2}", "1:10: `agent` or `persona` is missing; say who judges"),
        ("{select: {by: agent, agent: a, persona: b}, concurrency: 2}", "1:32: both `agent` and `persona` are given; keep one of them"),
        ("{select: {by: diff_size, command: x}, concurrency: 2}", "1:26: `command` goes with `by: command` only; remove it or add that"),
        ("{select: {by: diff_size, criteria: x}, concurrency: 2}", "1:26: `criteria` goes with `by: agent` only; remove it or add that"),
        ("{select: {by: contract}, concurrency: 2}", "1:11: `by: contract` on a step without contracts; add one"),
        ("{select: {by: diff_size}}", "1:2: `select` picks one of several workers, and there is one; add `concurrency`, at least 2"),
        ("{select: {by: diff_size}, strategy: {matrix: {a: [1]}}}", "1:2: `select` picks one of several tries at the same work, which a matrix has not; remove it"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_at_its_place(text: str, expected: str) -> None:
    assert wrong(text) == [expected]


def test_entries_are_not_without_number() -> None:
    entries = ", ".join(["{a: 2}"] * 257)

    assert wrong(f"strategy: {{matrix: {{a: [1], exclude: [{entries}]}}}}") == [
        "1:38: `exclude` has 257 entries; there may be 256"
    ]


def test_differences_as_a_list() -> None:
    text = "{vary: [{model: m, temperature: 0.2, prompt: Be brief.}, {env: {A: 1, B: true}}], concurrency: 3}"

    assert wrong(text) == []
    assert keys(text).vary == (
        Variation(model="m", temperature=0.2, prompt="Be brief."),
        Variation(env={"A": "1", "B": "true"}),
    )


def test_differences_as_a_mapping_of_lists() -> None:
    text = "{vary: {model: [a, b], temperature: [0, 1], prompt: Both.}, concurrency: 2}"

    assert wrong(text) == []
    assert keys(text).vary == (
        Variation(model="a", temperature=0, prompt="Both."),
        Variation(model="b", temperature=1, prompt="Both."),
    )


def test_a_selection() -> None:
    text = "{select: {by: [agent, command], command: pytest -q, persona: judge, criteria: Clear., timeout: 2m}, concurrency: 3}"
    select = keys(text).select

    assert wrong(text) == []
    assert select is not None
    assert select.given == Select(
        by=("command", "agent"), command="pytest -q", persona="judge", criteria="Clear.", timeout=120
    )


def test_the_shapes_have_a_schema() -> None:
    schema = Keys.model_json_schema()

    assert "max-parallel" in schema["$defs"]["StrategyShape"]["properties"]
    assert set(schema["properties"]) >= {"strategy", "vary", "select"}
