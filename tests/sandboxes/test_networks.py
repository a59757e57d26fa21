"""What every network promises in every sandbox that confines; a new network must pass unchanged."""

import socket

import pytest

from shoal.model.policy import NETWORKS, Network, Policy
from shoal.sandboxes.kind import Sandbox
from tests.sandboxes.sandbox_runs import Person, boxed

CONNECT = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5)
    print("reached")
except OSError:
    print("refused")
"""


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest, bubblewrap: Sandbox, landlock: Sandbox) -> Sandbox:
    return {"bubblewrap": bubblewrap, "landlock": landlock}[request.param]


def test_every_network_has_a_policy_by_its_own_name() -> None:
    assert {name: policy.name for name, policy in NETWORKS.items()} == {network: network for network in Network}


@pytest.mark.parametrize("network", Network)
def test_a_listener_of_the_host_is_reached_only_by_a_network_that_shares_it(
    sandbox: Sandbox, who: Person, network: Network
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = ("python3", "-c", CONNECT, str(server.getsockname()[1]))
        said = boxed(sandbox, who, argv, Policy(network=network)).out.split()

    assert said == ["reached" if NETWORKS[network].shares_host else "refused"]


def test_a_network_is_within_itself_and_none_is_within_all() -> None:
    assert all(policy.is_within(policy) for policy in NETWORKS.values())
    assert all(NETWORKS[Network.NONE].is_within(policy) for policy in NETWORKS.values())
    assert not NETWORKS[Network.HOST].is_within(NETWORKS[Network.NONE])


def test_only_a_network_that_holds_hosts_keeps_the_host_away() -> None:
    """`permissions.hosts` is refused on any other, so nothing could be reached that was not listed."""
    assert not [policy.name for policy in NETWORKS.values() if policy.holds_hosts and policy.shares_host]
