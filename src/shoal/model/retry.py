"""How often to retry a task, and how long to wait in between."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.errors import BadInput, UnknownName

MOST_ATTEMPTS = 100
LONGEST_WAIT = 24 * 3600.0


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class BadRetry(BadInput):
    """An invalid retry; *key* is the one that was written, if any."""

    def __init__(self, key: str | None, why: str) -> None:
        super().__init__(f"retry: {why}")
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The maximum number of attempts; the wait begins at *wait_seconds* and doubles up to *longest_seconds*."""

    max_attempts: int = 1
    wait_seconds: float = 1.0
    longest_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Raise `BadRetry` for an invalid value."""
        if not _is_whole(self.max_attempts) or not 1 <= self.max_attempts <= MOST_ATTEMPTS:
            raise BadRetry("max_attempts", f"`max_attempts` must be a whole number from 1 to {MOST_ATTEMPTS}")
        for name in ("wait_seconds", "longest_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_WAIT:
                raise BadRetry(name, f"`{name}` must be a number of seconds from 0 to {LONGEST_WAIT:.0f}")

    @classmethod
    def of(cls, given: "Retry | int | Mapping[str, object] | None") -> "Retry":
        """Read a user's value: nothing, a number of further attempts, or a mapping, which may name a policy."""
        if isinstance(given, Retry):
            return given
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            if not _is_whole(given) or given < 0:
                raise BadRetry(None, f"{given!r:.40} is not a number of retries; it must be at least 0")
            return cls(max_attempts=given + 1)
        for name in given:
            if name not in KEYS:
                raise UnknownName("key of `retry`", str(name), KEYS)
        policy = given.get("policy", "none")
        if not isinstance(policy, str) or policy not in POLICIES:  # a list cannot be hashed
            raise BadRetry("policy", f"`policy` cannot be {policy!r:.40}; use {', '.join(POLICIES)}")
        changes = {name: value for name, value in given.items() if name != "policy"}
        return replace(POLICIES[policy], **changes)  # type: ignore[arg-type]  # each value is checked above


POLICIES: Mapping[str, Retry] = {
    "none": Retry(),
    "standard": Retry(max_attempts=3, wait_seconds=1, longest_seconds=30),
    "aggressive": Retry(max_attempts=5, wait_seconds=0.2, longest_seconds=30),
    "patient": Retry(max_attempts=3, wait_seconds=5, longest_seconds=90),
}
KEYS = ("policy", "max_attempts", "wait_seconds", "longest_seconds")
