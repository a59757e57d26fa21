"""The adapter of any agent that speaks the Agent Client Protocol."""

import pytest

from shoal.adapters.acp import Acp
from shoal.adapters.client import this_host
from shoal.adapters.kind import NOWHERE, Invocation
from shoal.adapters.registry import adapter, adapter_of
from shoal.errors import BadInput
from shoal.model.agent import AgentSpec
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask


def made(*command: str, system_prompt: str = "Be kind.") -> Invocation:
    spec = AgentSpec(name="x", adapter="acp", command=command, args=("--more",))
    task = ResolvedTask(name="t", prompt="do it", system_prompt=system_prompt, agent=spec)
    return adapter("acp", this_host()).invocation(task, NOWHERE)


def test_it_runs_its_command_and_leaves_stdin_open_for_the_conversation() -> None:
    invocation = made("any", "--acp")

    assert (invocation.argv, invocation.stdin, invocation.is_live) == (("any", "--acp", "--more"), b"", True)
    assert (invocation.env, invocation.home) == ({}, {})
    assert Acp().default_network is Network.HOST


def test_an_agent_that_is_known_is_kept_quiet_and_told_who_it_is_in_its_own_way() -> None:
    goose, claude = made("/opt/goose/bin/goose", "acp"), made("node", "/opt/claude-agent-acp.js")

    assert goose.home == {".config/goose/.goosehints": b"Be kind."}
    assert goose.env["GOOSE_TELEMETRY_ENABLED"] == "false"
    assert (claude.home, claude.env["IS_SANDBOX"]) == ({}, "1")
    assert made("goose", "acp", system_prompt=" ").home == {}


def test_without_a_command_there_is_no_agent() -> None:
    with pytest.raises(BadInput, match=r"like \[goose, acp\]"):
        made()


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("goose", "acp"), "OPENAI_API_KEY"),
        (("node", "/x/claude-agent-acp.js"), "ANTHROPIC_API_KEY"),
        (("gemini", "--acp"), "GEMINI_API_KEY"),
        (("my-own",), None),
    ],
)
def test_an_agent_that_we_know_as_a_client_has_its_login(command: tuple[str, ...], key: str | None) -> None:
    client = adapter_of(AgentSpec(name="x", adapter="acp", command=command), this_host()).client

    assert client is not None
    assert (key in client.keys) if key else client.keys == ()
    assert not client.needs_login
