"""Events survive writing, and logs of other versions can be read."""

import json
from types import MappingProxyType
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.events import Event, Output, RunStarted, SessionEnded
from shoal.model.results import Purpose, WorkerResult
from shoal.model.status import Status
from shoal.store.codec import UnknownEvent, decode, encode

texts = st.text(st.characters(exclude_categories=["Cs"]))
finite = st.floats(allow_nan=False)
st.register_type_strategy(str, texts)
st.register_type_strategy(float, finite)
every_event: st.SearchStrategy[Event] = st.one_of([st.from_type(kind) for kind in get_args(Event)])


def output(text: str) -> Output:
    return Output(run="r", session="s", stream="out", text=text)


@given(every_event)
def test_every_event_comes_back_as_it_was(event: Event) -> None:
    assert decode(type(event).__name__, encode(event)) == event


@given(st.text(st.characters()))
def test_no_string_is_too_odd_to_be_kept(text: str) -> None:
    body = encode(output(text))

    assert isinstance(decode("Output", body), Output)
    assert body.isascii()


def test_nul_and_lone_surrogates_come_back() -> None:
    odd = output("a\0b\ud800c\udcff")

    assert decode("Output", encode(odd)) == odd


def test_any_mapping_and_ints_for_floats_are_kept() -> None:
    usage: dict[str, float] = {"tokens": 3}
    result = WorkerResult(index=0, session="s", status=Status.OVER_LIMIT, usage=MappingProxyType(usage), unkept=("a",))
    event = SessionEnded(run="r", step="a", session="s", result=result)

    read = decode("SessionEnded", encode(event))

    assert isinstance(read, SessionEnded)
    assert read.result.status is Status.OVER_LIMIT
    assert read.result.usage == usage
    assert read.result.unkept == ("a",)


@given(st.text(), st.text())
def test_an_unknown_kind_is_kept_as_it_is(kind: str, body: str) -> None:
    assert decode(f"?{kind}", body) == UnknownEvent(f"?{kind}", body)


@given(st.dictionaries(st.text(), st.integers()))
def test_unknown_fields_are_dropped(more: dict[str, int]) -> None:
    known = output("hello")

    assert decode("Output", json.dumps(more | json.loads(encode(known)) | {"new": [1]})) == known


def test_absent_fields_take_their_defaults() -> None:
    fields = {"run": "r", "name": "n", "base": "b", "wall": "w", "workspace": "overlay", "owner": 1}

    assert decode("RunStarted", json.dumps(fields)) == RunStarted(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "purpose"),
    [("fix", Purpose.WORK), ("merge__verify", Purpose.VERIFY), ("fix__resolve", Purpose.RESOLVE)],
)
def test_sessions_of_an_older_log_have_the_purpose_that_their_step_was_named_after(step: str, purpose: Purpose) -> None:
    result = WorkerResult(index=0, session=f"{step}-1", status=Status.SUCCEEDED)
    fields = json.loads(encode(SessionEnded(run="r", step=step, session=f"{step}-1", result=result)))
    del fields["result"]["purpose"]

    read = decode("SessionEnded", json.dumps(fields))

    assert isinstance(read, SessionEnded)
    assert read.result.purpose is purpose


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
field_names = st.sampled_from(["run", "session", "step", "result", "status", "text", "stream", "index", "owner", "pid"])


@given(st.sampled_from(get_args(Event)), st.text() | st.dictionaries(field_names, json_values).map(json.dumps))
def test_nonsense_never_raises(kind: type, body: str) -> None:
    read = decode(kind.__name__, body)

    assert isinstance(read, kind | UnknownEvent)


def test_a_deep_nest_never_raises() -> None:
    body = "[" * 100_000

    assert decode("Output", body) == UnknownEvent("Output", body)
