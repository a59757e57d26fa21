"""All of a run's work together, to be looked at: merged beside the repository, and gone when nobody looks any more."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from shoal.engine.merge.candidates import lot
from shoal.engine.merge.line import ordered
from shoal.engine.merge.preview import previewed
from shoal.engine.merge.rounds import counting
from shoal.git.commits import Commit
from shoal.git.conflicts import Clean
from shoal.git.merge import workbench
from shoal.model.repository import Repository
from shoal.model.results import RunReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """The work of *sessions* as one commit, which only *gitdir* knows."""

    gitdir: Path
    base: str
    commit: str
    sessions: tuple[str, ...]
    conflicting: tuple[str, ...]
    """Sessions that are not in it, because they conflict with those that are."""


@contextlib.asynccontextmanager
async def combination(repository: Repository, report: RunReport) -> AsyncIterator[Combination]:
    """Merge all that ended well, in the order in which a merge would; nothing is left in the repository."""
    candidates = lot(await counting(repository, report), allow_executable=True).candidates
    line = ordered(candidates, await previewed(repository, report.run, report.base, candidates))
    inside: list[str] = []
    outside: list[str] = []
    async with workbench(repository) as bench:
        tip = report.base
        for one in line:
            if not await bench.holds(tip, one.source):
                tried = await bench.tried(tip, one.source)
                if not isinstance(tried, Clean):
                    outside.append(one.session)
                    continue
                tip = bench.commit(Commit(tree=tried.tree, parents=(tip, one.source), message="combined\n"))
            inside.append(one.session)
        yield Combination(
            gitdir=bench.gitdir,
            base=report.base,
            commit=tip,
            sessions=tuple(inside),
            conflicting=tuple(outside),
        )
