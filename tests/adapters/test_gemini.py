"""Gemini CLI: the command for a task, and the parsing of recorded lines."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.adapters.gemini import LOGIN, Gemini, GeminiReader, policy
from shoal.errors import Unavailable
from shoal.model.activity import Act
from shoal.model.permissions import Permissions, ToolRule
from tests.adapters.client_lines import PLACE, events, heard, task

TURN = """\
{"type":"init","timestamp":"2026-11-16T13:39:56.558Z","session_id":"dbd3e55b","model":"gemini-2.5-flash"}
{"type":"message","timestamp":"2026-11-16T13:39:56.587Z","role":"user","content":"please"}
{"type":"message","timestamp":"2026-11-16T13:39:56.963Z","role":"assistant","content":"I will ","delta":true}
{"type":"message","timestamp":"2026-11-16T13:39:57.016Z","role":"assistant","content":"run it.","delta":true}
{"type":"tool_use","timestamp":"2026-11-16T13:39:57.799Z","tool_name":"run_shell_command","tool_id":"r_0","parameters":{"command":"git push"}}
{"type":"tool_result","timestamp":"2026-11-16T13:39:58.587Z","tool_id":"r_0","status":"error","output":"Tool execution denied by policy. Bash(git push*)","error":{"type":"policy_violation","message":"Tool execution denied by policy. Bash(git push*)"}}
{"type":"tool_use","timestamp":"2026-11-16T13:39:59.799Z","tool_name":"write_file","tool_id":"w_1","parameters":{"file_path":"hello.txt","content":"x"}}
{"type":"tool_result","timestamp":"2026-11-16T13:39:59.999Z","tool_id":"w_1","status":"success"}
{"type":"message","timestamp":"2026-11-16T13:40:00.890Z","role":"assistant","content":"Done.","delta":true}
{"type":"result","timestamp":"2026-11-16T13:40:00.965Z","status":"success","stats":{"total_tokens":54,"input_tokens":33,"output_tokens":21,"cached":0,"input":33,"duration_ms":2408,"tool_calls":1,"models":{}}}
"""
REFUSED = r"""
{"type":"init","timestamp":"2026-11-16T13:37:40.424Z","session_id":"1b96e5c1","model":"gemini-2.5-flash"}
{"type":"result","timestamp":"2026-11-16T13:37:41.095Z","status":"error","error":{"type":"unknown","message":"[API Error: {\"error\":{\"code\":401,\"message\":\"the script says 401\",\"status\":\"UNAUTHENTICATED\"}}]"},"stats":{"total_tokens":0,"input_tokens":0,"output_tokens":0,"cached":0,"input":0,"duration_ms":0,"tool_calls":0,"models":{}}}
"""


def test_the_prompt_goes_to_stdin_and_the_persona_into_its_memory() -> None:
    made = Gemini().invocation(task("gemini", model="gemini-2.5-pro", args=("--debug",)), PLACE)

    yolo = ("--output-format", "stream-json", "--approval-mode", "yolo")
    assert made.argv == ("gemini", *yolo, "--model", "gemini-2.5-pro", "--debug")
    assert made.stdin == "do é".encode()
    assert made.home == {".gemini/GEMINI.md": b"be kind"}


def test_it_is_called_as_the_document_says() -> None:
    made = Gemini().invocation(task("gemini", command=("npx", "gemini")), PLACE)

    assert made.argv[:3] == ("npx", "gemini", "--output-format")


def test_a_turn_is_read_by_its_events() -> None:
    reader = GeminiReader(LOGIN)

    acts = heard(reader, TURN)

    assert [(one.act, one.tool, one.text) for one in acts] == [
        (Act.BEGAN, "", "gemini-2.5-flash"),
        (Act.SAID, "", "I will run it."),
        (Act.TOOL, "run_shell_command", "git push"),
        (Act.DENIED, "run_shell_command", "Tool execution denied by policy. Bash(git push*)"),
        (Act.TOOL, "write_file", "hello.txt"),
        (Act.RESULT, "write_file", ""),
        (Act.SAID, "", "Done."),
    ]
    assert reader.usage == {"input_tokens": 33, "output_tokens": 21}
    assert (reader.session, reader.is_done, reader.verdict(0, "")) == ("dbd3e55b", True, None)


def test_a_refused_key_names_what_to_do() -> None:
    reader = GeminiReader(LOGIN)

    heard(reader, REFUSED)

    assert reader.verdict(145, "") == f"the model's provider refused its login: the script says 401 (401); {LOGIN}"


@pytest.mark.parametrize(
    ("code", "errors", "why"),
    [
        (41, "YOLO mode is enabled.\nInvalid auth method selected.\n", "GEMINI_API_KEY"),
        (0, "", "no result"),
        (0, "[USER] Policy file error in shoal.toml:\n  Unsafe regex pattern", "Unsafe regex pattern"),
        (1, "Error: it broke\n    at async file.js:1\n  status: 500\n}\n", "it broke"),
    ],
)
def test_without_a_result_nothing_is_believed(code: int, errors: str, why: str) -> None:
    verdict = GeminiReader(LOGIN).verdict(code, errors)

    assert verdict is not None
    assert why in verdict


def test_words_that_never_end_are_told_in_pieces() -> None:
    reader = GeminiReader(LOGIN)
    line = json.dumps({"type": "message", "role": "assistant", "content": "x" * 1000})

    acts = heard(reader, "\n".join([line] * 200))

    assert sum(len(one.text) for one in acts) > 100_000


@given(st.lists(events()))
def test_no_line_makes_the_reader_raise(lines: list[str]) -> None:
    reader = GeminiReader(LOGIN)
    heard(reader, "\n".join(lines))

    assert reader.verdict(0, "") is None or reader.verdict(0, "")


def decided(permissions: Permissions, tool: str, key: str, value: str) -> str | None:
    """Decide as the client does: the first rule by priority whose expression is found in the arguments."""
    rules = tomllib.loads(policy(permissions, PLACE.workspace)).get("rule", [])
    written = "{\0" + json.dumps(key) + ":" + json.dumps(value, ensure_ascii=False) + "\0}"
    for rule in sorted(rules, key=lambda one: -one["priority"]):
        if rule["toolName"] in ("*", tool) and re.search(rule.get("argsPattern", ""), written):
            return str(rule["decision"])
    return None


@pytest.mark.parametrize(
    ("command", "decision"),
    [("git status", "allow"), ("git", "allow"), ("gitea", "deny"), ("git push", "deny"), ('git log "a"', "allow")],
)
def test_rules_become_a_policy(command: str, decision: str) -> None:
    permissions = Permissions(allowed_tools=("Bash(git:*)", "Write"), deny=("Bash(git push*)",))

    assert decided(permissions, "run_shell_command", "command", command) == decision


def test_a_path_is_meant_from_the_top_of_the_workspace() -> None:
    permissions = Permissions(deny=("Write(secret/*)",))

    for path, decision in {"secret/a": "deny", f"{PLACE.workspace}/secret/a": "deny", "open/secret/a": None}.items():
        assert decided(permissions, "write_file", "file_path", path) == decision


@given(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.text(st.sampled_from("ab*()[]{}\\\"'.?+^$| \n\x7f\0é😀"), min_size=1, max_size=12),
)
def test_a_policy_decides_as_the_rules_do(command: str, glob: str) -> None:
    rule = ToolRule.of(f"Bash({glob})")

    decision = decided(Permissions(deny=(rule.pattern,)), "run_shell_command", "command", command)

    assert (decision == "deny") == rule.covers("Bash", command)


@pytest.mark.parametrize("rule", ["Web*", "WebFetch(x)", f"Bash({'x' * 3000})"])
def test_a_rule_that_it_cannot_be_held_to_is_refused(rule: str) -> None:
    with pytest.raises(Unavailable, match="for gemini is not available"):
        policy(Permissions(deny=(rule,)), Path("/w"))
