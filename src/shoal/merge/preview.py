"""Find out which sessions would conflict: first by the files they touch, then by trying each pair."""

from collections.abc import Mapping, Sequence

from shoal.git.ancestry import since
from shoal.git.conflicts import Conflicted, Tried
from shoal.git.difference import list_touched_files, meeting
from shoal.git.merge import try_pairs
from shoal.merge.candidates import Candidate
from shoal.model.merge import Clash, Preview
from shoal.model.repository import Repository


async def preview_merge(
    repository: Repository,
    run: str,
    base: str,
    candidates: Sequence[Candidate],
    bases: Mapping[str, str] | None = None,
) -> Preview:
    """Try each pair of *candidates* that touches the same files; sessions that build on each other are no pair.

    *bases* are the commits that sessions started from, where those differ from *base*: what was there before is not
    their own change.
    """
    source = {candidate.session: candidate.source for candidate in candidates}
    own = {session: (bases or {}).get(session, base) for session in source}
    changed: dict[str, tuple[str, ...]] = {}
    for start in dict.fromkeys(own.values()):
        changed |= await list_touched_files(repository, start, [source[name] for name in source if own[name] == start])
    pairs, is_whole = meeting({session: changed[commit] for session, commit in source.items()})
    if not pairs:
        return Preview(run=run, sessions=tuple(source), is_whole=is_whole)
    ancestry = await since(repository, [base], list(source.values()))
    reach = {commit: ancestry.reach([commit]) for commit in {source[name] for pair in pairs for name in pair}}
    apart = [
        (first, second)
        for first, second in pairs
        if source[first] not in reach[source[second]] and source[second] not in reach[source[first]]
    ]
    tried = await try_pairs(repository, [(source[first], source[second]) for first, second in apart])
    outcomes = list(zip(apart, tried, strict=True))
    return Preview(
        run=run,
        sessions=tuple(source),
        overlaps=tuple(pair for pair, outcome in outcomes if not isinstance(outcome, Conflicted)),
        clashes=tuple(_clash(pair, outcome) for pair, outcome in outcomes if isinstance(outcome, Conflicted)),
        is_whole=is_whole,
    )


def _clash(pair: tuple[str, str], tried: Tried) -> Clash:
    conflicts = tried.conflicts if isinstance(tried, Conflicted) else ()
    return Clash(one=pair[0], other=pair[1], conflicts=conflicts)
