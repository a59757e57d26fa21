"""Check the host: kernel, git, disk space and clients."""

import asyncio
import contextlib
import os
import re
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path

from shoal import proc
from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter
from shoal.errors import ShoalError, Unavailable
from shoal.git.repository import inspect
from shoal.git.run import ENVIRONMENT
from shoal.limits.cgroup_files import find_hierarchies
from shoal.model.agent import CLIENTS
from shoal.model.command import Command
from shoal.model.diagnosis import Finding
from shoal.proc.free_space import free_floor
from shoal.proc.spawn import raise_file_limit
from shoal.sandboxes.host import NO_LIBSECCOMP
from shoal.sandboxes.seccomp import LIBRARY, Strength, program
from shoal.sessions.clients import find_installed_name
from shoal.store.paths import StatePaths

HOST, ROOM = "host", "room"
GIT_SECONDS = 10.0
OLDEST_KERNEL = (5, 11)
OLDEST_GIT = (2, 38)
LAZY_GIT = (2, 45)
FEW_INODES = 10_000
FEW_AGENTS = 20
MIB = 2**20


async def surroundings() -> tuple[Finding, ...]:
    """Check kernel, git, libseccomp and control groups."""
    return (_kernel(), await _git(), _libseccomp(), _cgroups())


async def room(folder: Path, environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """Check the disk that holds the state of *folder*, and how many agents this process can run."""
    place = await _state(folder, environ)
    return (_disk(place), _inodes(place), _files())


def _kernel() -> Finding:
    release = os.uname().release
    held = _version(release) >= OLDEST_KERNEL
    return Finding(
        area=HOST,
        name="kernel",
        held=held,
        tried="uname",
        result=f"Linux {release}",
        remedy="" if held else "use Linux 5.11 or later, in which an ordinary user can mount an overlay",
    )


async def _git() -> Finding:
    tried = "--version"
    command = Command(argv=("git", "--version"), cwd=Path("/"), env=ENVIRONMENT)
    try:
        done = await proc.run(command, timeout=GIT_SECONDS)
    except (Unavailable, TimeoutError):
        remedy = "install it (`apt install git` or `dnf install git`)"
        return Finding(
            area=HOST, name="git", held=False, tried=tried, result="there is none", remedy=remedy, needed=True
        )
    printed = done.stdout.decode(errors="replace").strip().removeprefix("git version ")
    version = _version(printed)
    lacks = "; without GIT_NO_LAZY_FETCH, fetches are shut by protocol.allow"
    return Finding(
        area=HOST,
        name="git",
        held=version >= OLDEST_GIT,
        tried=tried,
        result=printed if version >= LAZY_GIT else printed + lacks,
        remedy="" if version >= OLDEST_GIT else "use git 2.38 or later: older ones lack merge-tree and safe settings",
        needed=True,
    )


def _libseccomp() -> Finding:
    held, result = True, LIBRARY
    try:
        program(Strength.NAMESPACED)
    except OSError as error:
        held, result = False, str(error)
    remedy = "" if held else NO_LIBSECCOMP
    return Finding(area=HOST, name="libseccomp", held=held, tried="build a filter", result=result, remedy=remedy)


def _cgroups() -> Finding:
    found = find_hierarchies()
    first = ", ".join(sorted(found.v1)) or "none"
    second = str(found.mount) if found.mount else "none"
    tried = "find control groups"
    return Finding(area=HOST, name="cgroups", held=None, tried=tried, result=f"version 1: {first}; version 2: {second}")


async def _state(folder: Path, environ: Mapping[str, str]) -> Path:
    """Find the folder in which the state is, or would be."""
    home = folder.resolve()
    with contextlib.suppress(ShoalError, TimeoutError):  # a folder without a repository has its state in itself
        home = (await inspect(folder, environ)).home
    root = StatePaths.of(home).root
    return next(path for path in (root, *root.parents) if path.is_dir())


def _disk(place: Path) -> Finding:
    disk = os.statvfs(place)
    full = free_floor(place)
    return Finding(
        area=ROOM,
        name="disk",
        held=full is None,
        tried=f"of {place}",
        result=full or f"{disk.f_bavail * disk.f_frsize / 2**30:.1f} GiB free",
        remedy="" if full is None else "free some of it: agents are ended when a disk is so full",
    )


def _inodes(place: Path) -> Finding:
    disk = os.statvfs(place)
    is_counted = disk.f_files > 0  # btrfs makes them as they are needed
    held = disk.f_favail >= FEW_INODES if is_counted else None
    return Finding(
        area=ROOM,
        name="inodes",
        held=held,
        tried=f"of {place}",
        result=f"{disk.f_favail} free" if is_counted else "made as they are needed",
        remedy="free some of them: each file of a checkout takes one" if held is False else "",
    )


def _files() -> Finding:
    agents = raise_file_limit()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = agents >= FEW_AGENTS
    return Finding(
        area=ROOM,
        name="open files",
        held=held,
        tried="raise our own bound",
        result=f"{files}, enough for {agents} agents at once",
        remedy="" if held else "raise `ulimit -n`: an agent needs 16",
    )


def _version(text: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(number or 0) for number in found.groups()) if found else ()


AREA = "clients"
SECONDS = 3.0
OUTPUT_BYTES = 4096
SHOWN = 60


async def clients(search: str, home: Path) -> tuple[Finding, ...]:
    """Ask all clients for their versions at once; none is required."""
    home.mkdir()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_client(name, search, home)) for name in CLIENTS]
    return tuple(task.result() for task in tasks)


async def _client(name: str, search: str, home: Path) -> Finding:
    client = adapter(name, this_host()).client
    found = shutil.which(find_installed_name(client, client.program, search), path=search) if client else None
    tried = "--version"
    if found is None:
        return Finding(area=AREA, name=name, held=None, tried=tried, result="not on PATH", remedy=f"`{_install(name)}`")
    env = {"PATH": search, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb"}
    try:
        done = await proc.run(
            Command(argv=(found, "--version"), cwd=home, env=env), timeout=SECONDS, limit=OUTPUT_BYTES
        )
    except TimeoutError:
        return _fault_finding(name, tried, f"it printed nothing within {SECONDS:.0f} s")
    except (ShoalError, OSError) as error:
        return _fault_finding(name, tried, str(error))
    printed = " ".join(done.stdout.decode(errors="replace").split())[:SHOWN]
    if not done.ok or not printed:
        complaint = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return _fault_finding(name, tried, f"it ended with {done.exit.code}: {' '.join(complaint)[:SHOWN]}")
    return Finding(area=AREA, name=name, held=True, tried=tried, result=f"{printed}, {found}")


def _fault_finding(name: str, tried: str, result: str) -> Finding:
    remedy = f"install it again: `{_install(name)}`"
    return Finding(area=AREA, name=name, held=False, tried=tried, result=result, remedy=remedy)


def _install(name: str) -> str:
    """Return the install command, the same that `shoal agents` prints."""
    client = adapter(name, this_host()).client
    return client.install if client else ""
