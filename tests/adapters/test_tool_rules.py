"""The scripted agent obeys its tool rules, as the model reads them."""

import json
import runpy
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.adapters.client import this_host
from shoal.adapters.kind import NOWHERE
from shoal.adapters.registry import adapter
from shoal.model.agent import AgentSpec
from shoal.model.permissions import Permissions, ToolRule
from shoal.model.resolved_task import ResolvedTask
from shoal.pipeline.keys.script import script
from shoal.sessions.policy import as_json

PROGRAM = runpy.run_path(str(this_host().programs / "scripted_agent.py"))


def ran(actions: str, top: Path, **permissions: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the actions in a folder of their own, with these permissions."""
    file, workspace = top / "permissions.json", top / "workspace"
    file.write_text(as_json(Permissions.of(permissions)))
    workspace.mkdir()
    spec = AgentSpec(name="x", adapter="scripted", script=script(actions, "s.yaml"))
    made = adapter("scripted", this_host()).invocation(ResolvedTask(name="t", prompt="", agent=spec), NOWHERE)
    return subprocess.run(
        made.argv,
        cwd=workspace,
        env={"SHOAL_PERMISSIONS_FILE": str(file), "PATH": "/usr/bin:/bin"},
        input=made.stdin.decode(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("action", "rule", "said"),
    [
        ("{write: {path: secret/a, content: x}}", "Write(secret/*)", "Write(secret/a)"),
        ("{write: {path: ./b/../secret/a, content: x}}", "Write(secret/*)", "Write(secret/a)"),
        ("{append: {path: a, content: x}}", "Write", "Write(a)"),
        ("{delete: a}", "Write(a)", "Write(a)"),
        ("{write: {path: /nowhere/a, content: x}}", "Write(/*)", "Write(/nowhere/a)"),
        ("{run: rm -rf x}", "Bash(rm *)", "Bash(rm -rf x)"),
        ("{run: [rm, -rf, x], ignore_failure: true}", "Bash(rm:*)", "Bash(rm -rf x)"),
    ],
)
def test_a_denied_action_ends_the_agent_and_names_the_rule(tmp_path: Path, action: str, rule: str, said: str) -> None:
    done = ran(f"[{action}, {{say: never}}]", tmp_path, deny=[rule], allowed_tools=["*"])

    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"denied by rule {rule}: {said}\n")
    assert list((tmp_path / "workspace").iterdir()) == []


def test_what_is_not_listed_is_denied(tmp_path: Path) -> None:
    actions = "[{write: {path: a, content: x}}, {run: 'true'}, {run: 'false'}]"

    done = ran(actions, tmp_path, allowed_tools=["Write", "Bash(true)"])

    assert (done.returncode, done.stderr) == (1, "denied by rule allowed_tools: Bash(false)\n")
    assert (tmp_path / "workspace/a").read_text() == "x"


def test_words_and_pauses_need_no_tool(tmp_path: Path) -> None:
    done = ran("[{say: a}, {sleep: 0}, {exit: 3}]", tmp_path, allowed_tools=[])

    assert (done.returncode, done.stdout) == (3, "a\n")


def test_rules_that_cannot_be_read_end_the_agent(tmp_path: Path) -> None:
    argv = adapter("scripted", this_host()).invocation(
        ResolvedTask(name="t", prompt="", agent=AgentSpec(name="x", adapter="scripted", script="[]")),
        NOWHERE,
    )
    env = {"SHOAL_PERMISSIONS_FILE": str(tmp_path / "missing")}

    done = subprocess.run(argv.argv, env=env, input=b"[]", capture_output=True, check=False)

    assert done.returncode != 0


patterns = st.from_regex(r"[AB*]{1,3}(\([a:* ()]{1,6}\))?", fullmatch=True)


@given(patterns, st.text("AB", min_size=1, max_size=3), st.text("a: ()", max_size=6))
def test_the_program_reads_a_rule_as_the_model_does(pattern: str, tool: str, argument: str) -> None:
    assert PROGRAM["covers"](pattern, tool, argument) is ToolRule.of(pattern).covers(tool, argument)


def test_the_file_says_which_lists_nobody_gave() -> None:
    assert json.loads(as_json(Permissions(deny=("Bash",)))) == {
        "allowed_tools": None,
        "deny": ["Bash"],
        "readable": ["."],
        "writable": ["."],
        "env": None,
        "hosts": None,
        "provider_tools": None,
    }
