"""The environment of an agent, laid together from what its agent, its persona and its step say."""

from dataclasses import dataclass

from shoal.pipeline.problems import Position


@dataclass(frozen=True, slots=True)
class Taken:
    """A variable of the host, and where it was asked for."""

    variable: str
    at: Position


@dataclass(frozen=True, slots=True)
class Variables:
    """Names with their values, and which of them came from the host."""

    values: dict[str, str]
    taken: dict[str, Taken]

    @property
    def secrets(self) -> frozenset[str]:
        """Name those whose values are never shown."""
        return frozenset(self.taken)

    def under(self, nearer: "Variables") -> "Variables":
        """Lay *nearer* over these: a literal in place of a secret is a secret no more."""
        kept = {name: one for name, one in self.taken.items() if name not in nearer.values}
        return Variables(self.values | nearer.values, kept | nearer.taken)
