"""Which sessions would conflict, before anybody waits for them: first by files, then by trying each pair."""

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
    """Try each pair of *candidates* that touches the same files; sessions that stand on each other are no pair.

    *bases* are the commits that sessions started from, where that is another than *base*: what they stand on is not
    their own change.
    """
    source = {one.session: one.source for one in candidates}
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
        (one, two)
        for one, two in pairs
        if source[one] not in reach[source[two]] and source[two] not in reach[source[one]]
    ]
    tried = await try_pairs(repository, [(source[one], source[two]) for one, two in apart])
    told = list(zip(apart, tried, strict=True))
    return Preview(
        run=run,
        sessions=tuple(source),
        overlaps=tuple(pair for pair, one in told if not isinstance(one, Conflicted)),
        clashes=tuple(_clash(pair, one) for pair, one in told if isinstance(one, Conflicted)),
        is_whole=is_whole,
    )


def _clash(pair: tuple[str, str], tried: Tried) -> Clash:
    conflicts = tried.conflicts if isinstance(tried, Conflicted) else ()
    return Clash(one=pair[0], other=pair[1], conflicts=conflicts)
