"""The ways in which sessions, steps and runs end."""

from enum import StrEnum


class Status(StrEnum):
    """Where a session is, or how it ended."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    NO_CHANGES = "no_changes"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    OVER_LIMIT = "over_limit"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """Its Shoal was killed; what it left is brought in by the next command that writes."""
    LOST = "lost"
    """As `INTERRUPTED`, in the records of older versions."""
    SKIPPED = "skipped"
    DEGRADED = "degraded"

    @property
    def is_good(self) -> bool:
        """Say whether this counts as success."""
        return self in (Status.SUCCEEDED, Status.NO_CHANGES)

    @property
    def is_interrupted(self) -> bool:
        """Say whether it was killed with its Shoal."""
        return self in (Status.INTERRUPTED, Status.LOST)

    @property
    def is_ended(self) -> bool:
        """Say whether nothing more will happen."""
        return self not in (Status.PENDING, Status.RUNNING)
