"""Enforcement by the user's own systemd: each agent runs in a scope of its own."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from shoal import proc
from shoal.errors import ShoalError
from shoal.limits.cgroup2 import DIALECT
from shoal.limits.cgroup_files import CgroupFiles, LimitsHost
from shoal.limits.cgroups import HELD, PROBE
from shoal.limits.group import KernelGroup
from shoal.limits.kind import SHELL, ResourceUsage
from shoal.model.command import Command
from shoal.model.limits import ResourceLimits

PROGRAM = Path("/usr/bin/systemd-run")
TRIAL_SECONDS = 10.0
FLAGS = ("--user", "--scope", "--quiet", "--collect")
FILES = {"memory": "memory.max", "cpu": "cpu.max", "pids": "pids.max"}

# $1 is the mount of the hierarchy, the others are files: print our group, and the values set there.
TELL = """read -r own < /proc/self/cgroup; own=$1${own##*::}; echo "$own"; shift
for file; do read -r value 2>/dev/null < "$own/$file" && echo "$value" || echo -; done"""

NOT_FOR_ALL = "limits of all agents together are not held: systemd has a scope for each agent"


class Systemd:
    """Makes scopes below the folder *scopes*."""

    name = "systemd"
    holds_fleet: frozenset[str] = frozenset()
    folders: tuple[Path, ...] = ()
    can_freeze = True

    def __init__(self, scopes: Path, holds: frozenset[str], files: CgroupFiles) -> None:
        self.holds = holds
        self._scopes = scopes
        self._files = files

    @property
    def gaps(self) -> tuple[str, ...]:
        """Return what the user's manager cannot limit."""
        missing = [name for name in HELD if name not in self.holds]
        return (
            *(f"{name} is not enforced: systemd does not delegate it to users here" for name in missing),
            NOT_FOR_ALL,
        )

    @contextlib.contextmanager
    def group(self, name: str, limits: ResourceLimits) -> Iterator["SystemdScope"]:
        """Name a scope: it begins with its one command, and systemd removes it after its last process."""
        scope = SystemdScope(name, limits, self._scopes / f"shoal-{name}-{secrets.token_hex(4)}.scope", self._files)
        try:
            yield scope
        finally:
            scope.kill_all()

    def hold_shared(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: groups share nothing."""
        return contextlib.nullcontext()

    def sweep(self) -> None:
        """Do nothing: systemd removes scopes that have ended."""


class SystemdScope(KernelGroup):
    """A scope; its counters disappear with it, so the last reading is kept."""

    def __init__(self, name: str, limits: ResourceLimits, folder: Path, files: CgroupFiles) -> None:
        super().__init__(name, dict.fromkeys(HELD, folder), DIALECT, files)
        self._start = (*run(folder.name), *properties(limits), "--")
        self._breach: str | None = None
        self._usage = ResourceUsage()

    def wrap(self, command: Command) -> Command:
        """Make *command* the command of the scope."""
        return replace(command, argv=(*self._start, *command.argv), env={**command.env, **_bus()})

    def breach(self) -> str | None:
        """Return the limit that was observed to be reached."""
        self._breach = self._breach or super().breach()
        return self._breach

    def usage(self) -> ResourceUsage:
        """Return the usage at the last reading."""
        usage = super().usage()
        self._usage = usage if usage != ResourceUsage() else self._usage
        return self._usage


def run(unit: str) -> tuple[str, ...]:
    """Begin a command that runs in a scope."""
    return (str(PROGRAM), *FLAGS, f"--unit={unit}")


def properties(limits: ResourceLimits) -> Iterator[str]:
    """Format limits for systemd."""
    if limits.memory_bytes is not None:
        yield from ("-p", f"MemoryMax={limits.memory_bytes}", "-p", "MemorySwapMax=0")
    if limits.pids is not None:
        yield from ("-p", f"TasksMax={limits.pids}")
    if limits.cpu_percent is not None:
        yield from ("-p", f"CPUQuota={limits.cpu_percent:g}%")


def trial(mount: Path | None) -> Command | None:
    """Return the command that tests what a scope can limit; `None` if no user manager can be running."""
    if mount is None or not PROGRAM.exists() or not (_runtime() / "systemd").exists():
        return None
    start = (*run(f"shoal-trial-{secrets.token_hex(4)}.scope"), *properties(PROBE), "--")
    return Command(argv=(*start, SHELL, "-c", TELL, "sh", str(mount), *FILES.values()), cwd=Path("/"), env=_bus())


async def build(host: LimitsHost, _fleet: ResourceLimits | None) -> Systemd | None:
    """Return the enforcer for this host after a trial, or `None` if it does not work."""
    command = trial(host.hierarchies.mount)
    if command is None:
        return None
    try:
        done = await proc.run(command, timeout=TRIAL_SECONDS)
    except (ShoalError, TimeoutError):
        return None
    return systemd(done.stdout.decode(errors="replace"), host.files) if done.ok else None


def systemd(output: str, files: CgroupFiles) -> Systemd | None:
    """Build the enforcer from the trial's output, or return `None` if it cannot limit memory."""
    own, *values = output.splitlines() or [""]
    wanted = {limit.file: limit.value for limit in DIALECT.limits(PROBE)}
    holds = {name for (name, file), value in zip(FILES.items(), values, strict=False) if wanted[file] == value}
    return Systemd(Path(own).parent, frozenset(holds), files) if "memory" in holds else None


def _bus() -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(_runtime())}


def _runtime() -> Path:
    return Path(f"/run/user/{os.getuid()}")
