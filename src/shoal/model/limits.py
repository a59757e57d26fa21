"""Resource limits of an agent."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TypedDict, Unpack

from shoal.errors import BadInput

MIB = 2**20
YEAR_SECONDS = 366 * 24 * 3600
SHOWN_DIGITS = 40

BREACHES = ("memory", "time", "disk", "pids")
"""The limits whose breach ends an agent, as its status names them; CPU is throttled instead."""


class BadLimit(BadInput):
    """An invalid limit; *key* is the one that was written."""

    def __init__(self, key: str, why: str, *, is_about_key: bool = False) -> None:
        super().__init__(f"limit `{_printable(key)}` {why}")
        self.key = key
        self.is_about_key = is_about_key


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a limit."""

    lowest: float
    highest: float
    is_whole: bool = False

    def problem(self, value: object) -> str | None:
        """Return what is wrong with *value*, or `None`."""
        kinds = (int,) if self.is_whole else (int, float)
        # Compared, never converted: 10**400 is not a float, and NaN is in no range.
        if isinstance(value, kinds) and not isinstance(value, bool) and self.lowest <= value <= self.highest:
            return None
        number = "a whole number" if self.is_whole else "a number"
        wanted = f"{number} from {self.lowest:.12g} to {self.highest:.12g}, or null for no bound"
        return f"must be {wanted}, not {_describe_value(value)}"


RANGES: Mapping[str, Range] = {
    "memory_mb": Range(16, 2**30),
    "cpu_percent": Range(1, 100 * 1024),
    "time_seconds": Range(0.001, YEAR_SECONDS),
    "disk_mb": Range(1, 2**40),
    "pids": Range(2, 2**22, is_whole=True),
}
DISK = ("polled", "exact")
"""How the disk limit is enforced: polled each second, or with a file system of that size for each agent."""

SPELLINGS: Mapping[str, str] = {
    "max_memory": "memory_mb",
    "max_cpu_percent": "cpu_percent",
    "max_execution_time": "time_seconds",
    "max_disk_usage": "disk_mb",
}
"""The seeds' names for limits."""


