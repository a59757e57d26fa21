"""Work that is settled: one piece for one agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.model.agent import AgentSpec
from shoal.model.limits import ResourceLimits
from shoal.model.permissions import Permissions, effective
from shoal.model.policy import Network
from shoal.model.retry import Retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A prompt for an agent; *system_prompt* is the persona's."""

    name: str
    prompt: str
    agent: AgentSpec
    system_prompt: str = ""
    network: Network | None = None
    timeout: float | None = None
    limits: ResourceLimits | None = None
    """What it may spend; `None` means the usual limits, with a fair share of CPU."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = frozenset()
    """Names in *env* whose values came from the host: never shown."""
    expect: str = "any"
    """`any`, or `changes`: then a session without changes has failed."""
    permissions: Permissions | None = None
    """What it may use and touch; `None` means what its agent's say."""
    inputs: Mapping[str, str | bytes] = field(default_factory=dict, repr=False)
    """What lies as files beside the prompt, by their names; one may lie in a folder."""
    title: str = ""
    """What a person is shown of it, where that is not the beginning of the prompt."""
    retry: Retry = field(default_factory=Retry)
    priority: int = 0

    @property
    def secret_values(self) -> tuple[Mapping[str, str], ...]:
        """The values that came from the host, by their names, of the task and of its agent."""
        return tuple({name: one.env[name] for name in one.secrets} for one in (self, self.agent))

    @property
    def has_permissions(self) -> bool:
        """Say whether anybody said what it may use and touch."""
        return self.permissions is not None or self.agent.permissions is not None

    @property
    def permitted(self) -> Permissions:
        """What holds for it: its own permissions, else its agent's, and every deny of both."""
        return (effective(self.permissions, self.agent.permissions) or Permissions()).in_session()
