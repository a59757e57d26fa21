"""Agents' reports are read by key, whatever they contain; rules see tool calls under all of their names."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.activity import Act, Activity
from shoal.model.permissions import PermissionManager, Permissions
from shoal.sessions.acp.updates import MOST_CALLS, ToolCall, Updates

WORKSPACE = Path("/repo/space")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "toolCallId",
        "kind",
        "title",
        "status",
        "rawInput",
        "locations",
        "content",
        "_meta",
        "entries",
        "cost",
        "messageId",
    ]
)
KINDS = st.sampled_from(["agent_message_chunk", "tool_call", "tool_call_update", "plan", "usage_update", "new"])


def heard(updates: Updates, *told: Mapping[str, object]) -> list[tuple[Act, str]]:
    return [(one.act, one.text) for update in told for one in updates.read(update)]


def chunk(text: str, message: str | None = None) -> dict[str, object]:
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}, "messageId": message}


@pytest.mark.deep
@given(st.lists(st.builds(lambda kind, rest: {**rest, "sessionUpdate": kind}, KINDS, st.dictionaries(KEYS, ANYTHING))))
def test_whatever_is_told_is_read(told: list[dict[str, object]]) -> None:
    updates, manager = Updates(lambda call: None), PermissionManager(WORKSPACE)

    every = [one for update in told for one in updates.read(update)] + updates.rest()

    assert all(isinstance(one, Activity) for one in every)
    for update in told:
        assert updates.call(update).decide(manager)


@given(st.lists(st.text(alphabet="ab\n", max_size=6)))
def test_chunks_of_one_message_are_joined_to_lines(pieces: list[str]) -> None:
    updates = Updates(lambda call: None)

    said = [text for _, text in heard(updates, *map(chunk, pieces))] + [one.text for one in updates.rest()]

    assert said == "".join(pieces).removesuffix("\n").split("\n") if "".join(pieces) else said == []


def test_a_new_message_and_a_tool_end_the_line() -> None:
    updates = Updates(lambda call: None)
    tool = {"sessionUpdate": "tool_call", "toolCallId": "1", "kind": "execute", "rawInput": {"command": "ls"}}

    told = heard(updates, chunk("a", "1"), chunk("b", "1"), chunk("c", "2"), tool, chunk("d", "2"))

    assert told == [(Act.SAID, "ab"), (Act.SAID, "c"), (Act.TOOL, "ls")]
    assert updates.last_words == "d"


def test_a_tool_is_told_once_when_it_is_known_what_it_is_about() -> None:
    used: list[ToolCall] = []
    told = heard(
        Updates(used.append),
        {"sessionUpdate": "tool_call", "toolCallId": "1", "kind": "edit", "title": "Write", "rawInput": {}},
        {"sessionUpdate": "tool_call_update", "toolCallId": "1", "rawInput": {"file_path": "a.txt"}},
        {"sessionUpdate": "tool_call_update", "toolCallId": "1", "locations": [{"path": "a.txt"}]},
        {"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed", "rawOutput": {"n": 1}},
    )

    assert told == [(Act.TOOL, "a.txt"), (Act.RESULT, '{"n": 1}')]
    assert [call.paths for call in used] == [("a.txt",)]


def test_only_the_newest_calls_are_remembered() -> None:
    updates = Updates(lambda call: None)
    for number in range(MOST_CALLS + 1):
        updates.read({"sessionUpdate": "tool_call", "toolCallId": f"{number}", "rawInput": {"command": "x"}})

    assert updates.call({"toolCallId": "0"}).command == ""
    assert updates.call({"toolCallId": "2"}).command == "x"


@pytest.mark.parametrize(
    ("told", "names", "subject"),
    [
        ({"kind": "execute", "rawInput": {"command": ["bash", "-lc", "ls -l"]}}, ("Bash",), "Bash(ls -l)"),
        ({"kind": "execute", "rawInput": {"cmd": ["ls", "-l"]}}, ("Bash",), "Bash(ls -l)"),
        ({"kind": "execute", "title": "ls -l", "locations": [{"path": "/repo/space"}]}, ("Bash",), "Bash(ls -l)"),
        ({"kind": "read", "locations": [{"path": "/repo/space/a"}]}, ("Read",), "Read(a)"),
        ({"kind": "edit", "rawInput": {"path": "b/../a"}}, ("Edit", "Write"), "Edit(a)"),
        ({"kind": "edit", "content": [{"type": "diff", "path": "/etc/a"}]}, ("Edit", "Write"), "Edit(/etc/a)"),
        ({"kind": "delete", "rawInput": {"path": "/repo/space/../a"}}, ("Edit", "Write"), "Edit(/repo/a)"),
        ({"kind": "fetch", "rawInput": {"url": "http://x"}}, ("WebFetch",), "WebFetch(http://x)"),
        (
            {"kind": "other", "title": "shell · ls", "rawInput": {"command": "ls"}},
            ("Bash", "shell"),
            "Bash(ls)",
        ),
        (
            {"_meta": {"goose": {"toolCall": {"toolName": "write"}}}, "rawInput": {"path": "a"}},
            ("Write", "Edit", "write"),
            "Write(a)",
        ),
        ({"_meta": {"claudeCode": {"toolName": "Task"}}, "rawInput": {"prompt": "x"}}, ("Task",), "Task(x)"),
        ({}, ("Tool",), "Tool"),
    ],
)
def test_a_tool_has_the_names_and_the_argument_that_rules_know(
    told: dict[str, object], names: tuple[str, ...], subject: str
) -> None:
    call = ToolCall(call="1").merge_update(told)

    assert call.names == names
    assert call.decide(PermissionManager(WORKSPACE)).subject == subject


@pytest.mark.parametrize(
    ("allowed", "deny", "is_allowed"),
    [
        (None, (), True),
        (("Write(src/*)",), (), False),  # one of its paths lies elsewhere
        (("Write(src/*)", "Edit(/repo/space/top)"), (), True),
        (None, ("Edit(/repo/space/src/*)",), False),
        (("*",), ("Write(top)",), False),
        ((), (), False),
    ],
)
def test_all_paths_of_a_call_must_be_allowed_and_none_denied(
    allowed: tuple[str, ...] | None, deny: tuple[str, ...], is_allowed: bool
) -> None:
    manager = PermissionManager(WORKSPACE, Permissions(allowed_tools=allowed, deny=deny))
    call = ToolCall(call="1").merge_update(
        {"kind": "edit", "locations": [{"path": "src/a"}, {"path": "/repo/space/top"}]}
    )

    assert call.decide(manager).allowed is is_allowed
