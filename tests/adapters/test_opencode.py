"""opencode: the command for a task, and the parsing of recorded lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.adapters.opencode import CONFIG, LOGIN, Opencode, OpencodeReader
from shoal.errors import Unavailable
from shoal.model.activity import Act
from shoal.model.permissions import Permissions
from tests.adapters.client_lines import PLACE, events, heard, task

TURN = r"""
{"type":"step_start","timestamp":1794836018135,"sessionID":"ses_e1","part":{"id":"prt_1","messageID":"msg_1","sessionID":"ses_e1","type":"step-start"}}
{"type":"text","timestamp":1794836018136,"sessionID":"ses_e1","part":{"id":"prt_2","sessionID":"ses_e1","type":"text","text":"I will write it.","time":{"start":1,"end":2}}}
{"type":"tool_use","timestamp":1794836018136,"sessionID":"ses_e1","part":{"type":"tool","tool":"write","callID":"call_3e","state":{"status":"completed","input":{"content":"hello","filePath":"hello.txt"},"output":"Wrote file successfully.","title":"hello.txt"},"id":"prt_3","sessionID":"ses_e1"}}
{"type":"step_finish","timestamp":1794836018642,"sessionID":"ses_e1","part":{"id":"prt_4","reason":"tool-calls","sessionID":"ses_e1","type":"step-finish","tokens":{"total":18,"input":11,"output":7,"reasoning":0,"cache":{"write":0,"read":0}},"cost":0}}
{"type":"tool_use","timestamp":1794836552659,"sessionID":"ses_e1","part":{"type":"tool","tool":"bash","callID":"call_08","state":{"status":"error","input":{"command":"cd . && rm x"},"error":"The user has specified a rule which prevents you from using this specific tool call. Here are some of the relevant rules []"},"id":"prt_5","sessionID":"ses_e1"}}
{"type":"text","timestamp":1794836021476,"sessionID":"ses_e1","part":{"id":"prt_6","type":"text","text":"Done."}}
{"type":"step_finish","timestamp":1794836021767,"sessionID":"ses_e1","part":{"id":"prt_7","reason":"stop","type":"step-finish","tokens":{"total":18,"input":11,"output":7,"reasoning":2,"cache":{"write":3,"read":5}},"cost":0.25}}
"""
REFUSED = r"""
{"type":"error","timestamp":1794836599083,"sessionID":"ses_e1","error":{"name":"APIError","data":{"message":"the script says 401","statusCode":401,"isRetryable":false,"responseBody":"{\"error\": {\"code\": \"invalid_api_key\"}}","metadata":{"url":"http://127.0.0.1:38979/v1/chat/completions"}}}}
"""


def rights(**permissions: tuple[str, ...]) -> object:
    """Give what it is told of these rules."""
    made = Opencode().invocation(task("opencode", permissions=Permissions(**permissions)), PLACE)
    return list(_pairs(json.loads(made.env[CONFIG])["permission"]))


def _pairs(table: dict[str, object]) -> list[object]:
    return [(name, list(one.items()) if isinstance(one, dict) else one) for name, one in table.items()]


def test_the_prompt_goes_to_stdin_and_the_persona_into_its_configuration() -> None:
    made = Opencode().invocation(task("opencode", model="anthropic/m", args=("--thinking",)), PLACE)

    title = ("run", "--format", "json", "--title=t")
    assert made.argv == ("opencode", *title, "--model", "anthropic/m", "--thinking")
    assert made.stdin == "do é".encode()
    assert json.loads(made.env[CONFIG]) == {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "permission": {"*": "allow"},
        "instructions": ["/s/input/system_prompt.md"],
    }


def test_a_turn_is_read_by_its_events() -> None:
    reader = OpencodeReader()

    acts = heard(reader, TURN)

    assert [(one.act, one.tool, one.text[:24]) for one in acts] == [
        (Act.BEGAN, "", ""),
        (Act.SAID, "", "I will write it."),
        (Act.TOOL, "write", "hello.txt"),
        (Act.RESULT, "write", "Wrote file successfully."),
        (Act.TOOL, "bash", "cd . && rm x"),
        (Act.DENIED, "bash", "The user has specified a"),
        (Act.SAID, "", "Done."),
    ]
    assert reader.usage == {"input_tokens": 30, "output_tokens": 16, "cost_usd": 0.25}
    assert (reader.session, reader.is_done, reader.verdict(1, "")) == ("ses_e1", False, None)


def test_a_refused_key_names_what_to_do() -> None:
    reader = OpencodeReader()

    heard(reader, REFUSED)

    assert reader.verdict(1, "") == f"the model's provider refused its login: the script says 401 (401); {LOGIN}"


@pytest.mark.parametrize(
    ("lines", "errors", "why"),
    [
        ("", "", "before it was done"),
        ("", "Error: no model\n", "no model"),
        ('{"type":"step_finish","part":{"reason":"tool-calls"}}', "", "before it was done"),
        ('{"type":"step_finish","part":{"reason":"length"}}', "", "too long"),
        ('{"type":"error","error":{"name":"UnknownError"}}', "", "UnknownError"),
    ],
)
def test_an_exit_code_of_0_is_not_believed(lines: str, errors: str, why: str) -> None:
    reader = OpencodeReader()
    heard(reader, lines)

    assert why in (reader.verdict(0, errors) or "")


@given(st.lists(events()))
def test_no_line_makes_the_reader_raise(lines: list[str]) -> None:
    reader = OpencodeReader()
    heard(reader, "\n".join(lines))

    assert reader.verdict(0, "") is None or reader.verdict(0, "")


def test_of_its_rules_the_last_one_that_fits_decides() -> None:
    assert rights(deny=("Bash(rm *)", "WebFetch")) == [
        ("*", "allow"),
        ("bash", [("*", "allow"), ("rm *", "deny")]),
        ("webfetch", [("*", "deny")]),
    ]
    assert rights(allowed_tools=("Read", "Bash(git:*)"), deny=("Bash(git push*)",)) == [
        ("*", "deny"),
        ("read", [("*", "allow")]),
        ("bash", [("*", "deny"), ("git", "allow"), ("git *", "allow"), ("git push*", "deny")]),
    ]
    assert rights(allowed_tools=("Bash(ls)",), deny=("Bash",)) == [
        ("*", "deny"),
        ("bash", [("ls", "allow"), ("*", "deny")]),
    ]
    assert rights(allowed_tools=()) == [("*", "deny")]


@pytest.mark.parametrize("rule", ["Write", "Edit(a)", "Read(/etc/*)", "Bash(ls ?)", "WebFetch(x)", "Web*"])
def test_a_rule_that_it_cannot_be_held_to_is_refused(rule: str) -> None:
    with pytest.raises(Unavailable, match="for opencode is not available"):
        rights(deny=(rule,))
