"""What is merged next: pure, so that the order of a merge can be known without making it."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.engine.merge.candidates import Candidate
from shoal.model.merge import Preview

Batch = tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """Batches that wait: each is merged whole, looked at, and then kept, or split and tried again by its halves.

    So *k* bad ones among *n* cost about *k* log *n* looks.
    """

    batches: tuple[Batch, ...] = ()

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> "Line":
        """Let all of them be tried together first."""
        return cls((tuple(candidates),) if candidates else ())

    @property
    def first(self) -> Batch:
        """What is to be merged next."""
        return self.batches[0]

    def without_first(self) -> "Line":
        """Go on behind the first batch: it was kept, or put aside."""
        return Line(self.batches[1:])

    def split(self) -> "Line":
        """Try the halves of the first batch, the earlier one first."""
        middle = (len(self.first) + 1) // 2
        halves = (self.first[:middle], self.first[middle:])
        return Line((*(half for half in halves if half), *self.batches[1:]))


def ordered(candidates: Sequence[Candidate], preview: Preview) -> list[Candidate]:
    """Put those with the fewest conflicts first; among equals, the given order holds."""
    return sorted(candidates, key=lambda one: len(preview.partners(one.session)))
