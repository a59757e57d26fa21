"""An agent as it is described: which kind, and what that needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.model.limits import ResourceLimits
from shoal.model.mind import Mind
from shoal.model.permissions import Permissions
from shoal.model.policy import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """Which adapter, with what it needs to make a command."""

    name: str
    adapter: str
    command: tuple[str, ...] = ()
    script: str | None = None
    """For `scripted`: its actions as canonical JSON (`pipeline.script`); for `function`: where it is found."""
    network: Network | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = frozenset()
    """Names in *env* whose values came from the host: never shown."""
    timeout: float | None = None
    limits: ResourceLimits | None = None
    permissions: Permissions | None = None
    mind: Mind | None = None
    """For `python`: the model that it thinks with."""
    made: object | None = field(default=None, repr=False, compare=False)
    """For `python`: an `Agent` that the program made itself, in place of a mind."""
