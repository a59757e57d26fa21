"""The carrier `ssh`: a node on another host, reached by OpenSSH with the user's own configuration."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from shoal import __version__
from shoal.executors.carriers.kind import NODE_ARGUMENTS, NodeStream, NodeUnavailable
from shoal.executors.carriers.process_stream import STDERR_BYTES, open_process_stream
from shoal.executors.carriers.ssh_host import (
    CONNECT_SECONDS,
    NODE_FOLDER,
    NOT_INSTALLED,
    SshHost,
    explain_ssh,
    open_ssh_host,
)
from shoal.model.command import OpenInput
from shoal.model.nodes import NodeAddress
from shoal.proc.output import HeadTailBuffer

GRACE_SECONDS = 2.0
START_SECONDS = 2.0 * CONNECT_SECONDS
BEGIN = b"\nshoal-node-begins\n"
"""Printed before the protocol: what a login shell prints before it is skipped."""

# The version that this program installed, else the newest that was installed, else what the host has on its PATH.
FIND_SHOAL = (
    f'n="$HOME/{NODE_FOLDER}"; PATH="$PATH:$HOME/.local/bin"; '
    'for s in "$n/$1/bin/shoal" "$n/current/bin/shoal" "$(command -v shoal)"; do [ -x "$s" ] && break; done; '
)
RUN_NODE = (
    f'{FIND_SHOAL}[ -x "$s" ] || {{ echo {NOT_INSTALLED} >&2; exit 127; }}; '
    f'printf "\\nshoal-node-begins\\n"; cd / && exec "$s" {" ".join(NODE_ARGUMENTS)}'
)


@dataclass(frozen=True, slots=True)
class SshCarrier:
    """Starts a node's process on a host."""

    address: NodeAddress
    host: SshHost
    version: str = __version__
    """Which of the installed versions is preferred."""

    async def find_nodes(self) -> Sequence[NodeAddress]:
        """Return its only node."""
        return (self.address,)

    @contextlib.asynccontextmanager
    async def connect(self, node: NodeAddress) -> AsyncIterator[NodeStream]:
        """Start `shoal node --stdio` on the host."""
        command = self.host.command(RUN_NODE, self.version, stdin=OpenInput())
        errors = HeadTailBuffer(STDERR_BYTES)
        async with open_process_stream(command, grace=GRACE_SECONDS, is_node=False, errors=errors) as stream:
            await _skip_greeting(stream.reader, node, errors)
            yield stream


async def _skip_greeting(reader: asyncio.StreamReader, node: NodeAddress, errors: HeadTailBuffer) -> None:
    """Read up to where the protocol begins; raise `NodeUnavailable` when it does not."""
    try:
        async with asyncio.timeout(START_SECONDS):
            await reader.readuntil(BEGIN)
    except TimeoutError:
        why, remedy = f"it gave no answer within {START_SECONDS:g} s", f"try `ssh {node.place} true`"
    except asyncio.LimitOverrunError:
        why = "its login shell prints without an end"
        remedy = f"see what `ssh {node.place} true` prints, and mend its start-up files"
    except asyncio.IncompleteReadError:
        why, remedy = explain_ssh(node.place, errors.content())
    else:
        return
    raise NodeUnavailable(node.name, why, remedy)


@contextlib.asynccontextmanager
async def open_carrier(address: NodeAddress, environ: Mapping[str, str]) -> AsyncIterator[SshCarrier]:
    """Open the carrier, whose connection is shared by all that is started on the host."""
    async with open_ssh_host(address.place, environ) as host:
        yield SshCarrier(address, host)
