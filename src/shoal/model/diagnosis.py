"""The findings of `shoal doctor` about a host."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One test; *held* is `None` if nothing has to be enforced, or only approximately.

    *remedy* says what to install or change; it is empty if nothing has to be.
    """

    area: str
    name: str
    held: bool | None
    tried: str
    result: str
    remedy: str = ""
    needed: bool = False
    """Whether an ordinary run depends on it."""

    def as_fields(self) -> dict[str, object]:
        """Return the finding for a JSON document."""
        return {
            "area": self.area,
            "name": self.name,
            "held": self.held,
            "tried": self.tried,
            "said": self.result,
            "remedy": self.remedy or None,
            "needed": self.needed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings; *walls* are the sandboxes that nothing escaped from, except by their known gaps."""

    findings: tuple[Finding, ...]
    walls: tuple[str, ...] = ()
    workspace: str | None = None
    limits: str | None = None

    @property
    def holds(self) -> bool:
        """Return whether everything that an ordinary run needs was tested and works."""
        needed = [finding.held for finding in self.findings if finding.needed]
        return bool(needed) and all(held is True for held in needed)
