"""How a version of control groups spells what we say to the kernel and read from it."""

from collections.abc import Callable
from dataclasses import dataclass

from shoal.model.limits import ResourceLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value for one control file; what not every kernel has, or takes, is *optional*."""

    controller: str
    file: str
    value: str
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A number that the kernel keeps: alone in its file, or behind *entry*."""

    controller: str
    file: str
    entry: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """How an empty group becomes as good as a new one."""

    memory: Counter
    """What is still charged to it."""
    peak: Setting
    """What lets the highest use be counted anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The words of one version."""

    name: str
    join: str
    """The file by which a process joins."""
    limits: Callable[[ResourceLimits], tuple[Setting, ...]]
    """For each controller, the setting that is the limit itself comes first."""
    fleet: tuple[Setting, ...]
    ending: tuple[Setting, ...]
    """What makes the end of everybody quick and sure."""
    oom_kills: Counter
    forks_refused: Counter
    memory_peak: Counter
    pids: Counter
    cpu: Counter
    cpu_unit_seconds: float
    renewal: Renewal | None = None
    """`None` where a used group shows the next one what the last one did."""