class Spelt(TypedDict, total=False):
    """Limits under the seeds' names."""

    max_memory: float | None
    max_cpu_percent: float | None
    max_execution_time: float | None
    max_disk_usage: float | None


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class ResourceLimits:
    """What one agent may use; `None` means no limit. 50 % of CPU is half of one core; a MB is 2**20 bytes.

    *disk* says how `disk_mb` is enforced: `polled`, or `exact`, with which the kernel refuses the first excess byte.
    The seeds' names (`max_memory`, `max_cpu_percent`, `max_execution_time`, `max_disk_usage`) are accepted, too.
    """

    memory_mb: float | None = 1024
    cpu_percent: float | None = 50
    time_seconds: float | None = 3600
    disk_mb: float | None = 5120
    pids: int | None = 1024
    disk: str = "polled"

    def __init__(
        self,
        *,
        memory_mb: float | None = 1024,
        cpu_percent: float | None = 50,
        time_seconds: float | None = 3600,
        disk_mb: float | None = 5120,
        pids: int | None = 1024,
        disk: str = "polled",
        **spelt: Unpack[Spelt],
    ) -> None:
        """Raise `BadLimit` for an invalid limit; *spelt* are limits by the seeds' names."""
        values: dict[str, object] = {
            "memory_mb": memory_mb,
            "cpu_percent": cpu_percent,
            "time_seconds": time_seconds,
            "disk_mb": disk_mb,
            "pids": pids,
            "disk": disk,
        }
        usual = _defaults()
        for key, value in spelt.items():
            if key not in SPELLINGS:
                raise BadLimit(key, _unknown(key, (*values, *SPELLINGS)), is_about_key=True)
            name = SPELLINGS[key]
            if values[name] != usual[name]:
                raise BadLimit(key, f"is given twice: it is the same as `{name}`", is_about_key=True)
            _refuse(key, value, RANGES[name])
            values[name] = value
        for name, chosen in values.items():
            object.__setattr__(self, name, chosen)
        for name, allowed in RANGES.items():
            _refuse(name, getattr(self, name), allowed)
        _refuse_way(self.disk)
        if self.is_exact and self.disk_mb is None:
            raise BadLimit("disk", "is exact, which needs a size: give `disk_mb` too")

    @classmethod
    def of(cls, given: Mapping[str, object]) -> "ResourceLimits":
        """Read limits by their names or the seeds' names; absent ones have their defaults."""
        known = {field.name for field in fields(cls)}
        values: dict[str, object] = {}
        for key, value in given.items():
            name = SPELLINGS.get(key, key)
            if name not in known:
                raise BadLimit(key, _unknown(key, (*known, *SPELLINGS)), is_about_key=True)
            if name in values:
                raise BadLimit(key, f"is given twice: it is the same as `{name}`", is_about_key=True)
            if name in RANGES:
                _refuse(key, value, RANGES[name])
            values[name] = value
        return cls(**values)  # type: ignore[arg-type]  # each is in its range, or is checked now

    @classmethod
    def default(cls) -> "ResourceLimits":
        """Return the default limits: CPU is a fair share instead of a quota."""
        return _UNNAMED

    def most_of(self, breach: str | None) -> str:
        """Describe the limit that was exceeded, as ` (1024 MB)`; empty without a number."""
        amounts = {"memory": self.memory_mb, "disk": self.disk_mb, "pids": self.pids}
        most = amounts.get(breach or "")
        return "" if most is None else f" ({most:g}{'' if breach == 'pids' else ' MB'})"

    @property
    def max_memory(self) -> float | None:
        """The memory in MB (seed 002)."""
        return self.memory_mb

    @property
    def max_cpu_percent(self) -> float | None:
        """The CPU in percent of one core (seed 002)."""
        return self.cpu_percent

    @property
    def max_execution_time(self) -> float | None:
        """The time in seconds (seed 002)."""
        return self.time_seconds

    @property
    def max_disk_usage(self) -> float | None:
        """The disk in MB (seed 002)."""
        return self.disk_mb

    @property
    def memory_bytes(self) -> int | None:
        """The memory in bytes."""
        return None if self.memory_mb is None else int(self.memory_mb * MIB)

    @property
    def disk_bytes(self) -> int | None:
        """The disk in bytes."""
        return None if self.disk_mb is None else int(self.disk_mb * MIB)

    @property
    def is_exact(self) -> bool:
        """Return whether the agent gets a disk of its own."""
        return self.disk == "exact"


def _defaults() -> dict[str, object]:
    return {limit.name: limit.default for limit in fields(ResourceLimits)}


def _refuse(key: str, value: object, allowed: Range) -> None:
    if value is not None and (problem := allowed.problem(value)):
        raise BadLimit(key, problem)


def _refuse_way(disk: object) -> None:
    if disk not in DISK:
        raise BadLimit("disk", f"must be {' or '.join(f'`{way}`' for way in DISK)}, not {_describe_value(disk)}")


def _unknown(key: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(key)[:SHOWN_DIGITS].lower(), known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(sorted({*RANGES, 'disk'}))}"
    return f"is not known; {hint}"


def _describe_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > SHOWN_DIGITS * 3:
        return f"a number of {value.bit_length()} bits"  # Python refuses to spell the longest
    whole = ascii(value)
    return whole if len(whole) <= SHOWN_DIGITS else f"{whole[:SHOWN_DIGITS]}…"


def _printable(key: object) -> str:
    return ascii(key)[1:-1][:SHOWN_DIGITS] if isinstance(key, str) else _describe_value(key)


_UNNAMED = ResourceLimits(cpu_percent=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBounds:
    """Limits of one seal and one import; memory is for each process, and *cpu* limits are CPU seconds."""

    seal_seconds: float = 300.0
    seal_memory_mb: int = 768
    rules_cpu: int = 4
    """How long git may evaluate ignore rules and attributes before they are suspected of taking so long."""
    add_cpu: int = 120
    """How long git may hash and compress files."""
    history_seconds: float = 8.0
    history_cpu: int = 4
    history_memory_mb: int = 384
    unpacked_mb: int = 4096
    """The maximum size of all objects in the agent's own commits, unpacked."""
    import_seconds: float = 120.0
    import_cpu: int = 60
    import_memory_mb: int = 1024


WORK_BOUNDS = WorkBounds()
