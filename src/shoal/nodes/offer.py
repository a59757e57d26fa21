"""What this node offers: the sandboxes that work here, what limits agents, and what is free."""

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from shoal import __version__
from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter
from shoal.errors import FAULTS, Unavailable
from shoal.limits.choose import choose
from shoal.model.agent import CLIENTS
from shoal.model.nodes import NodeLoad, NodeOffer
from shoal.sandboxes.registry import KINDS
from shoal.sessions.clients import find_installed_name
from shoal.sessions.host_probe import probe_sandbox
from shoal.steps.admission import free

MIB = 2**20
SESSIONS_PER_PROCESSOR = 4
SESSION_BYTES = 256 * MIB


async def make_offer(environ: Mapping[str, str], state: Path) -> NodeOffer:
    """Try what works here."""
    works, missing = [], {}
    for name in KINDS:
        try:
            await probe_sandbox(name, environ)
            works.append(name)
        except Unavailable as error:
            missing[name] = error.why
        except FAULTS as error:
            missing[name] = str(error)
    memory = free().memory_total_bytes
    processors = len(os.sched_getaffinity(0))
    return NodeOffer(
        version=__version__,
        host=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        processors=processors,
        memory_mb=memory // MIB,
        capacity=max(1, min(processors * SESSIONS_PER_PROCESSOR, memory // SESSION_BYTES)),
        sandboxes=tuple(works),
        missing=missing,
        limits=(await choose()).name,
        clients=tuple(name for name in CLIENTS if _is_installed(name, environ)),
        load=measure_load(0, state),
    )


def measure_load(running: int, state: Path) -> NodeLoad:
    """Measure what is free now."""
    disk = os.statvfs(next(folder for folder in (state, *state.parents) if folder.exists()))
    return NodeLoad(
        running=running,
        cpu=round(os.getloadavg()[0] / max(1, os.cpu_count() or 1), 2),
        memory_free_mb=free().memory_bytes // MIB,
        disk_free_mb=disk.f_bavail * disk.f_frsize // MIB,
    )


def _is_installed(name: str, environ: Mapping[str, str]) -> bool:
    client = adapter(name, this_host()).client
    search = environ.get("PATH", "")
    return (
        client is not None
        and shutil.which(find_installed_name(client, client.program, search), path=search) is not None
    )
