"""Templates: results, used names, and that only data can be reached."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.pipeline.templates.template import (
    BadTemplate,
    is_plain,
    is_true,
    names,
    render_template,
    syntax_problem,
    uses,
)

CONTEXT: Mapping[str, object] = {
    "input": "Fix it",
    "task": {"id": "a", "files": ["x.py", "y.py"], "count": 2},
    "steps": {"plan": {"status": "succeeded", "output": "a plan", "success_count": 1, "branch": None}},
    "artifacts": {"plan": {"todo": [{"id": "a"}, {"id": "b"}], "note": "{{ input }}"}},
    "loop": {"round": 2, "previous": {"output": "no"}},
    "worker": {"index": 0, "count": 3},
    "items": {"items": 5},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
HOSTILE = (
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''['__cl' ~ 'ass__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ self.__init__ }}",
    "{{ namespace() }}",
    "{{ input.format(input) }}",
    '{{ "{0.__class__}".format(input) }}',
    "{{ '%s'|format(input) }}",
    "{{ input.__class__ }}",
    "{{ task.pop('id') }}",
    "{{ task.items.__self__ }}",
    "{{ (1).real }}",
    "{{ [].append(1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'x' as y %}",
    "{% from 'x' import y %}",
    "{% extends 'x' %}",
    "{% block a %}{% endblock %}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "{% call input.lower() %}{% endcall %}",
    "{% set a = 1 %}",
    "{% set a %}x{% endset %}",
    "{% with a = 1 %}{% endwith %}",
    "{% filter upper %}x{% endfilter %}",
    "{% autoescape true %}{% endautoescape %}",
    "{% for a in task.files recursive %}{% endfor %}",
    "{{ range(*task.files) }}",
    "{{ input(1) }}",
    "{{ input.lower()() }}",
)
GREEDY = (
    "{% for i in range(1000000000) %}x{% endfor %}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ 10 ** 1000000000 }}",
    "{{ 'a' * 1000000000 }}",
    "{{ [1] * 1000000000 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ input|indent(1000000000) }}",
    "{{ big|replace('a', big) }}",
    "{{ big.replace('a', big) }}",
    "{{ big ~ big ~ big }}",
    "{{ big + big + big }}",
    "{{ [big, big, big]|join(big) }}",
    "{{ [big, big, big]|tojson }}",
    "{{ 99999999 " + "* 99999999" * 40 + " }}",
    "{% for i in range(1000) %}" * 5 + "{% endfor %}" * 5,
    "{% for i in range(1000) %}{% for j in range(1000) %}{{ '' }}{% endfor %}{% endfor %}",
    "{% for i in range(1000) %}{% if big == big ~ '' %}{% endif %}{% endfor %}",
    "{% for i in range(1000) %}{{ big }}{% endfor %}",
    "{% for i in many %}{% for j in many %}{% endfor %}{% endfor %}",
    "{% for i in range(1000) %}{% if wide == other %}{% endif %}{% endfor %}",
    "{% for i in range(1000) %}{{ wide|unique|length }}{{ big.split('a')|length }}{% endfor %}",
    "{{ knot }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "not " * 5000 + "1 }}",
    "{{ " + "9" * 5000 + " }}",
    "{{ 'x' }}" + "y" * (256 * 1024),
)


def wrong(text: str, context: Mapping[str, object] = CONTEXT) -> str:
    with pytest.raises(BadTemplate) as caught:
        render_template(text, context)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Do: {{ input }}\n", "Do: Fix it\n"),
        ("{{ task.id }} of {{task['count']}}", "a of 2"),
        ("{{ task.files }}", '["x.py", "y.py"]'),
        ("{{ task }}", '{"id": "a", "files": ["x.py", "y.py"], "count": 2}'),
        ("{{ worker.count > 2 }}, {{ steps.plan.branch }}.", "true, ."),
        ("{{ artifacts.plan.todo[1].id }}{{ artifacts.plan.todo.0.id }}", "ba"),
        ("{% for one in artifacts.plan.todo %}{{ loop.index }}/{{ loop.round }}:{{ one.id }} {% endfor %}", "1/2:a 2/2:b "),
        ("{% for k, v in task.items() if k != 'files' %}{{ k }}={{ v }};{% endfor %}", "id=a;count=2;"),
        ("{% for one in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% if worker.index == 1 %}a{% elif worker.index == 0 %}b{% else %}c{% endif %}", "b"),
        ("{% raw %}{{ input }}{% endraw %}{{ '}}' }}", "{{ input }}}}"),
        ("{{ nothing|default('x') }}{{ task.nothing|d('y') }}{{ steps.plan.branch|default('z') }}", "xyz"),
        ("{{ nothing is defined }}{{ input is defined }}{{ task.no is undefined }}", "falsetruetrue"),
        ("{{ artifacts.plan.todo|map(attribute='id')|join(', ') }}", "a, b"),
        ("{{ input|upper|replace('FIX', 'x')|trim }} {{ input.split()[0] }} {{ input[:3] }}", "x IT Fix Fix"),
        ("{{ worker.index + 1 }}/{{ worker.count }} {{ 7 // 2 }} {{ -1 }} {{ 7 % 4 }}", "1/3 3 -1 3"),
        ("{{ 'a' if worker.index else 'b' }}{{ 'x' if false }}", "b"),
        ("{{ 'x.py' in task.files and not ('z' in input) }}", "true"),
        ("{{ items.items }} {{ items.items() }}", '5 [["items", 5]]'),  # data first: never a method by accident
        ("{{ \"it's\"|quote }}", "'it'\"'\"'s'"),
        ("{{ {'a': [1, none]}|tojson }}", '{"a": [1, null]}'),
        ("${#list} {#a} {{ input }}", "${#list} {#a} Fix it"),
    ],
)  # fmt: skip
def test_data_is_put_in(text: str, expected: str) -> None:
    assert render_template(text, CONTEXT) == expected
    assert syntax_problem(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ inptu }}", "no name `inptu` here; did you mean `input`?"),
        ("{{ steps.plam.output }}", "no `plam` in `steps`; did you mean `plan`?"),
        ("{{ steps['plan'].outptu }}", "no `outptu` in `steps.plan`; did you mean `output`?"),
        ("{{ artifacts.plan.todo[7] }}", "no `7` in `artifacts.plan.todo`, which is a list of 2, counted from 0"),
        ("{{ input.text }}", "no `text` in `input`, which is a text; take that alone"),
        ("{{ input|shout }}", "no filter named `shout`; did you mean `sort`?"),
        ("{{ input is happy }}", "no test named `happy`; known: boolean, defined, even, false, mapping, none, number, odd, sequence, string, true, undefined"),
        ("{{ input.shout() }}", "no `shout()` in templates; did you mean `count`?"),
        ("{{ task.upper() }}", "a mapping has no `upper()`; known: get, items, keys, values"),
        ("{{ task + 1 }}", "a mapping cannot be reckoned with; use the filter `int`"),
        ("{{ 1 / 0 }}", "`/` does not work on a number, a number; check the values"),
        ("{{ 1 < 'a' }}", "the comparison does not work on a number, a text; check the values"),
        ("{% for c in input %}{% endfor %}", "a text has no items to go through; use `.splitlines()` for its lines"),
        ("{% for a, b in task.files %}{% endfor %}", "the loop takes 2 parts of each item, and a text has not so many"),
        ("{% include 'x' %}", "`{% include %}` is not part of templates; there are `{{ … }}`, `{% if %}` and `{% for %}`"),
        ("{{ 2 ** 3 }}", "`**` is not part of templates; there are `{{ … }}`, `{% if %}` and `{% for %}`"),
        ("{{ a._b }}", "`_b` is out of reach, as all names that start with `_` are; use another"),
        ("{{ always() }}", "`always()` cannot be called in templates; only `range()` can"),
        ("{{ a && b }}", "the template cannot be read: unexpected char '&' at 5; write `and`, `or` and `not`"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_the_nearest_right_thing(text: str, expected: str) -> None:
    assert wrong(text) == expected


def test_what_cannot_be_read_is_told_with_its_line() -> None:
    with pytest.raises(BadTemplate) as caught:
        render_template("a\nb {{ c \n", {})

    assert caught.value.at is not None
    assert (caught.value.at.line, isinstance(caught.value, BadInput)) == (2, True)
    assert "{% raw %}" in str(caught.value)
    assert "endif" in (syntax_problem("{% if x %}") or "")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_template_reaches_nothing(text: str) -> None:
    assert wrong(text)


@pytest.mark.parametrize("text", GREEDY)
def test_a_greedy_template_is_ended_soon(text: str) -> None:
    knot: list[object] = []
    knot.append(knot)
    wide = {"wide": [[one] for one in range(50_000)], "other": [[one] for one in range(50_000)]}
    begun = time.process_time()

    assert wrong(text, {"input": "x", "big": "a" * 600_000, "many": list(range(5000)), "knot": knot, **wide})
    assert time.process_time() - begun < 10


def test_an_object_is_no_data() -> None:
    class Thing:
        secret = "s"

    assert "no data" in wrong("{{ thing }}", {"thing": Thing()})
    assert "no data" in wrong("{{ thing.secret }}", {"thing": Thing()})
    assert "no data" in wrong("{{ thing['secret'] }}", {"thing": Thing()})


def test_a_mapping_of_any_kind_is_data() -> None:
    assert render_template("{{ a.b }} {{ a }}", {"a": MappingProxyType({"b": 1})}) == '1 {"b": 1}'


@given(st.text())
def test_a_text_without_braces_is_unchanged(text: str) -> None:
    plain = text.replace("{", "")

    assert is_plain(plain)
    assert render_template(plain, {}) == plain


@given(JSON)
def test_data_comes_out_as_json_and_texts_as_they_are(value: object) -> None:
    expected = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)

    assert render_template("<{{ value }}>", {"value": value}) == f"<{expected}>"


@given(st.text().map(lambda text: f"{{{{ {text} }}}} {{% if {text} %}} {{{{ input }}}}"))
def test_data_is_never_read_as_a_template(value: str) -> None:
    context = {"value": value, "all": [value], "input": "SEEN"}

    assert render_template("{{ value }}|{{ all.0 }}", context) == f"{value}|{value}"
    assert json.loads(render_template("{{ all }}", context)) == [value]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["{{", "}}", "{%", "%}", " ", "if", "for", "in", "endif", "endfor", "input", ".", "a", "(", ")", "[", "]", "|", "lower", "'", "\\", "0", "-", "==", "is", "not", "defined", "loop", "range", "raw", "endraw", "\n", ",", "{#"]), max_size=25))  # fmt: skip
def test_any_text_is_rendered_or_refused_by_a_sentence(parts: list[str]) -> None:
    text = "".join(parts)
    for use in (render_template, is_true):
        with contextlib.suppress(BadTemplate):
            use(text, {"input": "x", "a": [1]})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", set()),
        ("{{ steps.plan.output }} {{ artifacts['plan']['todo'] }} {{ input }}", {"steps.plan.output", "artifacts.plan.todo", "input"}),
        ("{{ steps.plan.worker_results[0].output }}", {"steps.plan.worker_results.0.output"}),
        ("{% for one in artifacts.plan.todo %}{{ one.id }}{{ loop.index }}{{ loop.round }}{% endfor %}", {"artifacts.plan.todo", "loop.round"}),
        ("{% for a, b in x %}{{ a }}{{ b }}{% else %}{{ a }}{% endfor %}", {"x", "a"}),
        ("{{ input.strip().upper() }} {{ input|replace(task.id, item) }}", {"input", "task.id", "item"}),
        ("{{ steps[item].output }}", {"steps", "item"}),
        ("{% if a == 'b' %}{{ c }}{% endif %}{{ range(n) }}", {"a", "c", "n"}),
        ("{% raw %}{{ a }}{% endraw %}", set()),
    ],
)  # fmt: skip
def test_names_are_found(text: str, expected: set[str]) -> None:
    assert names(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ steps.write-tests.output }}", {"steps.write-tests.output"}),
        ("{{ steps.task-1.output }} {{ steps.2nd-try-01.output }}", {"steps.task-1.output", "steps.2nd-try-01.output"}),
        ("{{ steps.fix-and-test.status == 'x' and steps.not-in.status }}", {"steps.fix-and-test.status", "steps.not-in.status"}),
        ("{{ artifacts.my-plan.to-do[0].a }}", {"artifacts.my-plan.to-do.0.a"}),
        ("{{ steps.a-b.artifacts.to-do }}", {"steps.a-b.artifacts.to-do"}),
        ("{{ steps.a-b.success_count-1 }}", {"steps.a-b.success_count"}),
        ("{{ steps.a.fail_count - steps.b.fail_count }}", {"steps.a.fail_count", "steps.b.fail_count"}),
        ("{{ worker.index-1 }} {{ matrix.n-1 }} {{ matrix.n - worker.index }}", {"worker.index", "matrix.n"}),
        ("{{ matrix.python-version }}", {"matrix.python-version"}),
        ("{% for x in steps.a-b.worker_results -%} {{ x.output }} {%- endfor %}", {"steps.a-b.worker_results"}),
        ("{{ 'x' if steps.a is defined }}{{ 'a' in artifacts.b.c and 'd' in artifacts.b-c.d }}", {"steps.a", "artifacts.b.c", "artifacts.b-c.d"}),
        ("{{ steps.a }}{{- steps.b -}}{{ steps.c if steps.d else steps.e }}", {"steps.a", "steps.b", "steps.c", "steps.d", "steps.e"}),
    ],
)  # fmt: skip
def test_a_name_may_have_dashes(text: str, expected: set[str]) -> None:
    assert names(text) == expected


def test_a_step_with_dashes_is_put_in() -> None:
    context = {"steps": {"write-tests": {"output": "x", "fail_count": 3}}, "matrix": {"n": 3, "os-name": "mac"}}

    assert render_template("{{ steps.write-tests.output }}{{ steps.write-tests.fail_count-1 }}", context) == "x2"
    assert render_template("{{ matrix.n-1 }}{{ matrix.os-name }}{{ matrix.n -1 }}", context) == "2mac2"
    assert is_true("steps.write-tests.output == 'x'", context)
    assert uses("a {{ steps.write-tests.output }}")[0].at.column == 6
    assert wrong("{{ steps.write-test.output }}", context) == "no `write-test` in `steps`; did you mean `write-tests`?"


def test_a_use_has_its_place() -> None:
    found = {use.path: (use.at.line, use.at.column) for use in uses("one {{ a }}\n two {{ b.c }} {{ d ['e'] }}")}

    assert found == {"a": (1, 8), "b.c": (2, 9), "d.e": (2, 19)}


def test_what_is_asked_for_first_is_optional() -> None:
    found = uses("{% if a.b is defined %}{{ a.b.c }}{% endif %}{{ d|default(e) }}{{ f }}")

    assert {use.path for use in found if use.is_optional} == {"a.b", "a.b.c", "d"}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("steps.plan.status == 'succeeded'", True),
        ("{{ steps.plan.status == 'succeeded' }}", True),
        ("  {{ steps.plan.status != 'succeeded' }}\n", False),
        ("steps.plan.success_count >= 1 and input", True),
        ("not loop.previous.output", True),
        ("loop.previous.output", False),
        ("'false'", False),
        ("'0'", False),
        ("''", False),
        ("'No'", False),
        ("'nope'", True),
        ("[]", False),
        ("[0]", True),
        ("false", False),
        ("none", False),
        ("nothing is defined", False),
        (True, True),
        (False, False),
    ],
)
def test_a_condition_holds_or_not(condition: str | bool, expected: bool) -> None:
    assert is_true(condition, CONTEXT) is expected


@pytest.mark.parametrize(
    "condition", ["", "{{ a }} == 'b'", "{{ a }}{{ b }}", "a }} b", "{% if a %}b{% endif %}", "a b", "{{ }}"]
)
def test_a_condition_is_one_expression(condition: str) -> None:
    assert syntax_problem(condition, is_condition=True)
    with pytest.raises(BadTemplate):
        is_true(condition, {"a": 1, "b": 2})


def test_a_condition_names_what_it_uses() -> None:
    found = uses("a.b == 'x' or\n c", is_condition=True)

    assert [(use.path, use.at.line, use.at.column) for use in found] == [("a.b", 1, 1), ("c", 2, 2)]


def test_jinja_is_imported_only_for_templates() -> None:
    code = "import sys; from shoal.pipeline.templates.template import render_template, names; render_template('a', {}); names('a'); assert 'jinja2' not in sys.modules"

    subprocess.run([sys.executable, "-c", code], check=True)
