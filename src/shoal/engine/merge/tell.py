"""The last word of a merge, for whoever looks later: what became of each session, also of those that conflict."""

from dataclasses import replace

from shoal.engine.merge.desk import Desk
from shoal.model.events import MergeEnded
from shoal.model.merge import Conflict, MergeReport, MergeResult
from shoal.store.read import events

MOST_TOLD = 20


async def told(desk: Desk, report: MergeReport) -> MergeReport:
    """Record how a merge ended, where that is not what was said last; gives *report* back."""
    last: MergeReport | None = None
    for recorded in events(desk.paths, desk.run):
        if isinstance(recorded.event, MergeEnded):
            last = recorded.event.report
    short = replace(report, results=tuple(map(_short, report.results)))
    if short != last:
        await desk.ledger.append(MergeEnded(run=desk.run, report=short))
    return report


def _short(result: MergeResult) -> MergeResult:
    """Keep what a person would read: a result may name thousands of files."""
    return replace(result, conflicts=tuple(map(_shortened, result.conflicts[:MOST_TOLD])))


def _shortened(conflict: Conflict) -> Conflict:
    return replace(conflict, paths=conflict.paths[:MOST_TOLD], partners=conflict.partners[:MOST_TOLD])
