"""What readers conclude from recorded client output, whatever the exit code."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.adapters.claude import ClaudeReader
from shoal.adapters.codex import CodexReader
from shoal.adapters.goose import GooseReader
from shoal.adapters.kind import Reader
from shoal.model.activity import Act, Activity

RECORDED = Path(__file__).parent / "recorded"
READERS: dict[str, Callable[[], Reader]] = {"claude": ClaudeReader, "codex": CodexReader, "goose": GooseReader}
GOOD = None
LOGIN = "refused its login"

# client, case, the exit code it had, and what must be in the verdict
TABLE = [
    ("claude", "both", 0, GOOD),
    ("claude", "denied", 0, GOOD),
    ("claude", "background", 0, GOOD),
    ("claude", "slow", 0, GOOD),
    ("claude", "status_429_once", 0, GOOD),
    ("claude", "status_400", 1, "API Error: 400"),
    ("claude", "status_401", 1, LOGIN),
    ("claude", "status_500", 1, "API Error: 500"),
    ("claude", "too_long", 1, "Prompt is too long"),
    ("claude", "cut", 1, "ECONNRESET"),
    ("claude", "timed_out", 1, "Request timed out"),
    ("claude", "not_listening", 1, "Connection refused"),
    ("claude", "no_key", 1, LOGIN),
    ("claude", "budget", 1, "maximum budget"),
    ("claude", "turns", 1, "maximum number of turns"),
    ("claude", "interrupted", 0, "ede_diagnostic"),
    ("codex", "both", 0, GOOD),
    ("codex", "status_429_once", 0, GOOD),
    ("codex", "unknown_tool", 0, GOOD),
    ("codex", "status_401", 1, LOGIN),
    ("codex", "status_500", 1, "high demand"),
    ("codex", "too_long", 1, "prompt is too long"),
    ("codex", "cut", 1, "stream disconnected"),
    ("codex", "garbled", 1, "stream closed"),
    ("codex", "no_key", 1, LOGIN),
    ("codex", "no_network", 143, "waiting for network"),
    ("goose", "both", 0, GOOD),
    ("goose", "status_429_once", 0, GOOD),
    ("goose", "unknown_tool", 0, GOOD),
    ("goose", "denied", 0, GOOD),
    ("goose", "status_401", 1, LOGIN),
    ("goose", "status_500", 0, "Server error"),
    ("goose", "too_long", 0, "Context limit still exceeded"),
    ("goose", "cut", 0, "Stream decode error"),
    ("goose", "garbled", 0, "Stream decode error"),
]


def heard(client: str, case: str, *, lines: int | None = None) -> tuple[Reader, list[Activity]]:
    reader = READERS[client]()
    said = (RECORDED / client / f"{case}.jsonl").read_text().splitlines()[:lines]
    return reader, [activity for line in said for activity in reader.read(line)]


def texts(activities: list[Activity], act: Act) -> list[str]:
    return [one.text for one in activities if one.act is act]


@pytest.mark.parametrize(("client", "case", "code", "why"), TABLE)
def test_the_verdict_is_by_what_was_said(client: str, case: str, code: int, why: str | None) -> None:
    reader, _ = heard(client, case)

    for exit_code in (code, 0, 1, 143, None):
        verdict = reader.verdict(exit_code, "")
        assert verdict is None if why is None else verdict is not None and why in verdict and "\n" not in verdict
    assert reader.is_done


def test_every_recorded_run_is_in_the_table() -> None:
    assert {(path.parent.name, path.stem) for path in RECORDED.rglob("*.jsonl")} == {row[:2] for row in TABLE}


@pytest.mark.parametrize("client", READERS)
def test_a_session_that_ends_early_has_failed_whatever_the_code(client: str) -> None:
    reader, _ = heard(client, "both", lines=-1)

    assert not reader.is_done
    assert reader.verdict(0, "") == "it ended before it was done, and did not say why"
    assert reader.verdict(0, "noise\nit crashed\n\n") is not None


def test_a_refusal_that_is_only_on_stderr_is_told() -> None:
    said = "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons\n"

    assert "cannot be used with root" in (ClaudeReader().verdict(1, said) or "")


def test_what_goose_says_before_it_has_begun_is_told() -> None:
    reader = GooseReader()
    for line in (
        "",
        "  error: Error Unknown provider: .",
        "Please check your keychain and run 'goose configure' again.",
    ):
        list(reader.read(line))

    assert "Unknown provider" in (reader.verdict(1, "") or "")
    assert LOGIN in (reader.verdict(1, "") or "")


@pytest.mark.parametrize(
    ("client", "usage"),
    [
        ("claude", {"input_tokens": 300, "output_tokens": 60, "cost_usd": 0.0018000000000000002}),
        ("codex", {"input_tokens": 300, "output_tokens": 60}),
        ("goose", {"input_tokens": 300, "output_tokens": 60, "cost_usd": 0.00135}),
    ],
)
def test_what_was_done_and_spent_is_told(client: str, usage: dict[str, float]) -> None:
    reader, told = heard(client, "both")

    assert texts(told, Act.SAID) == ["I will write it.", "I will run it.", "Done."]
    calls = [one.call for one in told if one.act is Act.TOOL]
    assert len(calls) == 2
    assert [one.call for one in told if one.act is Act.RESULT and one.ok] == calls
    assert "shell-ran" in texts(told, Act.TOOL)[1]
    assert "shell-ran" in texts(told, Act.RESULT)[1]
    assert reader.usage == usage
    assert reader.session


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_a_wait_for_the_model_is_told_with_its_length(client: str) -> None:
    _, told = heard(client, "status_429_once")

    (retry,) = [one for one in told if one.act is Act.RETRY]
    assert "429" in retry.text
    assert retry.seconds >= 1


@pytest.mark.parametrize(("client", "tool"), [("claude", "Bash"), ("goose", "shell")])
def test_a_denied_tool_is_told_once(client: str, tool: str) -> None:
    _, told = heard(client, "denied")

    (denial,) = [one for one in told if one.act is Act.DENIED]
    assert denial.tool == tool


def test_claude_is_not_done_while_something_runs_in_the_background() -> None:
    reader = ClaudeReader()
    done = []
    for line in (RECORDED / "claude" / "background.jsonl").read_text().splitlines():
        list(reader.read(line))
        done.append(reader.is_done)

    assert done.count(True) == 1
    assert done[-1]


def test_codex_that_waits_for_a_network_is_given_up_after_a_while_and_not_before() -> None:
    reader, told = heard("codex", "no_network", lines=-1)
    assert not reader.is_done
    assert all(one.seconds >= 60 for one in told if one.act is Act.RETRY)

    list(reader.read('{"type":"item.completed","item":{"type":"agent_message","text":"here I am"}}'))
    list(reader.read('{"type":"error","message":"Reconnecting... waiting for network (gone)"}'))

    assert not reader.is_done


def test_the_words_of_a_subagent_are_not_the_agents_own() -> None:
    line = '{"type":"assistant","parent_tool_use_id":"t","message":{"content":[{"type":"text","text":"psst"}]}}'

    assert list(ClaudeReader().read(line)) == []


def test_a_session_that_never_came_to_its_end_has_spent_what_its_messages_cost() -> None:
    reader, _ = heard("claude", "both", lines=-1)

    assert reader.usage["input_tokens"] == 300


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
KEYS = st.sampled_from(
    [
        "type",
        "subtype",
        "message",
        "content",
        "item",
        "usage",
        "error",
        "modelUsage",
        "result",
        "tasks",
        "toolCall",
        "toolResult",
        "value",
        "metadata",
        "inference",
        "permission_denials",
        "id",
        "text",
        "role",
        "errors",
        "status",
        "total_cost_usd",
        "task_id",
        "tool_use_id",
    ]
)
KINDS = st.sampled_from(
    [
        "system",
        "assistant",
        "user",
        "result",
        "message",
        "complete",
        "error",
        "item.completed",
        "item.started",
        "turn.completed",
        "turn.failed",
        "thread.started",
        "init",
        "api_retry",
        "text",
        "tool_use",
        "toolRequest",
        "toolResponse",
        "background_tasks_changed",
        "task_notification",
        "systemNotification",
        "command_execution",
        "file_change",
        "tool_result",
        "permission_denied",
    ]
)
VALUES = st.recursive(
    LEAVES | KINDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)


@pytest.mark.parametrize("client", READERS)
@given(events=st.lists(st.dictionaries(KEYS, VALUES, max_size=6) | st.text(max_size=40), max_size=6))
def test_no_line_makes_a_reader_raise(client: str, events: list[object]) -> None:

    reader = READERS[client]()
    for event in events:
        line = event if isinstance(event, str) else json.dumps(event)
        assert all(isinstance(one, Activity) for one in reader.read(line))

    verdict = reader.verdict(0, "")
    assert verdict is None or "\n" not in verdict
    assert all(value >= 0 for value in reader.usage.values())
