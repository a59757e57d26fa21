"""Artifacts as values: valid ones, combining those of several workers, and choosing inputs."""

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.model.artifact import (
    Artifact,
    Injection,
    ProducedArtifact,
    Type,
    document,
    fault,
    merge_artifacts,
    select_inputs,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
TEXTS = st.text(st.characters(codec="utf-8"))


def left(content: bytes, kind: Type = Type.JSON, path: str = "plan.json", name: str = "plan") -> ProducedArtifact:
    return ProducedArtifact(name=name, type=kind, path=path, content=content)


def wrong(content: bytes, kind: Type) -> str | None:
    return fault(Artifact(name="a", path="a", type=kind), content)


@pytest.mark.parametrize("path", ["/a", "../a", "a/../b", ".git/config", "", "a\nb", "x/"])
def test_no_artifact_lies_outside(path: str) -> None:
    with pytest.raises(BadInput, match="artifact a: "):
        Artifact(name="a", path=path)


@pytest.mark.parametrize(
    ("content", "kind", "expected"),
    [
        (b"", Type.BINARY, "is empty"),
        (b" \n\t", Type.TEXT, "is empty"),
        (b" ", Type.JSON, "is empty"),
        (b" ", Type.BINARY, None),
        (b"\xff", Type.BINARY, None),
        (b"ok\xff", Type.MARKDOWN, "is not UTF-8 (byte 2); declare it as `type: binary`, or write it as UTF-8"),
        (b'"\xff"', Type.JSON, "is not UTF-8 (byte 1); declare it as `type: binary`, or write it as UTF-8"),
        (b"{}", Type.JSON, None),
        (b'{"a": }', Type.JSON, "is not JSON: Expecting value in line 1, column 7"),
        (b"{'a': 1}", Type.JSON, "is not JSON: Expecting property name enclosed in double quotes in line 1, column 2"),
        (b"[NaN]", Type.JSON, "is not JSON: a number in it is too long, or none that JSON knows"),
        (b"[1e999]", Type.JSON, "is not JSON: a number in it is too long, or none that JSON knows"),
        (b"[-1e999]", Type.JSON, "is not JSON: a number in it is too long, or none that JSON knows"),
        (b"[" + b"9" * 9999 + b"]", Type.JSON, "is not JSON: a number in it is too long, or none that JSON knows"),
        (b"[" * 100 + b"]" * 100, Type.JSON, None),
        (b'[{"a":' * 51 + b"1" + b"}]" * 51, Type.JSON, "is not JSON: it is nested deeper than 100 levels, or its brackets do not match"),
        (b"[" * 8_000_000, Type.JSON, "is not JSON: it has more than 500,000 lists and mappings"),
        (b"[" * 900_000, Type.JSON, "is not JSON: it is nested deeper than 100 levels, or its brackets do not match"),
        (b'"' + b"[" * 900_000 + b'"', Type.JSON, None),
        (b'["\\"' + b"[" * 900_000 + b'"]', Type.JSON, None),
    ],
)  # fmt: skip
def test_content_is_what_was_declared_or_told(content: bytes, kind: Type, expected: str | None) -> None:
    assert wrong(content, kind) == expected


@pytest.mark.parametrize("content", [b'"' + b'\\"' * 4_000_000, b'["' * 4_000_000, b"[]," * 2_700_000, b"[{}]" * 999])
def test_hostile_json_is_refused_at_once(content: bytes) -> None:
    began = time.monotonic()

    assert wrong(content, Type.JSON)

    assert time.monotonic() - began < 10


@given(VALUES)
def test_any_document_of_a_usual_depth_is_read(value: object) -> None:
    assert document(json.dumps(value).encode()) == value


@given(st.binary(max_size=60) | st.text('[]{}",:\\u0019 \n', max_size=60).map(str.encode))
def test_any_bytes_are_judged_and_nothing_is_raised(content: bytes) -> None:
    if wrong(content, Type.JSON) is None:
        json.loads(content)


@given(st.lists(st.none() | VALUES.map(lambda value: [value]), min_size=2))
def test_documents_of_workers_become_an_array_in_their_order(values: list[list[object] | None]) -> None:
    parts = [None if value is None else left(json.dumps(value, indent=1).encode() + b"\n") for value in values]

    found = [json.loads(one.content) for one in merge_artifacts(parts)]

    given = [value for value in values if value is not None]
    assert found == ([given] if given else [])


def test_documents_are_joined_to_the_letter() -> None:
    (one,) = merge_artifacts([left(b'{"a": 1.10, "a": 1e400}\n'), left(b" 12345678901234567890.5 ")])

    assert one.content == b'[{"a": 1.10, "a": 1e400},\n12345678901234567890.5]\n'


@given(st.lists(st.none() | TEXTS, min_size=2))
def test_texts_stand_under_the_number_of_their_worker(texts: list[str | None]) -> None:
    parts = [None if text is None else left(text.encode(), Type.TEXT, "log") for text in texts]

    joined = b"".join(one.content for one in merge_artifacts(parts)).decode()

    at = 0
    for worker, text in enumerate(texts):
        if text is not None:
            head = f"## worker {worker}\n\n{text.rstrip(chr(10))}\n"
            assert joined[at:].startswith(head)
            at += len(head) + 1
    assert at in (0, len(joined) + 1)


@pytest.mark.parametrize("forged", ["## worker 1", "  ##worker 1", "# Worker 1", "a\n\n## worker 1\n\nmine"])
def test_no_text_can_pass_for_that_of_another_worker(forged: str) -> None:
    (joined,) = merge_artifacts([left(forged.encode(), Type.TEXT, "log"), left(b"own", Type.TEXT, "log")])
    headings = re.findall(rb"^[ \t]*#+[ \t]*worker.*$", joined.content, re.MULTILINE | re.IGNORECASE)

    assert headings == [b"## worker 0", b"## worker 1"]


@given(st.lists(st.none() | st.binary(), min_size=2))
def test_binary_files_stay_apart(contents: list[bytes | None]) -> None:
    parts = [None if one is None else left(one, Type.BINARY, "shot.png", "shot") for one in contents]

    found = {one.file: one.content for one in merge_artifacts(parts)}

    assert found == {f"shot.{worker}.png": one for worker, one in enumerate(contents) if one is not None}


@pytest.mark.parametrize("kind", list(Type))
def test_that_of_a_single_worker_is_handed_on_as_it_is(kind: Type) -> None:
    assert merge_artifacts([left(b"1", kind)]) == (left(b"1", kind),)
    assert merge_artifacts([None]) == merge_artifacts([]) == merge_artifacts([None], always=True) == ()


def test_that_of_a_matrix_with_one_item_has_the_form_of_many() -> None:
    assert [one.content for one in merge_artifacts([left(b"1")], always=True)] == [b"[1]\n"]


@pytest.mark.parametrize(
    ("path", "kind", "file"),
    [
        ("out/deep.yaml", Type.TEXT, "plan.yaml"),
        ("plan", Type.JSON, "plan.json"),
        ("x.a b", Type.TEXT, "plan.txt"),
        ("notes.", Type.MARKDOWN, "plan.md"),
        (".hidden", Type.BINARY, "plan.bin"),
    ],
)
def test_a_copy_has_a_name_of_ours_and_the_ending_that_was_declared(path: str, kind: Type, file: str) -> None:
    assert left(b"", kind, path).file == file


def test_a_template_sees_the_document_or_the_text() -> None:
    assert left(b'{"a": [1]}').value == {"a": [1]}
    assert left("ä".encode(), Type.TEXT).value == "ä"
    assert left(b"\xff", Type.BINARY).value is None


def test_all_artifacts_are_given_or_those_that_are_wanted_by_their_new_names() -> None:
    plan, shots = (
        left(b"1"),
        merge_artifacts([left(b"a", Type.BINARY, "s.png", "shot"), left(b"b", Type.BINARY, "s.png", "shot")]),
    )
    parts = {"a": (plan, *shots), "b": (plan,), "c": ()}

    assert select_inputs(parts, None) == {"a": (plan, *shots), "b": (plan,)}
    wanted = [
        Injection(step="a", artifact="shot", name="picture"),
        Injection(step="b", artifact="gone"),
        Injection(step="a", artifact="plan"),
    ]
    files = {step: [one.file for one in those] for step, those in select_inputs(parts, wanted).items()}
    assert files == {"a": ["picture.0.png", "picture.1.png", "plan.json"]}
