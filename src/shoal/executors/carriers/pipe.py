"""The carrier `pipe`: a node on this machine, for tests and as the reference of what a carrier does."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.executors.carriers.kind import NODE_ARGUMENTS, NodeStream
from shoal.executors.carriers.process_stream import open_process_stream
from shoal.model.command import Command, OpenInput
from shoal.model.nodes import NodeAddress
from shoal.proc.own_command import PROGRAM

GRACE_SECONDS = 10.0
"""What a node gets to stop its agents and to keep their work."""
ENVIRONMENT = ("PATH", "HOME", "XDG_STATE_HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ")
"""What a login on another machine would set: no key of the user is there either."""


@dataclass(frozen=True, slots=True)
class PipeCarrier:
    """Starts nodes as children of this process."""

    address: NodeAddress
    environ: Mapping[str, str]

    async def find_nodes(self) -> Sequence[NodeAddress]:
        """Return its only node."""
        return (self.address,)

    def connect(self, node: NodeAddress) -> contextlib.AbstractAsyncContextManager[NodeStream]:
        """Start `shoal node --stdio` here."""
        argv = (*PROGRAM, *NODE_ARGUMENTS)
        env = {name: self.environ[name] for name in ENVIRONMENT if name in self.environ}
        command = Command(argv=argv, cwd=Path("/"), env=env, stdin=OpenInput())
        return open_process_stream(command, grace=GRACE_SECONDS, is_node=True)


@contextlib.asynccontextmanager
async def open_carrier(address: NodeAddress, environ: Mapping[str, str]) -> AsyncIterator[PipeCarrier]:
    """Open the carrier."""
    yield PipeCarrier(address, environ)
