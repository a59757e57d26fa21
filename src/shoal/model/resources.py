"""What a session used of the machine at a point in time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSample:
    """Memory at that time, and CPU and disk up to then; `None` where this host does not count it."""

    memory_mb: float | None = None
    cpu_seconds: float | None = None
    disk_mb: float | None = None
