"""The commands for Claude Code, Codex and goose: arguments, settings and rules."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.adapters.claude import Claude
from shoal.adapters.codex import Codex
from shoal.adapters.goose import Goose
from shoal.adapters.kind import Adapter, Invocation, SessionPaths
from shoal.errors import Unavailable
from shoal.model.agent import AgentSpec
from shoal.model.permissions import Permissions
from shoal.model.resolved_task import ResolvedTask

PLACE = SessionPaths(home=Path("/h"), inputs=Path("/in"), workspace=Path("/w"))
KINDS: dict[str, Adapter] = {"claude": Claude(), "codex": Codex(), "goose": Goose()}
EACH = pytest.mark.parametrize("name", KINDS)


def made(name: str, permissions: dict[str, object] | None = None, persona: str = "", **spec: object) -> Invocation:
    task = ResolvedTask(
        name="t",
        prompt="do é" * 100_000,
        system_prompt=persona,
        agent=AgentSpec(name="x", adapter=name, **spec),  # type: ignore[arg-type]
        permissions=Permissions.of(permissions) if permissions else None,
    )
    return KINDS[name].invocation(task, PLACE)


def after(invocation: Invocation, flag: str) -> str:
    return invocation.argv[invocation.argv.index(flag) + 1]


def settings(invocation: Invocation) -> dict[str, object]:
    return tomllib.loads(invocation.home[".codex/config.toml"].decode())


@EACH
def test_the_prompt_goes_by_stdin_whatever_its_length(name: str) -> None:
    invocation = made(name)
    prompt = "do é" * 100_000

    if name == "claude":  # one line, as later messages are
        said = json.loads(invocation.stdin)
        assert said == {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": prompt}]}}
        assert (invocation.is_live, invocation.stdin.count(b"\n")) == (True, 1)
    else:
        assert invocation.stdin == prompt.encode()
    assert max(map(len, invocation.argv)) < 1000


@EACH
def test_model_program_and_arguments_are_the_users(name: str) -> None:
    invocation = made(name, model="large", command=("npx", name), args=("--more", "1"))

    assert invocation.argv[:2] == ("npx", name)
    assert after(invocation, "--model") == "large"
    assert after(invocation, "--more") == "1"


@EACH
def test_without_persona_model_and_rules_nothing_is_said_of_them(name: str) -> None:
    invocation = made(name)

    assert invocation.argv[0] == name
    assert not {"--model", "--system", "--append-system-prompt-file", "--settings", "--tools"} & {*invocation.argv}
    assert not {path for path in invocation.home if path != ".codex/config.toml"}


def test_a_persona_is_more_of_the_system_prompt() -> None:
    assert after(made("claude", persona="be kind"), "--append-system-prompt-file") == "/in/system_prompt.md"
    assert after(made("goose", persona="be kind"), "--system") == "be kind"
    assert settings(made("codex", persona="be kind"))["developer_instructions"] == "be kind"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_persona_is_the_same_in_a_settings_file(persona: str) -> None:
    assert settings(made("codex", persona=persona)).get("developer_instructions", "") in (persona, "")
    assert settings(made("codex", persona=f"x{persona}"))["developer_instructions"] == f"x{persona}"


def test_a_persona_that_is_no_argument_any_more_is_refused() -> None:
    with pytest.raises(Unavailable, match="one argument"):
        made("goose", persona="é" * 60_000)


@EACH
def test_nobody_is_asked_and_nothing_is_reported(name: str) -> None:
    invocation = made(name)

    match name:
        case "claude":
            assert after(invocation, "--permission-mode") == "bypassPermissions"
            assert invocation.env["DISABLE_TELEMETRY"] == invocation.env["DISABLE_AUTOUPDATER"] == "1"
            assert 0 < int(invocation.env["CLAUDE_CODE_MAX_RETRIES"]) < 10
        case "codex":
            assert settings(invocation)["approval_policy"] == "never"
            assert settings(invocation)["analytics"] == {"enabled": False}
            assert after(invocation, "--sandbox") == "danger-full-access"
        case _:
            assert (invocation.env["GOOSE_MODE"], invocation.env["GOOSE_TELEMETRY_ENABLED"]) == ("auto", "false")


def test_claude_is_told_rules_in_its_own_grammar() -> None:
    deny = ["Bash(rm *)", "Write(secret*)", "Edit(/etc/*)", "WebFetch", "mcp__files__*"]
    invocation = made("claude", {"deny": deny})

    rules = json.loads(after(invocation, "--settings"))["permissions"]
    assert rules["deny"] == ["Bash(rm *)", "Edit(secret*)", "Edit(//etc/*)", "WebFetch", "mcp__files__*"]
    assert "--tools" not in invocation.argv


def test_claude_has_only_the_tools_that_are_allowed_and_settings_that_nobody_can_change() -> None:
    invocation = made("claude", {"allowed_tools": ["Read", "Bash(git:*)", "Bash(make *)", "mcp__a__b"]})

    assert after(invocation, "--tools") == "Read,Bash"
    assert after(invocation, "--permission-mode") == "dontAsk"
    assert after(invocation, "--setting-sources") == ""
    allow = json.loads(after(invocation, "--settings"))["permissions"]["allow"]
    assert allow == ["Read", "Bash(git:*)", "Bash(make *)", "mcp__a__b"]


@pytest.mark.parametrize("permissions", [{"allowed_tools": []}, {"deny": ["*"]}])
def test_no_tool_is_no_tool(permissions: dict[str, object]) -> None:
    assert after(made("claude", permissions), "--tools") == ""
    lists = json.loads(made("goose", permissions).home[".config/goose/permission.yaml"])["user"]
    assert lists["always_allow"] == []
    with pytest.raises(Unavailable):
        made("codex", permissions)


@EACH
def test_a_list_of_every_tool_is_no_rule(name: str) -> None:
    assert made(name, {"allowed_tools": ["*"]}).argv == made(name).argv


def test_codex_is_told_which_commands_may_not_begin_how() -> None:
    invocation = made("codex", {"deny": ["Bash(rm *)", "Bash(git push:*)"]})

    rules = invocation.home[".codex/rules/shoal.rules"].decode().splitlines()
    assert [line.partition(", decision")[0] for line in rules] == [
        'prefix_rule(pattern=["rm"]',
        'prefix_rule(pattern=["git", "push"]',
    ]
    assert settings(made("codex", {"deny": ["Bash"]}))["features"] == {"shell_tool": False, "unified_exec": False}
    assert settings(made("codex", {"deny": ["WebSearch"]}))["web_search"] == "disabled"


def test_goose_is_told_of_each_tool_that_it_has() -> None:
    invocation = made("goose", {"deny": ["Bash"]})

    lists = json.loads(invocation.home[".config/goose/permission.yaml"])["user"]
    assert lists == {
        "always_allow": ["edit", "read_image", "tree", "write"],
        "ask_before": [],
        "never_allow": ["shell"],
    }
    assert invocation.env["GOOSE_MODE"] == "approve"
    assert "--no-profile" in invocation.argv


@pytest.mark.parametrize(
    ("name", "permissions"),
    [
        ("claude", {"deny": ["Ba*"]}),
        ("codex", {"allowed_tools": ["Read"]}),
        ("codex", {"deny": ["Edit"]}),
        ("codex", {"deny": ["Bash(*secret*)"]}),
        ("codex", {"deny": ["Bash(echo '*)"]}),
        ("codex", {"deny": ["WebSearch(cats)"]}),
        ("goose", {"deny": ["Bash(rm *)"]}),
        ("goose", {"allowed_tools": ["Ba*"]}),
    ],
)
def test_a_rule_that_cannot_be_held_is_refused_and_named(name: str, permissions: dict[str, list[str]]) -> None:
    (patterns,) = permissions.values()

    with pytest.raises(Unavailable) as refused:
        made(name, dict(permissions))

    assert repr(patterns[0]) in str(refused.value)
    assert name in str(refused.value)
