"""One piece of work for one agent, and the agent that is to do it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.model.limits import ResourceLimits
from shoal.model.policy import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """Which adapter, with what it needs to make a command."""

    name: str
    adapter: str
    command: tuple[str, ...] = ()
    script: str | None = None
    """For `scripted`: its actions as canonical JSON (`pipeline.script`)."""
    network: Network | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = frozenset()
    """Names in *env* whose values came from the host: never shown."""
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A task for some number of identical workers."""

    name: str
    task: Task
    workers: int = 1
    on_failure: str = "fail_fast"


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
    notes: tuple[str, ...] = ()
