"""An agent as it is described: which kind, and what that needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.model.limits import ResourceLimits
from shoal.model.mind import Mind
from shoal.model.permissions import Permissions
from shoal.model.policy import Network
from shoal.model.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """Which adapter, with what it needs to make a command."""

    name: str
    adapter: str
    command: tuple[str, ...] = ()
    """The program with its arguments; for a client, how it is called here, in place of its usual name."""
    args: tuple[str, ...] = ()
    """For a client: more arguments, after ours."""
    model: str | None = None
    """For a client: the model that it asks."""
    refresh_login: bool = False
    """For a client: whether a login that it renews in its box is taken back into the user's home."""
    script: str | None = None
    """For `scripted`: its actions as canonical JSON (`pipeline.script`); for `function`: where it is found."""
    network: Network | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = frozenset()
    """Names in *env* whose values came from the host: never shown."""
    timeout: float | None = None
    stall_timeout: float | None = None
    limits: ResourceLimits | None = None
    setup: Setup | None = None
    """How its workspaces are made ready; `None` means that no document says."""
    permissions: Permissions | None = None
    mind: Mind | None = None
    """For `python`: the model that it thinks with."""
    made: object | None = field(default=None, repr=False, compare=False)
    """For `python`: an `Agent` that the program made itself, in place of a mind."""

    def asking(self, model: str) -> "AgentSpec":
        """Give the same agent with another model, whichever way it has one."""
        if self.mind is not None:
            return replace(self, mind=replace(self.mind, model=model))
        return replace(self, model=model)
