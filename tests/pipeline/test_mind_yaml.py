"""The keys of an in-process agent in a file: what they mean, and every mistake at its line and column."""

import json

import pytest

from shoal.model.agent import TOOLS, Budget, ModelSettings
from shoal.pipeline.load import parse
from shoal.pipeline.plan import agent
from shoal.pipeline.problems import BadDocument


def mind(keys: str) -> ModelSettings | None:
    return agent(parse(f"agents: {{x: {{adapter: python, {keys}}}}}\n", "f.yaml"), "x", environ={}).mind


def wrong(keys: str) -> list[str]:
    with pytest.raises(BadDocument) as caught:
        parse(f"agents:\n  x: {{{keys}}}\nsteps: [{{name: a, agent: x, prompt: x}}]\n", "f.yaml")
    return str(caught.value).splitlines()


def test_a_model_is_enough_and_all_tools_are_given() -> None:
    assert mind("model: 'openai:gpt-5'") == ModelSettings(model="openai:gpt-5", tools=tuple(TOOLS))


def test_tools_a_budget_and_replies_are_read() -> None:
    found = mind(
        "model: scripted, tools: [read, shell, read], budget: {turns: 9, tokens: 1000, dollars: 2},"
        " replies: [done, {read: {path: a}}, [{list: {}}, {shell: {command: ls}}]]"
    )

    assert found is not None
    assert found.tools == ("read", "shell")
    assert found.budget == Budget(turns=9, tokens=1000, dollars=2)
    assert json.loads(found.replies or "") == [
        "done", {"read": {"path": "a"}}, [{"list": {}}, {"shell": {"command": "ls"}}],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("adapter: python", "2:6: `model` is missing; name one, like anthropic:claude-sonnet-5"),
        ("adapter: python, model: 3", "2:31: `model` must be text, not 3; put it in quotes"),
        ("adapter: python, model: m, tools: [reed]", "2:42: `tools` cannot be 'reed'; did you mean `read`?"),
        ("adapter: python, model: m, budget: {turns: 0}", "2:50: `turns` must be at least 1, not 0"),
        ("adapter: python, model: m, budget: {dollars: .inf}", "2:52: `dollars` must be a finite number, not inf"),
        ("adapter: python, model: m, budget: {euros: 1}", "2:43: unknown key `euros`; did you mean `turns`?"),
        ("adapter: python, model: m, replies: [x]", "2:34: `replies` go with `model: scripted` only; remove them"),
        ("adapter: python, model: scripted", "2:31: `model: scripted` says what it is told to; list its `replies`"),
        (
            "adapter: python, model: scripted, replies: [3]",
            "2:51: a reply is a text, a call like {read: {path: README.md}} or a list of calls, not 3",
        ),
        (
            "adapter: python, model: scripted, replies: [{reed: {}}]",
            "2:51: no tool named 'reed'; did you mean `read`?",
        ),
        (
            "adapter: python, model: scripted, replies: [x, {read: {pth: x}}]",
            "2:54: `read` takes no `pth`; did you mean `path`?",
        ),
        (
            "adapter: python, model: scripted, replies: [{read: x}]",
            "2:51: the arguments of `read` must be a mapping, not 'x'",
        ),
        (
            "adapter: python, model: m, command: x",
            "2:34: `command` goes with `adapter: command`, and with clients, only; remove it",
        ),
        (
            "adapter: command, command: x, model: m",
            "2:37: `model` goes with `adapter: python`, and with clients, only; remove it",
        ),
        ("adapter: pyton", "2:16: `adapter` cannot be 'pyton'; did you mean `python`?"),
    ],
)
def test_a_mistake_is_told_at_its_place(keys: str, expected: str) -> None:
    assert wrong(keys) == [f"f.yaml:{expected}"]
