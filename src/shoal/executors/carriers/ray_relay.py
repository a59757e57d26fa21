"""The actor of a Ray node: it passes bytes to the node's process there, and back. It is sent there by value.

It imports nothing of Shoal, so that a node without Shoal can say so.
"""

import asyncio
import os
import sys
from collections.abc import Sequence

LINE_CHARS = 300


class NodeRelay:
    """Runs a process for as long as this actor lives: at the actor's end, the process reads the end of its input."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, arguments: Sequence[str]) -> None:
        """Start this Python with *arguments*."""
        pipe = asyncio.subprocess.PIPE
        program = (sys.executable, *arguments)
        self._process = await asyncio.create_subprocess_exec(
            *program, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env=_find_environ(), start_new_session=True
        )

    async def read(self, most: int) -> bytes:
        """Return what the process printed; nothing at its end."""
        assert self._process is not None  # noqa: S101 - for the type checker
        assert self._process.stdout is not None  # noqa: S101
        return await self._process.stdout.read(most)

    async def write(self, content: bytes) -> None:
        """Write to the process; return when most of it is written."""
        assert self._process is not None  # noqa: S101
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.write(content)
        await self._process.stdin.drain()

    async def close_input(self) -> None:
        """Close the input of the process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def join(self) -> None:
        """Wait for the end of the process."""
        if self._process is not None:
            await self._process.wait()

    async def read_errors(self) -> str:
        """Read the errors of the process until its end, and return the last line of them."""
        assert self._process is not None  # noqa: S101
        assert self._process.stderr is not None  # noqa: S101
        last = ""
        while chunk := await self._process.stderr.read(65_536):
            lines = [line for line in chunk.decode(errors="replace").splitlines() if line.strip()]
            last = lines[-1][:LINE_CHARS] if lines else last
        await self._process.wait()
        return last


def _find_environ() -> dict[str, str]:
    """Return the environment without what Ray put into it for its own processes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
