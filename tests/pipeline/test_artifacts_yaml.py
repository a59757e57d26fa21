"""Artifacts in a file: what they mean, and every mistake at its line and column."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError

from shoal.model.artifact import Artifact, Injection, Type, refusal
from shoal.pipeline.fields import Shape
from shoal.pipeline.keys.artifacts import (
    ArtifactShape,
    InjectArtifacts,
    OutputArtifacts,
    injection_problems,
    list_declared,
)
from shoal.pipeline.problems import Position, Problem
from shoal.pipeline.tree import Node, find
from shoal.pipeline.validation_errors import shape_problems
from shoal.pipeline.yaml_reader import compose


class Step(Shape):
    output_artifacts: OutputArtifacts = Field(default_factory=list)
    inject_artifacts: InjectArtifacts = Field(default_factory=list)


def outputs(written: object) -> list[Artifact]:
    return [one.given for one in TypeAdapter[list[ArtifactShape]](OutputArtifacts).validate_python(written)]


def wrong(written: str) -> list[str]:
    tree = compose(written, "f.yaml").tree
    return [str(problem) for problem in sorted(shape_problems(Step, tree, "f.yaml"))]


def test_a_plain_text_is_a_path_and_its_ending_tells_the_type() -> None:
    assert outputs(["out/My Plan.json", "./notes.md", "log", "shot.PNG"]) == [
        Artifact(name="my-plan", path="out/My Plan.json", type=Type.JSON),
        Artifact(name="notes", path="notes.md", type=Type.MARKDOWN),
        Artifact(name="log", path="log", type=Type.TEXT),
        Artifact(name="shot", path="shot.PNG", type=Type.BINARY),
    ]


def test_all_keys_are_read() -> None:
    written = {"name": "plan", "path": "a/b.json", "type": "text", "required": False, "source": "file"}

    assert outputs([written]) == [Artifact(name="plan", path="a/b.json", type=Type.TEXT, required=False)]


def test_an_injection_may_rename() -> None:
    class Taking(Shape):
        inject_artifacts: InjectArtifacts

    found = Taking.model_validate({"inject_artifacts": [{"step": "a", "artifact": "plan", "as": "todo"}]})

    assert [one.given for one in found.inject_artifacts] == [Injection(step="a", artifact="plan", name="todo")]


OUT = "output_artifacts: "


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (OUT + "[/etc/passwd]", "1:20: '/etc/passwd': the path must be inside the workspace; write it from the top, without a leading `/`"),
        (OUT + "[{path: a/../../b}]", "1:27: 'a/../../b': the path must stay inside the workspace; remove the `..`"),
        (OUT + "[{path: x/.GIT/config}]", "1:27: 'x/.GIT/config': nothing below `.git` can be an artifact; choose another path"),
        (OUT + "[.shoal/ledger.db]", "1:20: '.shoal/ledger.db': nothing below `.shoal` can be an artifact; choose another path"),
        (OUT + '["a\\nb"]', "1:20: 'a\\nb': the path contains unprintable characters; choose another"),
        (OUT + "[out/]", "1:20: 'out/': the path must name a file, like plan.json"),
        (OUT + "['']", "1:20: '': the path must name a file, like plan.json"),
        (OUT + f"[{'x' * 256}]", f"1:20: '{'x' * 59}…: the path is too long; use at most 500 characters, and 255 bytes for each name"),
        (OUT + "[{name: My_Plan, path: x}]", "1:27: 'My_Plan' is not a valid artifact name (small letters, digits and dashes, at most 48); use `my-plan`"),
        (OUT + "[{path: x, type: jsn}]", "1:36: `type` cannot be 'jsn'; did you mean `json`?"),
        (OUT + "[{path: x, requird: true}]", "1:30: unknown key `requird`; did you mean `required`?"),
        (OUT + "[{path: x, source: stdout}]", "1:38: `source: stdout` is not supported yet in this version; use file"),
        (OUT + "[{name: x}]", "1:20: `path` is missing; add it"),
        (OUT + "[3]", "1:20: an item of `output_artifacts` must be a mapping, not 3"),
        (OUT + "[a.json, {name: a, path: b}]", "1:35: a second artifact named `a`; rename one"),
        (OUT + "[a.json, b/a.json]", "1:28: a second artifact named `a`; rename one"),
        (OUT + "[a.json, {name: b, path: ./a.json}]", "1:44: a second artifact at `a.json`; one of them is enough"),
        (OUT + "[patch.diff]", "1:20: `patch` is what Shoal calls a session's own patch; choose another `name`"),
        (OUT + "[{name: patch, path: x}]", "1:27: `patch` is what Shoal calls a session's own patch; choose another `name`"),
        (OUT + "[aggregate.json]", "1:20: `aggregate` is what Shoal calls the results of all workers of a step; choose another `name`"),
        (OUT + f"[{', '.join(f'a{n}' for n in range(65))}]", "1:19: 65 artifacts are too many; a step may declare at most 64"),
        ("inject_artifacts: [{step: a}]", "1:20: `artifact` is missing; add it"),
        ("inject_artifacts: [{step: a, artifact: b, as: C}]", "1:47: 'C' is not a valid artifact name (small letters, digits and dashes, at most 48); use `c`"),
        ("inject_artifacts: [{step: a, artifact: b, name: c}]", "1:43: another name is given with `as`"),
        ("inject_artifacts: [{step: a, artifact: b, optional: true}]", "1:43: `optional` is not supported yet in this version; remove it"),
        ("inject_artifacts: [{step: a, artifact: b}, {step: a, artifact: c, as: b}]", "1:71: a second artifact at `a/b`; give one another name with `as`"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_at_its_place(written: str, expected: str) -> None:
    assert wrong(written) == [f"f.yaml:{expected}"]


STEPS = """
a: {output_artifacts: [plan.json, {name: notes, path: x.md}]}
b: {inject_artifacts: [{step: a, artifact: %s}]}
"""


def problems(written: str, needs: list[str]) -> list[str]:
    tree = compose(written, "f.yaml").tree
    step = find(tree, "b")
    assert step is not None
    needed: dict[str, Node] = {need: node for need in needs if (node := find(tree, need)) is not None}

    def at(place: Position, what: str) -> Problem:
        return Problem("f.yaml", place, what)

    return [str(one) for one in injection_problems(step, needed, at)]


def test_only_what_a_needed_step_declares_can_be_injected() -> None:
    assert problems(STEPS % "plan", ["a"]) == []
    assert problems(STEPS % "plans", ["a"]) == [
        "f.yaml:3:44: step `a` leaves no artifact named 'plans'; did you mean `plan`?"
    ]
    assert problems(STEPS % "plan", []) == [
        "f.yaml:3:31: artifacts come from steps that this one needs, and `a` is none of them; add it to `needs`"
    ]


def test_names_are_read_from_a_tree_of_any_shape() -> None:
    tree = compose("output_artifacts: [a.json, 3, {name: b}, {path: [x]}, {path: 'c d.txt'}, null]", "f.yaml").tree

    assert list_declared(tree) == ["a", "b", "c-d"]
    assert list_declared(compose("{concurrency: 3, output_artifacts: [a]}", "f.yaml").tree) == ["a", "aggregate"]


@pytest.mark.deep
@given(st.text(max_size=30) | st.from_regex(r"[./a]{0,8}(\.git|\.shoal|\.\.)?[/a.]{0,4}", fullmatch=True))
def test_what_is_accepted_stays_inside_whatever_it_is(path: str) -> None:
    try:
        (found,) = outputs([path])
    except ValidationError:
        assert refusal(path)
        return

    parts = found.path.split("/")
    assert not found.path.startswith("/")
    assert found.path.isprintable()
    assert not {"..", ".git", ".shoal", "", "."} & set(parts)
    assert refusal(found.path) is None
