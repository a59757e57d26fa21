"""What every network policy must satisfy, and that a policy is added by its line in the table alone."""

from enum import StrEnum
from pathlib import Path
from typing import cast

import pytest

from shoal.model.command import Command, InheritedBytes
from shoal.model.policy import NETWORKS, Network, NetworkPolicy, Policy
from shoal.sandboxes.host import HostRoot
from shoal.sandboxes.landlock import Landlock
from shoal.sandboxes.seccomp import Strength

FILTERS = {Strength.CONFINED: b"confined", Strength.CUT_OFF: b"cut off"}


class ToyNetwork(StrEnum):
    GATEWAY = "gateway"


@pytest.mark.parametrize("network", Network)
def test_every_network_has_one_policy_that_is_within_itself_and_the_host(network: Network) -> None:
    policy = NETWORKS[network]

    assert policy.name is network
    assert policy.is_within(policy)
    assert policy.is_within(NETWORKS[Network.HOST])
    assert not NETWORKS[Network.HOST].is_within(NETWORKS[Network.NONE])


@pytest.mark.parametrize("network", Network)
def test_a_policy_that_shares_the_host_enforces_no_list_of_hosts(network: Network) -> None:
    policy = NETWORKS[network]

    assert not (policy.shares_host and policy.holds_hosts)


@pytest.mark.parametrize(("shares_host", "expected"), [(True, b"confined"), (False, b"cut off")])
def test_a_sandbox_follows_an_added_policy(monkeypatch: pytest.MonkeyPatch, shares_host: bool, expected: bytes) -> None:
    gateway = cast(Network, ToyNetwork.GATEWAY)  # an enum cannot be extended from outside
    added = NetworkPolicy(name=gateway, shares_host=shares_host, holds_hosts=not shares_host)
    monkeypatch.setattr("shoal.sandboxes.landlock.NETWORKS", {**NETWORKS, gateway: added})
    sandbox = Landlock(
        launcher=("launcher",), abi=6, filters=FILTERS, root=HostRoot(links=(), folders=(), etc=(), resolver=())
    )

    wrapped = sandbox.wrap(Command(argv=("true",), cwd=Path("/"), env={}), Policy(network=gateway))

    assert InheritedBytes(expected) in wrapped.argv
