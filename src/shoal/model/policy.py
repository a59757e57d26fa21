"""What a sandbox may see and touch, and what each kind of network means for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Network(StrEnum):
    """The network of a sandbox."""

    NONE = "none"
    HOST = "host"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Bind:
    """A file or folder of the host, shown in the sandbox at *target*."""

    source: Path
    target: Path
    is_writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """An overlay that has to be mounted in the sandbox's own namespace, because the host may not mount it.

    *upper* and *work* are `None` for a read-only view.
    """

    lower: tuple[Path, ...]
    upper: Path | None
    work: Path | None
    target: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything that a sandbox may see; nothing else exists in it.

    *read* and *write* are shown at their own paths; *covers* are put over other paths, last of all, and read-only
    unless they say otherwise.
    *hidden* are host paths that must not exist inside; each start checks this from inside the sandbox.
    *token* is a secret word that identifies our first line on the sandbox's stderr.
    *is_guarded* says that the kernel ends everything it starts, in the group that it joins, even if we are killed.
    """

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    covers: tuple[Bind, ...] = ()
    hidden: tuple[Path, ...] = ()
    layers: Layers | None = None
    network: Network = Network.NONE
    uid: int = 1000
    gid: int = 1000
    capabilities: tuple[str, ...] = ()
    token: str = ""
    is_guarded: bool = False
    is_served: bool = False
    """Whether Shoal listens in it, even without a network."""

    @property
    def has_listener(self) -> bool:
        """Return whether its command waits until Shoal listens in it."""
        return self.is_served or NETWORKS[self.network].has_listener


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPolicy:
    """One of the networks for agents."""

    name: Network
    shares_host: bool
    """Whether a sandbox has the host's own network: its addresses, its name resolution, its abstract sockets."""
    holds_hosts: bool
    """Whether only the hosts in `permissions.hosts` can be reached."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that programs need to use it."""
    has_listener: bool = False
    """Whether Shoal listens in a sandbox that has no network besides: the agent's model, and the hosts it may reach."""
    note: str = ""
    """What the report says about a session on it."""

    def is_within(self, other: "NetworkPolicy") -> bool:
        """Return whether it reaches nothing that *other* does not reach."""
        return other.shares_host or other is self or not (self.shares_host or self.has_listener)


NETWORKS: Mapping[Network, NetworkPolicy] = {
    policy.name: policy
    for policy in (
        NetworkPolicy(name=Network.NONE, shares_host=False, holds_hosts=True),
        NetworkPolicy(name=Network.GATEWAY, shares_host=False, holds_hosts=True, has_listener=True),
        NetworkPolicy(
            name=Network.HOST, shares_host=True, holds_hosts=False, note="its commands are on the host's network"
        ),
    )
}
