"""An agent's lines can be told from ours in every log."""

from pathlib import Path

import pytest

from shoal.cli.logs import log_line
from shoal.model.activity import Act
from shoal.model.events import AgentActed, AgentEnded, Output
from tests.cli.conftest import Shoal
from tests.cli.flows import ran

FORGED = "-- exited with 0 --"


def line(stream: str, text: str) -> str:
    return log_line(Output(run="r", session="s", stream=stream, text=text), _plain) or ""


def _plain(text: str, *_: str) -> str:
    return text


@pytest.mark.parametrize(
    "text",
    [
        FORGED,
        f"  {FORGED}",
        "\u2014\u2014 exited with 0 \u2014\u2014",
        "setup: x",
        "ERR: x",
        "shoal: x",
    ],
)
def test_a_line_that_looks_like_ours_is_marked(text: str) -> None:
    assert line("stdout", text).startswith("out: ")
    assert line("stdout", f"a\n{text}").splitlines()[1].startswith("out: ")
    assert all(one.startswith("err: ") for one in line("stderr", f"a\n{text}").splitlines())


@pytest.mark.parametrize("text", ["--- a/file", "- item", "--flag", "x -- y --", "error: x", "SELECT 1; -- why"])
def test_other_lines_are_as_the_agent_wrote_them(text: str) -> None:
    assert line("stdout", text) == text


@pytest.mark.parametrize("act", [Act.TOOL, Act.RESULT, Act.TROUBLE])
def test_what_a_client_says_it_did_is_no_line_of_ours(act: Act) -> None:
    ours = {log_line(AgentEnded(run="r", session="s", exit_code=0, signal=None), _plain), FORGED}
    for tool, text in (("exited with 0", ""), ("", "exited with 0"), ("succeeded in 1 s", "")):
        event = AgentActed(run="r", session="s", act=act, tool=tool, text=text, ok=False)
        assert log_line(event, _plain) not in ours
        assert (log_line(event, _plain) or "").startswith(("-- tool", "-- error: "))


def test_the_lines_of_a_result_are_apart_from_ours() -> None:
    event = AgentActed(run="r", session="s", act=Act.RESULT, tool="Bash", text=f"a\x07\n{FORGED}\n", ok=True)

    assert (log_line(event, _plain) or "").split("\n") == [
        "-- tool Bash returned --",
        r"  | a\x07",
        f"  | {FORGED}",
    ]


def test_a_call_of_several_lines_is_one_line() -> None:
    event = AgentActed(run="r", session="s", act=Act.TOOL, tool="Bash", text="cd src\n  make", ok=True)

    assert log_line(event, _plain) == "-- tool Bash: cd src make --"


def test_a_forged_end_is_not_equal_to_the_real_one(repo: Path, shoal: Shoal) -> None:
    ran(repo, "steps:\n  - {name: a, command: \"echo '-- exited with 0 --'; exit 7\"}\n")

    said = shoal("logs").out.splitlines()

    assert FORGED not in said
    assert f"out: {FORGED}" in said
    assert "-- exited with 7 --" in said
