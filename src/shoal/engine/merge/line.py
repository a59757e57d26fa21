"""What is merged next: pure, so that the order of a merge can be known without making it."""

from collections.abc import Sequence

from shoal.engine.merge.candidates import Candidate
from shoal.model.merge import Preview


def ordered(candidates: Sequence[Candidate], preview: Preview) -> list[Candidate]:
    """Put those with the fewest conflicts first; among equals, the given order holds."""
    return sorted(candidates, key=lambda one: len(preview.partners(one.session)))
