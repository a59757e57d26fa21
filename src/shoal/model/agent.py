"""The description of an agent: its adapter and that adapter's settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.model.budget import SpendingLimit
from shoal.model.limits import ResourceLimits
from shoal.model.permissions import Permissions
from shoal.model.policy import Network
from shoal.model.setup import Setup
from shoal.model.talk import TalkGrant

# The arguments of each sandboxed tool; a rule like `read(docs/*)` applies to the first.
TOOLS: Mapping[str, tuple[str, ...]] = {
    "read": ("path", "first_line", "lines"),
    "write": ("path", "content"),
    "edit": ("path", "old", "new"),
    "list": ("path",),
    "search": ("pattern", "path"),
    "shell": ("command", "seconds"),
}

SCRIPTED = "scripted"
"""The model that gives scripted replies, to try pipelines without a provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What an agent may spend on its model for one task; `None` means no limit."""

    turns: int | None = None
    tokens: int | None = None
    dollars: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The model of an in-process agent; *replies* are those of the model `scripted`, as canonical JSON."""

    model: str
    tools: tuple[str, ...] = tuple(TOOLS)
    replies: str | None = None
    budget: Budget | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An adapter, and what it needs to make a command."""

    name: str
    adapter: str
    command: tuple[str, ...] = ()
    """The program with its arguments; for a client, the command to use instead of its usual name."""
    args: tuple[str, ...] = ()
    """For a client: more arguments, after ours."""
    model: str | None = None
    """For a client: its model."""
    temperature: float | None = None
    """For a client in `WITH_TEMPERATURE`: the temperature; `None` leaves it to the client."""
    refresh_login: bool = False
    """For a client: whether a login that it renews in its sandbox is copied back into the user's home."""
    script: str | None = None
    """For `scripted`: its actions as canonical JSON (`pipeline.script`); for `function`: where it is defined."""
    network: Network | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = frozenset()
    """Names in *env* whose values came from the host: never shown."""
    secret_sources: Mapping[str, str] = field(default_factory=dict)
    """The host's variable that each secret came from, by its name in *env*; one that is missing has the same name."""
    timeout: float | None = None
    stall_timeout: float | None = None
    limits: ResourceLimits | None = None
    budget: SpendingLimit | None = None
    """What each of its sessions may spend on models; for `python`, *mind* has it."""
    setup: Setup | None = None
    """How its workspaces are set up; `None` means that no document says."""
    permissions: Permissions | None = None
    talk: TalkGrant | None = None
    """What it may do with other agents of its run."""
    mind: ModelSettings | None = None
    """For `python`: its model."""
    made: object | None = field(default=None, repr=False, compare=False)
    """For `python`: an `Agent` that the program made itself, instead of a model."""

    def asking(self, model: str) -> "AgentSpec":
        """Return the same agent with another model, in whichever field it has one."""
        if self.mind is not None:
            return replace(self, mind=replace(self.mind, model=model))
        return replace(self, model=model)


CLIENTS = ("claude", "codex", "goose", "gemini", "copilot", "opencode", "aider")
ACP = "acp"
"""Any agent that speaks the Agent Client Protocol, by its command."""
EVERY = (*CLIENTS, ACP)
WITH_TEMPERATURE = ("goose", "opencode", "aider")
"""The clients that accept a temperature."""
ENTRY_POINTS = "shoal.adapters"
"""The group of entry points for adapters of other packages."""
