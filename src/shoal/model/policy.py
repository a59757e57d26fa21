"""What a sandbox may see and touch, and what each kind of network means for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Network(StrEnum):
    """Which network a box is on."""

    NONE = "none"
    HOST = "host"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Bind:
    """One file or folder of the host, shown in the box at *target*."""

    source: Path
    target: Path
    is_writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """An overlay that has to be mounted inside the box's own namespace, because the host may not mount it.

    *upper* and *work* are `None` for a read-only view.
    """

    lower: tuple[Path, ...]
    upper: Path | None
    work: Path | None
    target: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The whole of what a box may see: everything else does not exist in it.

    *read* and *write* are shown at their own paths; *covers* are laid over other paths, last of all, and read-only
    if they do not say otherwise.
    *hidden* are host paths that must not exist inside; each start checks this from inside the sandbox.
    *token* is the secret word by which the box's first line of stderr is known to be ours.
    *is_guarded* says that all it starts is ended with it by the kernel's group that it joins, even when we are killed.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPolicy:
    """One network that agents can be on."""

    name: Network
    shares_host: bool
    """Whether a sandbox has the host's own network: its addresses, its name resolution, its abstract sockets."""
    holds_hosts: bool
    """Whether no host outside of `permissions.hosts` can be reached."""
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
