"""What was found out about a host by trying: one thing, and all of them together."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was tried: *held* is `None` where there is nothing to be held, or only approximately.

    *remedy* says what to install or to change, and is empty where nothing needs to be.
    """

    area: str
    name: str
    held: bool | None
    tried: str
    said: str
    remedy: str = ""
    needed: bool = False
    """Whether a run that asks for nothing special stands on it."""

    def as_fields(self) -> dict[str, object]:
        """Return the finding for a JSON document."""
        return {
            "area": self.area,
            "name": self.name,
            "held": self.held,
            "tried": self.tried,
            "said": self.said,
            "remedy": self.remedy or None,
            "needed": self.needed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that was found; *walls* are those that were not got out of, but by the gaps they are known for."""

    findings: tuple[Finding, ...]
    walls: tuple[str, ...] = ()
    workspace: str | None = None
    limits: str | None = None

    @property
    def holds(self) -> bool:
        """Return whether all that an ordinary run stands on was tried, and held."""
        needed = [finding.held for finding in self.findings if finding.needed]
        return bool(needed) and all(held is True for held in needed)
