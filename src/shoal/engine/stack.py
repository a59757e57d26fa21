"""What a stage starts from: the merged work of those that it needs."""

from collections.abc import Sequence

from shoal.engine.pins import pin
from shoal.engine.session import FAULTS
from shoal.engine.site import Site
from shoal.errors import ShoalError
from shoal.git.merge import Conflicted, Merged, combined

SHOWN = 5


class Unstacked(ShoalError):
    """The work of the needs cannot be had together."""


async def stacked(site: Site, step: str, needs: Sequence[str], commits: Sequence[str]) -> str | None:
    """Merge *commits*, the work of *needs*; `None` is the run's own base. Raises `Unstacked` with the reason."""
    if not commits:
        return None
    try:
        base = await combined(site.repository, commits, f"Base of {step}: {', '.join(needs)}\n")
        if isinstance(base, Merged):
            await pin(site.repository, site.run, base.commit)  # a slot may be long in coming, and a gc quick
    except FAULTS as error:
        why = str(error) or type(error).__name__
        raise Unstacked(f"the work of its needs ({', '.join(needs)}) cannot be merged: {why}") from error
    if isinstance(base, Conflicted):
        raise Unstacked(_conflict(needs, base))
    return base.commit


def _conflict(needs: Sequence[str], found: Conflicted) -> str:
    files = ", ".join(ascii(path)[1:-1] for path in found.paths[:SHOWN])
    why = f"the work of its needs ({', '.join(needs)}) conflicts in {files}"
    return f"{why}; merge them first, or give it a `base` (`run` builds on none of them)"
