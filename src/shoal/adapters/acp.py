"""Any agent that speaks the Agent Client Protocol, by its command."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from shoal.adapters.client import Client
from shoal.adapters.gateway_settings import GatewaySettings, UsesGateway, usual_settings
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.errors import BadInput
from shoal.model.gateway import GatewayAccess
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask

CLIENT = Client(
    program="the command of an `acp` agent",
    install="the package of the agent that `command` names",
    login="log in to it, or hand it a key by `env: {NAME: {from: NAME}}`",
    conversations=(".",),  # the folder is unknown: all of its home
    knows=("model", "system prompt", "tool rules", "usage", "cost", "denials"),
    needs_login=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What Shoal knows about one agent beyond the protocol."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that keep it quiet."""
    system_prompt: str | None = None
    """The file below its home that it takes into its system prompt."""


KNOWN = {
    "goose": Known(
        env={"GOOSE_DISABLE_KEYRING": "1", "GOOSE_TELEMETRY_ENABLED": "false"},
        system_prompt=".config/goose/.goosehints",
    ),
    "claude-agent-acp": Known(
        env={
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_MAX_RETRIES": "5",
            "IS_SANDBOX": "1",
        }
    ),
}


@dataclass(frozen=True, slots=True)
class Acp:
    """Start the agent's own command with an open stdin, through which the session talks to it."""

    name: str = "acp"
    default_network: Network = Network.HOST
    client: Client = CLIENT
    speaker: UsesGateway | None = None
    """The client that the agent is, if we know it."""

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Put the system prompt into the client's home, where the client reads it."""
        spec = task.agent
        if not spec.command:
            raise BadInput(f"agent {spec.name!r} has no command; say which agent to run, like [goose, acp]")
        agent = describe_agent(spec.command)
        model = self.gateway_settings(place.gateway)
        home = dict(model.home)
        if agent.system_prompt and task.system_prompt.strip():
            home[agent.system_prompt] = task.system_prompt.encode()
        return Invocation(
            argv=(*spec.command, *spec.args), stdin=b"", env={**agent.env, **model.env}, home=home, is_live=True
        )

    def gateway_settings(self, access: GatewayAccess | None) -> GatewaySettings:
        """Point the client at the gateway in its own way, or else with the variables that most programs read."""
        return usual_settings(access) if self.speaker is None else self.speaker.gateway_settings(access)

    def reader(self) -> None:
        """Return no reader: the session reads the protocol."""


def describe_agent(command: tuple[str, ...]) -> Known:
    """Return what is known of the agent that *command* starts, by itself or by an interpreter."""
    names = (PurePath(word).name.removesuffix(".js") for word in command)
    return next((KNOWN[name] for name in names if name in KNOWN), Known())
