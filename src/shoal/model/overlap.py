"""Two sessions that changed the same files, reported before a merge."""

from dataclasses import dataclass

from shoal.model.merge import Conflict


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """A pair of sessions that touch the same places; *conflicts* is empty where the work of both can be had."""

    one: str
    other: str
    paths: tuple[str, ...]
    """The first of the files that both changed; names in it are an agent's."""
    files: int
    """How many files both changed."""
    conflicts: tuple[Conflict, ...] = ()
    step: str | None = None
    """The step whose workers both are, where they did the same task: then it is no wonder."""

    def as_fields(self) -> dict[str, object]:
        """Return the fields by their names."""
        return {
            "sessions": [self.one, self.other],
            "step": self.step,
            "files": self.files,
            "paths": list(self.paths),
            "conflicts": [conflict.as_fields() for conflict in self.conflicts],
        }
