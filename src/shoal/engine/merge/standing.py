"""Work that stands on what is kept back: merging it would bring that along, under another name."""

from collections.abc import Iterable, Iterator, Sequence, Set

from shoal.engine.merge.candidates import Candidate, held
from shoal.git.ancestry import Ancestry
from shoal.model.merge import MergeResult, MergeStatus
from shoal.model.results import WorkerResult


def barred(
    candidates: Sequence[Candidate], workers: Iterable[WorkerResult], ancestry: Ancestry, there: Set[str]
) -> Iterator[MergeResult]:
    """Keep back those that stand on what changes what runs on a person's machine and is not *there* yet."""
    flagged = {one.commit: one for one in workers if one.commit and one.executable and one.commit not in there}
    if not flagged:
        return
    for one in candidates:
        below = ancestry.reach([one.source]) - {one.source}
        if found := [worker for commit, worker in flagged.items() if commit in below]:
            said = f"it stands on {found[0].session}: {held(found[0]).message}"
            yield MergeResult(session=one.session, status=MergeStatus.HELD, source=one.source, message=said)
