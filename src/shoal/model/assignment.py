"""Work that is settled: one piece for one agent, in steps, as a whole plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.model.agent import AgentSpec
from shoal.model.limits import ResourceLimits
from shoal.model.permissions import Permissions, effective
from shoal.model.policy import Network
from shoal.model.retry import Retry
from shoal.model.rule import Rule
from shoal.model.task import Task


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
    inputs: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Texts that lie as files beside the prompt, by their names."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A task for some number of identical workers."""

    name: str
    task: Assignment
    workers: int = 1
    on_failure: str = "fail_fast"
    needs: tuple[str, ...] = ()
    """Steps that must end well first; it starts from their merged work."""
    base: str | None = None
    """What it starts from, where that is not the run's base: a name that git knows."""
    is_stacked: bool = True
    """Whether it starts from the work of its needs at all."""
    is_optional: bool = False
    """Whether the run, and who needs it, go on as if nothing were wrong when it fails."""
    wish: Task | None = None
    """What was asked for, where its inputs may name its needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run: its steps, and how it is to be run."""

    name: str
    steps: tuple[Step, ...]
    max_concurrent: int = 10
    isolation_strategy: str = "auto"
    sandbox: str = "bubblewrap"
    cleanup_on_complete: bool = True
    fleet_limits: ResourceLimits | None = None
    rule: Rule | None = None
    """By which all workers run together; `None` means that each step goes by its own `on_failure`."""
    notes: tuple[str, ...] = ()
