"""A resolved task: the work of one agent."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.model.agent import AgentSpec
from shoal.model.budget import SpendingLimit
from shoal.model.limits import ResourceLimits
from shoal.model.nodes import Label
from shoal.model.permissions import Permissions, effective
from shoal.model.policy import Network
from shoal.model.retry import Retry
from shoal.model.setup import Setup
from shoal.model.talk import TalkGrant


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTask:
    """A prompt for an agent; *system_prompt* is the persona's."""

    name: str
    prompt: str
    agent: AgentSpec
    system_prompt: str = ""
    network: Network | None = None
    timeout: float | None = None
    stall_timeout: float | None = None
    """A client without activity for this many seconds has failed; `None` means the default."""
    limits: ResourceLimits | None = None
    """Its limits; `None` means the defaults, with a fair share of CPU."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = frozenset()
    """Names in *env* whose values came from the host: never shown."""
    secret_sources: Mapping[str, str] = field(default_factory=dict)
    """The host's variable that each secret came from, by its name in *env*; one that is missing has the same name."""
    max_concurrent_agents: int = 1
    """How many sub-agents it may have at once; 1 means that it works alone."""
    expect: str = "any"
    """`any`, or `changes`: then a session without changes has failed."""
    allow_executable_config: bool = False
    """Whether earlier agents' files count as the user's own: client settings, and what set-up runs."""
    permissions: Permissions | None = None
    """Its permissions; `None` means its agent's."""
    inputs: Mapping[str, str | bytes] = field(default_factory=dict, repr=False)
    """Files beside the prompt, by name; one may be in a folder."""
    title: str = ""
    """What a person is shown instead of the beginning of the prompt."""
    setup: Setup | None = None
    """How its workspace is set up; `None` means by its agent's setting, or the repository's."""
    retry: Retry = field(default_factory=Retry)
    priority: int = 0
    talk: TalkGrant | None = None
    """What it may do with other agents; `None` means nothing."""
    needs_node: Mapping[str, Label] = field(default_factory=dict)
    """The labels that a node must have to run it."""
    budgets: Mapping[str, SpendingLimit] = field(default_factory=dict)
    """What may be spent on models: by all its agents (`step`), by each of them (`session`), by a `persona:NAME`."""

    def asking(self, model: str) -> "ResolvedTask":
        """Return the same task for another model, which programs find in `SHOAL_MODEL`."""
        return replace(self, agent=self.agent.asking(model), env={**self.env, "SHOAL_MODEL": model})

    @property
    def nearest_setup(self) -> Setup | None:
        """The set-up of its workspace by precedence, if any document has one."""
        return self.setup if self.setup is not None else self.agent.setup

    @property
    def secret_values(self) -> tuple[Mapping[str, str], ...]:
        """The values that came from the host, by name, for the task and its agent."""
        return tuple({name: source.env[name] for name in source.secrets} for source in (self, self.agent))

    @property
    def has_permissions(self) -> bool:
        """Return whether it has permissions."""
        return self.permissions is not None or self.agent.permissions is not None

    @property
    def permitted(self) -> Permissions:
        """Its permissions: its own, or else its agent's, with the deny rules of both."""
        return _merge_permissions(self.permissions, self.agent.permissions)


@functools.lru_cache(maxsize=256)
def _merge_permissions(own: Permissions | None, agents: Permissions | None) -> Permissions:
    return (effective(own, agents) or Permissions()).in_session()
