"""Work that is settled: one piece for one agent."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.model.agent import AgentSpec
from shoal.model.budget import SpendingLimit
from shoal.model.limits import ResourceLimits
from shoal.model.permissions import Permissions, effective
from shoal.model.policy import Network
from shoal.model.retry import Retry
from shoal.model.setup import Setup


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
    """After so many seconds without a sign of life a client has failed; `None` means the usual time."""
    limits: ResourceLimits | None = None
    """What it may spend; `None` means the usual limits, with a fair share of CPU."""
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
    """Whether what earlier agents wrote counts as the user's own: settings of clients, and what set-up runs."""
    permissions: Permissions | None = None
    """What it may use and touch; `None` means what its agent's say."""
    inputs: Mapping[str, str | bytes] = field(default_factory=dict, repr=False)
    """What lies as files beside the prompt, by their names; one may lie in a folder."""
    title: str = ""
    """What a person is shown of it, where that is not the beginning of the prompt."""
    setup: Setup | None = None
    """How its workspace is made ready; `None` means as its agent says, or else as the repository does."""
    retry: Retry = field(default_factory=Retry)
    priority: int = 0
    budgets: Mapping[str, SpendingLimit] = field(default_factory=dict)
    """What may be spent on models: by all its agents (`step`), by each of them (`session`), by a `persona:NAME`."""

    @property
    def nearest_setup(self) -> Setup | None:
        """How its workspace is made ready by the nearest word of a document, if there is any."""
        return self.setup if self.setup is not None else self.agent.setup

    @property
    def secret_values(self) -> tuple[Mapping[str, str], ...]:
        """The values that came from the host, by their names, of the task and of its agent."""
        return tuple({name: source.env[name] for name in source.secrets} for source in (self, self.agent))

    @property
    def has_permissions(self) -> bool:
        """Return whether it has permissions."""
        return self.permissions is not None or self.agent.permissions is not None

    @property
    def permitted(self) -> Permissions:
        """What holds for it: its own permissions, else its agent's, and every deny of both."""
        return _merge_permissions(self.permissions, self.agent.permissions)


@functools.lru_cache(maxsize=256)
def _merge_permissions(own: Permissions | None, agents: Permissions | None) -> Permissions:
    return (effective(own, agents) or Permissions()).in_session()
