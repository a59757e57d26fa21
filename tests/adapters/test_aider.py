"""aider: the command for a task, and the parsing of recorded lines."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.adapters.aider import LOGIN, Aider, AiderReader
from shoal.errors import Unavailable
from shoal.model.activity import Act
from shoal.model.permissions import Permissions
from tests.adapters.client_lines import PLACE, events, heard, task

BEGINNING = """\
Analytics have been permanently disabled.
{"event": "launched", "properties": {}, "user_id": "2e", "time": 1794837000}
Aider v0.86.2
Model: openai/well with whole edit format
Git repo: .git with 1 files
{"event": "cli session", "properties": {"main_model": "openai/REDACTED", "edit_format": "whole"}, "user_id": "2e", "time": 1794837001}
{"event": "message_send_starting", "properties": {}, "user_id": "2e", "time": 1794837001}
"""
TURN = f"""{BEGINNING}
litellm.InternalServerError: InternalServerError: OpenAIException - the script says 500
The API provider's servers are down or overloaded.
Retrying in 0.2 seconds...
Here it is.

hello.txt
Tokens: 1.1k sent, 7 received.
{{"event": "message_send", "properties": {{"main_model": "openai/REDACTED", "edit_format": "whole", "prompt_tokens": 1100, "completion_tokens": 7, "total_tokens": 1107, "cost": 0, "total_cost": 0.0}}, "user_id": "2e", "time": 1794837002}}
Applied edit to hello.txt
{{"event": "exit", "properties": {{"reason": "Completed --message-file"}}, "user_id": "2e", "time": 1794837003}}
"""
REFUSED = f"""{BEGINNING}
litellm.AuthenticationError: AuthenticationError: OpenAIException - the script says 401
The API provider is not able to authenticate you. Check your API key.
{{"event": "exit", "properties": {{"reason": "Completed --message-file"}}, "user_id": "2e", "time": 1794837003}}
"""


def made(permissions: Permissions | None = None) -> tuple[str, ...]:
    """Give the command line."""
    return (
        Aider().invocation(task("aider", model="openai/m", args=("--architect",), permissions=permissions), PLACE).argv
    )


def test_prompt_persona_and_histories_are_files_outside_of_the_workspace() -> None:
    words = made()

    assert words[-3:] == ("--message-file", "/s/home/.aider.prompt.md", "--architect")
    pairs = dict(itertools.pairwise(words))
    assert pairs["--read"] == "/s/input/system_prompt.md"
    assert pairs["--chat-history-file"] == "/s/home/.aider.chat.history"
    assert pairs["--model"] == "openai/m"
    assert "--no-auto-lint" not in words


@pytest.mark.parametrize("prompt", ["/run rm -rf .", "!ls", "/etc/hosts is wrong"])
def test_a_prompt_is_never_a_command(prompt: str) -> None:
    laid = Aider().invocation(replace(task("aider"), prompt=prompt), PLACE).home

    assert laid == {".aider.prompt.md": f"\n{prompt}".encode()}


def test_a_turn_is_read_by_its_words_and_its_log() -> None:
    reader = AiderReader()

    acts = heard(reader, TURN)

    assert [(one.act, one.text[:26]) for one in acts] == [
        (Act.BEGAN, "openai/well"),
        (Act.TROUBLE, "litellm.InternalServerErro"),
        (Act.SAID, "The API provider's servers"),
        (Act.RETRY, "litellm.InternalServerErro"),
        (Act.SAID, "Here it is."),
        (Act.SAID, "hello.txt"),
        (Act.SAID, "Tokens: 1.1k sent, 7 recei"),
        (Act.TOOL, "hello.txt"),
    ]
    assert acts[3].seconds == 0.2
    assert reader.usage == {"input_tokens": 1100, "output_tokens": 7}
    assert (reader.is_done, reader.verdict(0, "")) == (True, None)


def test_a_refused_key_names_what_to_do_though_it_ends_with_0() -> None:
    reader = AiderReader()

    heard(reader, REFUSED)

    why = "litellm.AuthenticationError: AuthenticationError: OpenAIException - the script says 401"
    assert reader.verdict(0, "") == f"the model's provider refused its login: {why}; {LOGIN}"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("", "before it was done"),
        ("Unable to read: x\n", "Unable to read: x"),
        (BEGINNING, "no answer"),
        (TURN.replace("Completed --message-file", "Message file IO error"), "500"),
    ],
)
def test_an_exit_code_of_0_is_not_believed(lines: str, why: str) -> None:
    reader = AiderReader()
    heard(reader, lines)

    assert why in (reader.verdict(0, "") or "")


@given(st.lists(events() | st.just("Retrying in ... seconds...")))
def test_no_line_makes_the_reader_raise(lines: list[str]) -> None:
    reader = AiderReader()
    heard(reader, "\n".join(lines))

    assert reader.verdict(0, "") is None or reader.verdict(0, "")


@pytest.mark.parametrize(
    "permissions",
    [
        Permissions(deny=("Bash", "Bash(rm *)", "WebFetch", "mcp__x__y")),
        Permissions(allowed_tools=("Read", "Write", "Edit")),
    ],
)
def test_rules_about_tools_that_it_has_not_hold_by_nature(permissions: Permissions) -> None:
    assert {"--no-suggest-shell-commands", "--no-auto-lint", "--no-auto-test"} <= set(made(permissions))


@pytest.mark.parametrize(
    "permissions",
    [
        Permissions(deny=("Write(secret/*)",)),
        Permissions(deny=("*",)),
        Permissions(allowed_tools=("Read",)),
        Permissions(allowed_tools=("Read", "Write(a)", "Edit")),
        Permissions(allowed_tools=()),
    ],
)
def test_a_rule_about_files_is_refused(permissions: Permissions) -> None:
    with pytest.raises(Unavailable, match="writable"):
        made(permissions)
