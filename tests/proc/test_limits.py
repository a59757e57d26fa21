"""A process of ours that exceeds its limits ends; no other does."""

import signal
import sys
from pathlib import Path

from shoal import proc
from shoal.model.command import Command, ProcessLimits


async def ended(program: str, limits: ProcessLimits) -> proc.Completed:
    command = Command(argv=(sys.executable, "-c", program), cwd=Path("/"), limits=limits)
    return await proc.run(command, timeout=60)


# The limits are set from outside, a moment after the start.
HELD = "import resource\nwhile resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY: pass\n"


async def test_memory_is_refused_past_the_limit() -> None:
    done = await ended(f"{HELD}print(len(bytearray(200 * 2**20)))", ProcessLimits(memory_bytes=100 * 2**20))
    free = await ended("print(len(bytearray(50 * 2**20)))", ProcessLimits(memory_bytes=100 * 2**20))

    assert b"MemoryError" in done.stderr
    assert free.ok


async def test_a_processor_is_taken_away_past_the_limit() -> None:
    done = await ended("while True: pass", ProcessLimits(cpu_seconds=1))

    assert done.exit.signal in (signal.SIGXCPU, signal.SIGKILL)


async def test_children_are_held_too() -> None:
    child = f"{sys.executable!r}, '-c', 'bytearray(200 * 2**20)'"
    done = await ended(f"{HELD}import subprocess; subprocess.run([{child}])", ProcessLimits(memory_bytes=100 * 2**20))

    assert b"MemoryError" in done.stderr
