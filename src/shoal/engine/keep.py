"""Keeping an ended agent's work: sealed in a box, taken in as a pack, held by a ref; or its raw files stay."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.engine.lease import Lease
from shoal.engine.seal import Seal, Wish, sealed
from shoal.engine.site import Site
from shoal.git.imports import Refused, take
from shoal.git.refs import ABSENT, Move, move, refusal, value
from shoal.model.executable import executable_paths
from shoal.model.results import WorkerResult
from shoal.workspaces.kind import Workspace
from shoal.workspaces.overlay import is_empty

AT_ONCE = 500
FLAGGED_AT_MOST = 100
FLAGGED_SIGNS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where the work is now: on *branch*, nowhere because there was none, or still raw because of *failure*."""

    branch: str | None = None
    commit: str | None = None
    files_changed: int = 0
    refs: tuple[str, ...] = ()
    unkept: tuple[str, ...] = ()
    special: tuple[str, ...] = ()
    unconverted: tuple[str, ...] = ()
    ignored: int = 0
    executable: tuple[str, ...] = ()
    failure: str | None = None

    @property
    def must_stay(self) -> bool:
        """Say whether some bytes are only in the raw files."""
        return self.failure is not None or bool(self.unkept)

    def on(self, result: WorkerResult, box: Path) -> WorkerResult:
        """Tell in *result* where the work is; *box* is where its raw files lie if it could not be brought in."""
        if self is NOTHING:
            return result
        return replace(
            result,
            branch=self.branch,
            commit=self.commit,
            files_changed=self.files_changed,
            unkept=(*self.unkept, *self.special),
            unconverted=self.unconverted,
            ignored=self.ignored,
            kept_refs=self.refs,
            executable=self.executable,
            raw=str(box) if self.must_stay else None,
        )


NOTHING = Kept()
"""There was no work."""


async def kept(
    site: Site,
    workspace: Workspace,
    lease: Lease,
    *,
    branch: str,
    message: str,
    has_history: bool,
    litter: tuple[str, ...] = (),
) -> Kept:
    """Bring the work to a branch; try again without the agent's own history if that is what is unsound."""
    ref = f"refs/heads/{branch}"
    here = await value(site.repository, ref) if not workspace.is_overlay else None
    join = here if here not in (None, site.base.commit) else ""
    if workspace.is_overlay and not has_history and is_empty(workspace.changes):
        return NOTHING
    wish = Wish(message=message, has_history=has_history, join=join or "", litter=litter)
    seal = await sealed(site, workspace, lease, wish)
    result = await _taken(site, seal, ref, here)
    if result.failure and has_history:
        seal = await sealed(site, workspace, lease, replace(wish, squash=True, has_history=False))
        result = await _taken(site, seal, ref, here)
    if result.commit is None and result.failure is None and here == site.base.commit:
        await move(site.repository, [Move(ref, ABSENT, here)])
    return result


def told(known: Kept, seal: Seal) -> Kept:
    """Add what the seal said of single files, and why it failed."""
    return replace(
        known,
        unkept=seal.unkept,
        special=seal.special,
        unconverted=seal.unconverted,
        ignored=seal.ignored,
        failure=seal.failure,
    )


async def _taken(site: Site, seal: Seal, ref: str, here: str | None) -> Kept:
    known = told(NOTHING, seal)
    if seal.failure or seal.tip is None or seal.pack is None:
        return known
    taken = await take(site.repository, seal.pack, base=site.base.commit, tips=(seal.tip, *seal.extras))
    if isinstance(taken, Refused):
        return replace(known, failure=f"the work was refused: {taken.why}")
    extras = [f"refs/shoal/kept/{ref.removeprefix('refs/heads/agent/')}/{n}" for n, _ in enumerate(seal.extras)]
    moves = [Move(name, commit, ABSENT) for name, commit in zip(extras, seal.extras, strict=True)]
    has_work = seal.tip != site.base.commit
    if has_work:
        moves.append(Move(ref, seal.tip, here or ABSENT))
    if not await move(site.repository, moves):
        why = await refusal(site.repository, ref, seal.tip)
        return replace(known, failure=f"{ref} {f'cannot be made: {why}' if why else 'was moved by somebody else'}")
    return replace(
        known,
        branch=ref.removeprefix("refs/heads/") if has_work else None,
        commit=seal.tip if has_work else None,
        files_changed=taken.files_changed,
        refs=tuple(extras),
        executable=await flagged(taken.paths),
    )


async def flagged(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Name what could run programs later: some of each folder, then how many more, and never hold the others up."""
    found: list[str] = []
    for first in range(0, len(paths), AT_ONCE):
        found += executable_paths(paths[first : first + AT_ONCE])
        await asyncio.sleep(0)
    # One of each folder first, so that a thousand files of one kind do not keep another out of sight.
    one_of_each = {path.rpartition("/")[0]: path for path in reversed(found)}
    named = [*dict.fromkeys((*sorted(one_of_each.values()), *found))] if len(found) > FLAGGED_AT_MOST else found
    more = (f"and {len(found) - FLAGGED_AT_MOST} more",) if len(found) > FLAGGED_AT_MOST else ()
    return (*(path[:FLAGGED_SIGNS] for path in named[:FLAGGED_AT_MOST]), *more)
