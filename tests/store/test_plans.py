"""A plan survives writing: what is resumed is what was started, without the values of secrets."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.model.agent import AgentSpec
from shoal.model.contract import CommandContract
from shoal.model.plan import Plan, Step
from shoal.model.resolved_task import ResolvedTask
from shoal.pipeline.load import load
from shoal.pipeline.plan import plan
from shoal.store.plans import Unrecordable, decode_plan, encode_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.yaml"))


def secret_plan() -> Plan:
    agent = AgentSpec(name="a", adapter="command", command=("true",))
    task = ResolvedTask(
        name="t",
        prompt="p",
        agent=agent,
        env={"TOKEN": "s3cret-value", "MODE": "x"},
        secrets=frozenset({"TOKEN"}),
        secret_sources={"TOKEN": "MY_TOKEN"},
        inputs={"a": b"\x00\xff"},
    )
    return Plan(name="n", steps=(Step(name="t", task=task),))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_example_reads_back_as_it_was(path: Path) -> None:
    made = plan(load(path), environ={}, is_trial=True)

    assert decode_plan(encode_plan(made), {}) == made


def test_a_secret_is_recorded_by_its_name_and_read_from_the_host_again() -> None:
    text = encode_plan(secret_plan())

    assert "s3cret" not in text
    again = decode_plan(text, {"MY_TOKEN": "new-value"})
    assert again.working[0].task.env == {"TOKEN": "new-value", "MODE": "x"}
    assert again.working[0].task.inputs == {"a": b"\x00\xff"}


def test_a_secret_that_the_host_has_no_more_is_named() -> None:
    with pytest.raises(BadInput, match="MY_TOKEN"):
        decode_plan(encode_plan(secret_plan()), {})


def test_a_plan_with_the_earlier_name_of_a_class_reads_back() -> None:
    contract = CommandContract(type="command", command="true")
    made = Plan(name="n", steps=tuple(replace(step, contracts=(contract,)) for step in secret_plan().working))
    written = encode_plan(made).replace("CommandContract", "Passes")

    assert "Passes" in written
    assert decode_plan(written, {"MY_TOKEN": "s3cret-value"}) == made


def test_a_text_with_a_secret_in_it_is_not_recorded() -> None:
    with pytest.raises(Unrecordable):
        encode_plan(secret_plan(), mask=lambda text: text.replace("MY_TOKEN", "***"))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"@":"Plan"}', '{"@":"Nothing"}', '{"@":"Step","name":"x"}', "3"])
def test_garbage_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        decode_plan(text, {})
