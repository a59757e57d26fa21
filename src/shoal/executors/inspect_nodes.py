"""Ask nodes what they offer, without a run."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.errors import FAULTS, Unavailable
from shoal.executors.carriers.kind import Carrier
from shoal.executors.carriers.registry import open_carrier
from shoal.executors.node_connection import greet
from shoal.model.nodes import NodeAddress, NodeOffer


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node offers, or why it is not available."""

    node: NodeAddress
    offer: NodeOffer | None = None
    why: str = ""
    remedy: str = ""

    @property
    def capacity(self) -> int:
        """How many sessions it takes at once; 0 if it is not available."""
        return 0 if self.offer is None else self.node.capacity or self.offer.capacity


async def inspect_nodes(addresses: Sequence[NodeAddress], environ: Mapping[str, str]) -> list[NodeReport]:
    """Ask all nodes at *addresses* at once; one that is not available is reported, too."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_inspect_address(address, environ)) for address in addresses]
    return [report for task in tasks for report in task.result()]


async def _inspect_address(address: NodeAddress, environ: Mapping[str, str]) -> list[NodeReport]:
    try:
        async with _open(address, environ) as carrier:
            return [await _inspect(carrier, node) for node in await carrier.find_nodes()]
    except (*FAULTS, TimeoutError) as error:
        return [_describe_refusal(address, error)]


@contextlib.asynccontextmanager
async def _open(address: NodeAddress, environ: Mapping[str, str]) -> AsyncIterator[Carrier]:
    async with open_carrier(address, environ) as carrier:
        yield carrier


async def _inspect(carrier: Carrier, node: NodeAddress) -> NodeReport:
    try:
        async with carrier.connect(node) as stream:
            hello = await greet(stream, node)
    except (*FAULTS, TimeoutError) as error:
        return _describe_refusal(node, error)
    return NodeReport(node=node, offer=hello.offer or NodeOffer(version=hello.version))


def _describe_refusal(node: NodeAddress, error: Exception) -> NodeReport:
    if isinstance(error, Unavailable):
        return NodeReport(node=node, why=error.why, remedy=error.remedy)
    return NodeReport(node=node, why=str(error) or "it did not answer in time")
