"""Copilot CLI: the command for a task, and the parsing of recorded lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.adapters.copilot import LOGIN, Copilot, CopilotReader
from shoal.errors import Unavailable
from shoal.model.activity import Act
from shoal.model.permissions import Permissions
from tests.adapters.client_lines import PLACE, events, heard, task

TURN = """\
{"type":"session.mcp_servers_loaded","ephemeral":true,"data":{"servers":[]},"id":"54a55631"}
{"type":"user.message","data":{"content":"please","messageId":"d0125a6e","delivery":"idle"},"id":"5873ccd4"}
{"type":"assistant.turn_start","data":{"turnId":"0","interactionId":"ae456eca"},"id":"fd223088"}
{"type":"model.call_start","data":{"turnId":"0","model":"well"},"ephemeral":true,"id":"1c03bf15"}
{"type":"assistant.message_delta","data":{"messageId":"ac13e1ad","deltaContent":"I "},"ephemeral":true,"id":"d6599e53"}
{"type":"assistant.message","data":{"messageId":"ac13e1ad","model":"well","content":"I will write it.","toolRequests":[{"toolCallId":"call_6e","name":"create","arguments":{"path":"hello.txt"}}]},"id":"6a6f39db"}
{"type":"tool.execution_start","data":{"toolCallId":"call_6e","toolName":"create","arguments":{"path":"hello.txt","file_text":"hello"},"turnId":"0"},"id":"56259d95"}
{"type":"tool.execution_complete","data":{"toolCallId":"call_6e","success":true,"result":{"content":"Created file hello.txt","detailedContent":"diff"}},"id":"0ae07fcf"}
{"type":"model.call_start","data":{"turnId":"1","model":"well"},"ephemeral":true,"id":"36c92996"}
{"type":"tool.execution_start","data":{"toolCallId":"call_a4","toolName":"bash","arguments":{"command":"rm x","description":"any"},"turnId":"1"},"id":"66ac5c01"}
{"type":"tool.execution_complete","data":{"toolCallId":"call_a4","success":false,"error":{"message":"Permission to run this tool was denied due to the following rules: `shell(rm:*)`","code":"denied"}},"id":"3f569e13"}
{"type":"assistant.message","data":{"messageId":"c8c53bbf","model":"well","content":"Done.","toolRequests":[]},"id":"1d7d8257"}
{"type":"result","timestamp":"2026-11-16T13:44:35.148Z","sessionId":"cf96510d","exitCode":0,"usage":{"premiumRequests":0,"totalApiDurationMs":285}}
"""
REFUSED = r"""
{"type":"model.call_start","data":{"turnId":"0","model":"well"},"ephemeral":true,"id":"1c03bf15"}
{"type":"model.call_failure","data":{"model":"well","statusCode":401,"retryAttempt":0,"errorMessage":"{\"message\":\"the script says 401\"}"},"ephemeral":true,"id":"62a206df"}
{"type":"assistant.turn_retry","data":{"turnId":"0","model":"well","reason":"transient_auth_error"},"ephemeral":true,"id":"9e22bf18"}
{"type":"session.error","data":{"errorType":"authentication","message":"Authentication failed with provider at http://127.0.0.1:37967/v1 (HTTP 401).\n  Check your COPILOT_PROVIDER_API_KEY.","statusCode":401},"id":"662de0b3"}
{"type":"result","timestamp":"2026-11-16T13:47:07.305Z","sessionId":"741766f8","exitCode":1,"usage":{"premiumRequests":0}}
"""


def told(**permissions: tuple[str, ...]) -> list[str]:
    """Give what it is told of these rules."""
    made = Copilot().invocation(task("copilot", permissions=Permissions(**permissions)), PLACE)
    return [word for word in made.argv if "-tool" in word]


def test_the_prompt_goes_to_stdin_and_the_persona_into_its_instructions() -> None:
    made = Copilot().invocation(task("copilot", model="gpt-5", args=("--experimental",)), PLACE)

    assert made.argv[:3] == ("copilot", "--output-format", "json")
    assert {"--allow-all", "--no-ask-user"} <= set(made.argv)
    assert made.argv[-3:] == ("--model", "gpt-5", "--experimental")
    assert made.stdin == "do é".encode()
    assert made.home == {".copilot/copilot-instructions.md": b"be kind"}


def test_a_turn_is_read_by_its_events() -> None:
    reader = CopilotReader()

    acts = heard(reader, TURN)

    assert [(one.act, one.tool, one.text[:24]) for one in acts] == [
        (Act.BEGAN, "", "well"),
        (Act.SAID, "", "I will write it."),
        (Act.TOOL, "create", "hello.txt"),
        (Act.RESULT, "create", "Created file hello.txt"),
        (Act.TOOL, "bash", "rm x"),
        (Act.DENIED, "bash", "Permission to run this t"),
        (Act.SAID, "", "Done."),
    ]
    assert (reader.session, reader.is_done, reader.verdict(0, ""), reader.usage) == ("cf96510d", True, None, {})


def test_a_refused_key_names_what_to_do() -> None:
    reader = CopilotReader()

    acts = heard(reader, REFUSED)

    assert [one.act for one in acts] == [Act.BEGAN, Act.RETRY, Act.TROUBLE]
    assert reader.verdict(1, "") == (
        "the model's provider refused its login: Authentication failed with provider at http://127.0.0.1:37967/v1 "
        f"(HTTP 401). Check your COPILOT_PROVIDER_API_KEY.; {LOGIN}"
    )


@pytest.mark.parametrize(
    ("lines", "errors", "why"),
    [
        ("", "Error: No authentication information found.\n\nCopilot can …\n", "copilot login"),
        ("", "", "before it was done"),
        ('{"type":"result","exitCode":0}', "Package extraction took 5046ms", None),
        ('{"type":"result","exitCode":1}', "", "ended with 1"),
    ],
)
def test_an_exit_code_is_not_believed(lines: str, errors: str, why: str | None) -> None:
    reader = CopilotReader()
    heard(reader, lines)

    verdict = reader.verdict(0, errors)

    assert verdict is None if why is None else why in (verdict or "")


def test_an_error_that_it_got_over_is_no_failure() -> None:
    reader = CopilotReader()

    heard(reader, '{"type":"session.error","data":{"message":"m"}}\n' + TURN)

    assert reader.verdict(0, "") is None


@given(st.lists(events()))
def test_no_line_makes_the_reader_raise(lines: list[str]) -> None:
    reader = CopilotReader()
    heard(reader, "\n".join(lines))

    assert reader.verdict(0, "") is None or reader.verdict(0, "")


@pytest.mark.parametrize(
    ("deny", "words"),
    [
        (("Bash(rm *)", "Bash(git push:*)"), ["--deny-tool=shell(rm:*)", "--deny-tool=shell(git push:*)"]),
        (("WebFetch", "Grep"), ["--excluded-tools=web_fetch,grep"]),
        (("Write", "Edit"), ["--excluded-tools=create,edit,apply_patch", "--deny-tool=write"]),
        (("Write(a/b)", "Edit(a/b)"), ["--deny-tool=write(/s/work/a/b)"]),
        (("*",), ["--available-tools=none"]),
    ],
)
def test_what_is_denied_is_told_by_its_own_names(deny: tuple[str, ...], words: list[str]) -> None:
    assert told(deny=deny) == words


def test_what_is_listed_is_all_there_is() -> None:
    assert told(allowed_tools=("Read", "Write", "Edit")) == ["--available-tools=view,create,edit,apply_patch"]
    assert told(allowed_tools=()) == ["--available-tools=none"]
    assert told(allowed_tools=("*",)) == []


@pytest.mark.parametrize("rule", ["Bash(ls)", "Bash(*x)", "Bash(a b c *)", "Write", "Write(a)", "Read(a)", "Web*"])
def test_a_rule_that_it_cannot_be_held_to_is_refused(rule: str) -> None:
    with pytest.raises(Unavailable, match="for copilot is not available"):
        told(deny=(rule,))


def test_a_list_of_single_uses_is_refused() -> None:
    """Measured: with `shell(git:*)` alone allowed, `echo x > f` ran."""
    with pytest.raises(Unavailable, match="unasked"):
        told(allowed_tools=("Bash(git:*)",))
