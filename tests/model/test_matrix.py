"""A matrix: GitHub's own examples, its rules for any axes, and items with ids and dependencies."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.model.matrix import MOST_CELLS, BadMatrix, Cell, Matrix, Source, expand_matrix, from_items

NAMES = st.sampled_from(["os", "py", "db", "extra"])
VALUES = st.sampled_from([1, 2, "a", "b", True, False, None, "1"])
AXES = st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=3), max_size=3)
ENTRIES = st.lists(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["id", "name", "deps", "x"]), inner),
    max_leaves=15,
)


def values(matrix: Matrix) -> list[Mapping[str, object]]:
    return [cell.values for cell in expand_matrix(matrix)]


def items(
    document: object, item_key: str | None = None, item_id_key: str | None = None, dependency_key: str | None = None
) -> tuple[Cell, ...]:
    source = Source(step="plan", artifact="tasks")
    matrix = Matrix(source=source, item_key=item_key, item_id_key=item_id_key, dependency_key=dependency_key)
    return from_items(matrix, document)


def wrong(document: object, **how: str) -> str:
    with pytest.raises(BadMatrix) as caught:
        items(document, **how)
    return str(caught.value)


def test_axes_are_combined_in_their_order() -> None:
    cells = expand_matrix(Matrix(axes={"os": ["a", "b"], "py": [1, 2]}))

    assert [(cell.index, cell.id, dict(cell.values)) for cell in cells] == [
        (0, "a, 1", {"os": "a", "py": 1}),
        (1, "a, 2", {"os": "a", "py": 2}),
        (2, "b, 1", {"os": "b", "py": 1}),
        (3, "b, 2", {"os": "b", "py": 2}),
    ]
    assert cells[0].item == cells[0].values


def test_include_is_as_in_the_manual_of_github_actions() -> None:
    fruits = Matrix(
        axes={"fruit": ["apple", "pear"], "animal": ["cat", "dog"]},
        include=[
            {"color": "green"},
            {"color": "pink", "animal": "cat"},
            {"fruit": "apple", "shape": "circle"},
            {"fruit": "banana"},
            {"fruit": "banana", "animal": "cat"},
        ],
    )

    assert values(fruits) == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


def test_exclude_is_as_in_the_manual_of_github_actions() -> None:
    systems = Matrix(
        axes={"os": ["mac", "win"], "version": [12, 14, 16], "to": ["staging", "production"]},
        exclude=[{"os": "mac", "version": 12, "to": "production"}, {"os": "win", "version": 16}],
    )

    assert len(expand_matrix(systems)) == 9


def test_what_was_excluded_can_be_included_again() -> None:
    assert values(Matrix(axes={"a": [1, 2]}, exclude=[{"a": 1}], include=[{"a": 1, "b": 3}])) == [
        {"a": 2},
        {"a": 1, "b": 3},
    ]


def test_include_alone_is_a_list_of_combinations() -> None:
    assert values(Matrix(include=[{"a": 1}, {"a": 1}, {"b": 2}])) == [{"a": 1}, {"a": 1}, {"b": 2}]


def test_true_is_not_one() -> None:
    assert values(Matrix(axes={"a": [1, True]}, exclude=[{"a": True}])) == [{"a": 1}]


def test_ids_that_look_the_same_are_numbered() -> None:
    assert [cell.id for cell in expand_matrix(Matrix(axes={"a": [1, "1", 2]}))] == ["1 #0", "1 #1", "2"]


def test_a_label_can_be_shown_anywhere() -> None:
    assert Cell(index=3, id="Ünder/../\x1b[31m Path").label == "nder-31m-path"
    assert Cell(index=3, id="///").label == "3"


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (Matrix(axes={"a": [1]}, exclude=[{"a": 1}]), "the matrix has no combinations left; exclude fewer, or include one"),
        (Matrix(axes={"a": range(17), "b": range(17)}), "the matrix has 289 combinations; there may be 256, so split the work"),
        (Matrix(axes={"a": range(1000), "b": range(1000)}), "the axes make 1000000 combinations; there may be 256, so shorten them"),
    ],
)  # fmt: skip
def test_a_matrix_has_some_cells_and_not_too_many(matrix: Matrix, expected: str) -> None:
    with pytest.raises(BadMatrix, match=expected):
        expand_matrix(matrix)


@given(AXES, ENTRIES, ENTRIES)
def test_any_axes_follow_the_rules(axes: dict[str, list[object]], include: list[Any], exclude: list[Any]) -> None:
    def same(one: object, other: object) -> bool:
        return type(one) is type(other) and one == other

    every = (
        [dict(zip(axes, combination, strict=True)) for combination in itertools.product(*axes.values())] if axes else []
    )
    originals = [
        one for one in every if not any(all(k in one and same(one[k], v) for k, v in bad.items()) for bad in exclude)
    ]
    fits = [[all(same(one[k], v) for k, v in extra.items() if k in one) for one in originals] for extra in include]
    try:
        cells = expand_matrix(Matrix(axes=axes, include=include, exclude=exclude))
    except BadMatrix:
        assert not originals
        assert not include
        return

    # What came of the axes keeps their values and takes the last value of what fits it.
    for index, original in enumerate(originals):
        expected = dict(original)
        for extra, fitting in zip(include, fits, strict=True):
            expected |= extra if fitting[index] else {}
        assert repr(cells[index].values) == repr(expected)
    # What fits nowhere stands alone, in its order.
    alone = [extra for extra, fitting in zip(include, fits, strict=True) if not any(fitting)]
    assert [cell.values for cell in cells[len(originals) :]] == alone
    assert [cell.index for cell in cells] == list(range(len(cells)))
    assert len({cell.id for cell in cells}) == len(cells)


def test_items_are_known_by_id_else_by_name_else_by_number() -> None:
    assert [cell.id for cell in items([{"id": "a", "name": "x"}, {"id": 7}])] == ["a", "7"]
    assert [cell.id for cell in items([{"name": "x"}, {"name": "y", "id": None}])] == ["x", "y"]
    assert [cell.id for cell in items([{"name": "x"}, {"name": "x"}])] == ["0", "1"]
    assert [cell.id for cell in items(["a.py", "b.py"])] == ["a.py", "b.py"]
    assert [cell.id for cell in items([{"a": 1}, 3.5, None])] == ["0", "1", "2"]


def test_an_item_is_itself_and_its_fields_are_values() -> None:
    first, second = items({"plan": {"tasks": [{"id": "a", "file": "x"}, "plain"]}}, item_key="plan.tasks")

    assert (first.item, first.values) == ({"id": "a", "file": "x"}, {"id": "a", "file": "x"})
    assert (second.item, second.values) == ("plain", {})


def test_items_may_wait_for_each_other() -> None:
    cells = items([{"id": "a", "deps": ["b", "b"]}, {"id": "b"}, {"id": "c", "deps": "a"}], dependency_key="deps")

    assert [cell.needs for cell in cells] == [("b",), (), ("a",)]


def test_no_items_are_no_cells() -> None:
    assert items([]) == ()


@pytest.mark.parametrize(
    ("document", "how", "expected"),
    [
        ({"tasks": []}, {}, "the items must be a JSON list, not a mapping; say `item_key: 'tasks'`"),
        ("x", {}, "the items must be a JSON list, not 'x'; write a list"),
        ({"b": 1}, {"item_key": "a.c"}, "no `a` in the source of the items, on the way to 'a.c'; known: 'b'"),
        ({"a": [1]}, {"item_key": "a.c"}, "no `c` in the source of the items, on the way to 'a.c'; it is a list"),
        ([{"key": "a"}, {}], {"item_id_key": "key"}, "item 1 has no `key` to be known by (`item_id_key`); known: none"),
        ([{"key": [1]}], {"item_id_key": "key"}, "the `key` of item 0 is not a valid id (text of at most 200 characters, or a number): a list"),
        ([{"key": "a"}, {"key": "a"}], {"item_id_key": "key"}, "items 0 and 1 are both 'a'; give each an id of its own"),
        ([{"id": "a"}, {"id": "a"}], {"dependency_key": "deps"}, "items 0 and 1 are both 'a'; give each an id of its own"),
        ([{"id": "a", "deps": ["x\n"]}], {"dependency_key": "deps"}, "item 'a' needs 'x\\n', and there is no such item; known: 'a'"),
        ([{"id": "a", "deps": {"b": 1}}], {"dependency_key": "deps"}, "the `deps` of item 'a' must be ids of other items, not a mapping"),
        ([{"id": "a", "deps": ["a"]}], {"dependency_key": "deps"}, "these items depend on each other: 'a' → 'a'; remove a dependency"),
        (
            [{"id": "a", "deps": ["b"]}, {"id": "b", "deps": ["c"]}, {"id": "c", "deps": ["a"]}],
            {"dependency_key": "deps"},
            "these items depend on each other: 'a' → 'b' → 'c' → 'a'; remove a dependency",
        ),
        (list(range(300)), {}, "the matrix has 300 items; there may be 256, so split the work"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_items_is_a_sentence(document: object, how: dict[str, str], expected: str) -> None:
    found = wrong(document, **how)

    assert found == expected or sorted(found) == sorted(expected)  # a circle may be drawn from any of its items


@given(JSON, st.none() | st.sampled_from(["id", "x"]), st.none() | st.just("deps"))
def test_any_document_gives_cells_or_a_sentence(document: object, id_key: str | None, deps: str | None) -> None:
    try:
        cells = items(document, item_id_key=id_key, dependency_key=deps)
    except BadMatrix as error:
        cells, sentence = (), str(error)
    else:
        sentence = ""

    assert sentence.isprintable()
    assert len(sentence) < 2000
    if sentence:
        return
    assert isinstance(document, list)
    assert [cell.item for cell in cells] == document
    assert len({cell.id for cell in cells}) == len(cells) <= MOST_CELLS
    assert {need for cell in cells for need in cell.needs} <= {cell.id for cell in cells}


@settings(max_examples=30)
@given(st.permutations(range(6)), st.data())
def test_items_without_a_circle_are_accepted(order: list[int], data: st.DataObject) -> None:
    document = [
        {"id": f"t{own}", "deps": data.draw(st.lists(st.sampled_from([f"t{one}" for one in order[:place]])) if place else st.just([]))}
        for place, own in enumerate(order)
    ]  # fmt: skip

    cells = items(document, dependency_key="deps")

    assert [set(cell.needs) for cell in cells] == [set(one["deps"]) for one in document]
