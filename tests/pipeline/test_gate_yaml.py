"""The key `gate` in a file: what it means, and every mistake at its line and column."""

import pytest

from shoal.model.gate import Gate, GateVerdict
from shoal.pipeline.fields import Shape
from shoal.pipeline.keys.gates import MOST_CHARS, GateField, gate_problems
from shoal.pipeline.tree import Fields, plain
from shoal.pipeline.validation_errors import shape_problems
from shoal.pipeline.yaml_reader import compose


class Holder(Shape):
    """A step that has nothing but its gate."""

    gate: GateField | None = None


def gate(written: str) -> Gate | None:
    shape = Holder.model_validate(plain(compose(f"gate: {written}\n", "f.yaml").tree))
    return None if shape.gate is None else shape.gate.given


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Ship it?", Gate(message="Ship it?")),
        ("{message: Ship it?}", Gate(message="Ship it?")),
        ("{message: 'a {{ b }}', timeout: 1h30m, type: approval}", Gate(message="a {{ b }}", timeout=5400.0)),
        (
            "{message: x, timeout: 9, on_timeout: approve}",
            Gate(message="x", timeout=9.0, on_timeout=GateVerdict.APPROVE),
        ),
        ("null", None),
    ],
)
def test_a_gate_is_a_text_or_a_mapping(written: str, meant: Gate | None) -> None:
    assert gate(written) == meant


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("true", '1:7: `gate` must be a text or a mapping, like `gate: "Ship it?"`, not true'),
        ("[x]", '1:7: `gate` must be a text or a mapping, like `gate: "Ship it?"`, not a list'),
        ("' '", '1:7: the gate has no message; write what a person must answer, like `gate: "Ship it?"`'),
        ("{timeout: 1h}", "1:7: `message` is missing; add it"),
        ("{message: 3}", "1:17: `message` must be text, not 3; put it in quotes"),
        ("{mesage: x, message: x}", "1:8: unknown key `mesage`; did you mean `message`?"),
        ("{message: x, type: quiz}", "1:26: `type` cannot be 'quiz'; known: approval"),
        ("{message: x, timeout: soon}", "1:29: 'soon' is not a duration"),
        ("{message: x, timeout: 1h, on_timeout: aprove}", "1:45: `on_timeout` cannot be 'aprove'; did you mean `approve`?"),
        ("{message: x, on_timeout: reject}", "1:7: `on_timeout` says what happens after a `timeout`"),
        (f"{{message: {'x' * (MOST_CHARS + 1)}}}", f"1:17: a gate's message may have at most {MOST_CHARS} characters"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_at_its_place(written: str, expected: str) -> None:
    (problem,) = shape_problems(Holder, compose(f"gate: {written}\n", "f.yaml").tree, "f.yaml")

    assert str(problem).startswith(f"f.yaml:{expected}")


def test_what_is_about_agents_does_not_go_with_a_gate() -> None:
    step = compose("name: ship\nneeds: [a]\ngate: x\nprompt: x\nagent: y\ntimeout: 3\noptional: true\n", "f.yaml").tree
    assert isinstance(step, Fields)

    assert [str(problem) for problem in gate_problems(step, "f.yaml")] == [
        "f.yaml:4:1: `prompt` does not go with `gate`, which has no agent; remove it",
        "f.yaml:5:1: `agent` does not go with `gate`, which has no agent; remove it",
        "f.yaml:6:1: `timeout` belongs inside `gate`; move it there",
    ]


def test_an_editor_is_told_of_both_ways_to_write_it() -> None:
    kinds = Holder.model_json_schema()["properties"]["gate"]["anyOf"]

    assert {"type": "string"} in kinds
    assert {"$ref": "#/$defs/GateShape"} in kinds
