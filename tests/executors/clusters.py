"""Clusters of Ray for tests: a head without processors and some nodes, in a network of their own as root."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

from shoal.executors.carriers import ray as carrier
from tests.executors.hosts import enter_network, open_network

STORE_BYTES = 80 * 2**20
ROOM = 4


@contextlib.contextmanager
def open_cluster(*, count: int = 3) -> Iterator[Any]:
    """Start a cluster of *count* nodes with room for four sessions each; `RAY_ADDRESS` names it meanwhile."""
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0:
            stack.enter_context(enter_network(stack.enter_context(open_network())))
        carrier._set_token(os.environ)
        cluster = stack.enter_context(_open(count))
        os.environ["RAY_ADDRESS"] = cluster.address
        stack.callback(os.environ.pop, "RAY_ADDRESS")
        yield cluster


@contextlib.contextmanager
def _open(count: int) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own code
        from ray.cluster_utils import Cluster
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(count):
                cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, resources={"shoal": ROOM})
            yield cluster
        finally:
            cluster.shutdown()
