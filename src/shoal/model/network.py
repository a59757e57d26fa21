"""What each network means: for a sandbox, for an agent's environment, and for the notes that users read.

To add a network, add a member to `Network` and its policy to `NETWORKS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.model.policy import Network


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
    note: str = ""
    """What the report says about a session on it."""

    def is_within(self, other: "NetworkPolicy") -> bool:
        """Return whether it reaches nothing that *other* does not reach."""
        return other.shares_host or not self.shares_host


NETWORKS: Mapping[Network, NetworkPolicy] = {
    policy.name: policy
    for policy in (
        NetworkPolicy(name=Network.NONE, shares_host=False, holds_hosts=True),
        NetworkPolicy(
            name=Network.HOST, shares_host=True, holds_hosts=False, note="its commands are on the host's network"
        ),
    )
}
