"""The protocol of carriers: how bytes get to `shoal node --stdio` on a node, and back."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from shoal.errors import Unavailable
from shoal.model.nodes import NodeAddress

NODE_ARGUMENTS = ("node", "--stdio")
"""What follows `shoal` in the command of a node's process."""
BUFFER_BYTES = 2**20
"""How much a carrier reads ahead; beyond it, the node's writer waits."""


class NodeUnavailable(Unavailable):
    """A node cannot be reached, or cannot run sessions."""

    def __init__(self, node: str, why: str, remedy: str) -> None:
        super().__init__(f"the node {node}", why, remedy)
        self.node = node
        self.why = why


class StreamWriter(Protocol):
    """Writes to the input of a node's process; an `asyncio.StreamWriter` is one, too."""

    def write(self, data: bytes, /) -> None:
        """Take *data*, to be written in order; call `drain` before more than a little is waiting."""

    async def drain(self) -> None:
        """Wait until most of it is written; raise `OSError` once the process cannot read any more."""

    def close(self) -> None:
        """Close the input of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStream:
    """An open stream to the input and from the output of `shoal node --stdio`."""

    reader: asyncio.StreamReader
    writer: StreamWriter
    has_died: Callable[[], bool] = lambda: False
    """Whether the process is known to have ended with all that it started; `False` where nobody can know."""
    complaint: Callable[[], str] = field(default=lambda: "")
    """What was last printed on stderr, on one line: why the stream ended."""


class Carrier(Protocol):
    """Carries the bytes of the protocol to the nodes of one address; open while a run lasts."""

    async def find_nodes(self) -> Sequence[NodeAddress]:
        """Name its nodes: most carriers have one. Called again during a run, since a cluster may grow."""

    def connect(self, node: NodeAddress) -> AbstractAsyncContextManager[NodeStream]:
        """Start `shoal node --stdio` on *node* and connect to it; on leaving, the process is ended where it can be.

        Raises `NodeUnavailable` with the reason and a way out. Called again after a stream has broken.
        """


OpenCarrier = Callable[[NodeAddress, Mapping[str, str]], AbstractAsyncContextManager[Carrier]]
"""Opens the carrier of an address, with the environment of the user's command."""
