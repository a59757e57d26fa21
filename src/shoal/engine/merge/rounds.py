"""Whose work counts in a merge: that of each step's last round, and what of the rounds before it stands on alone."""

from collections.abc import Iterable, Sequence

from shoal.engine.merge.candidates import workers_of
from shoal.git.ancestry import Ancestry, gone, since
from shoal.model.repository import Repository
from shoal.model.results import RunReport, WorkerResult


async def counting(repository: Repository, report: RunReport, named: Sequence[str] = ()) -> list[WorkerResult]:
    """Give the workers whose work counts, or those that are *named*; with what only a former round changed."""
    workers = workers_of(report, named)
    if named or not report.earlier:
        return workers
    good = [one for one in workers if one.status.is_good]
    tips = [tip for one in (*good, *report.earlier) for tip in (one.base, one.commit) if tip]
    lost = await gone(repository, tips)
    ancestry = await since(repository, (report.base,), [tip for tip in tips if tip not in lost])
    return [*_below(good, report.earlier, ancestry), *workers]


def _below(good: Sequence[WorkerResult], earlier: Sequence[WorkerResult], ancestry: Ancestry) -> list[WorkerResult]:
    """Find what *good* workers stand on, and have not in a commit of their own; the latest work has all before it."""
    stood = ancestry.reach(_some(one.base for one in good))
    held = ancestry.reach(_some(one.commit for one in good))
    found: list[WorkerResult] = []
    for one in reversed(earlier):
        if one.commit in stood - held - ancestry.reach(_some(later.commit for later in found)):
            found.append(one)
    return found[::-1]


def _some(commits: Iterable[str | None]) -> list[str]:
    return [commit for commit in commits if commit]
