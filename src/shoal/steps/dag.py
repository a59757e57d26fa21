"""Work that waits for other work: each piece starts the moment its own needs have ended, and never earlier."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shoal.errors import ShoalError, first_of
from shoal.git.conflict_sides import find_markers, has_sides, merge_favouring
from shoal.git.merge import Conflicted, Merged, MergeRepository, Resolve, combine_commits
from shoal.git.refs import pin
from shoal.model.conflict_rule import ConflictRule
from shoal.sessions.context import RunContext
from shoal.sessions.session import FAULTS

Ended = TypeVar("Ended")

Perform = Callable[[str, Mapping[str, Ended]], Awaitable[Ended]]
"""Do one piece by its name; what has ended so far, its needs among it, is given too."""


async def in_turn(needs: Mapping[str, Sequence[str]], perform: Perform[Ended]) -> dict[str, Ended]:
    """Do all of *needs*, each after those that it names; the first error cancels the rest, and is raised."""
    ends = {name: asyncio.Event() for name in needs}
    ended: dict[str, Ended] = {}

    async def one(name: str) -> None:
        for need in needs[name]:
            await ends[need].wait()
        ended[name] = await perform(name, ended)
        ends[name].set()

    try:
        async with asyncio.TaskGroup() as group:
            for name in needs:
                group.create_task(one(name))
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return ended


SHOWN = 5


class Unstacked(ShoalError):
    """The work of the needs cannot be had together; *paths* are the files that conflict."""

    def __init__(self, what: str, paths: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.paths = tuple(paths)


@dataclass(frozen=True, slots=True)
class Stacked:
    """The merged *commit*, `None` being the run's own base; *note* says which conflicts a rule resolved."""

    commit: str | None
    note: str | None = None


async def merge_dependencies(
    context: RunContext, step: str, needs: Sequence[str], commits: Sequence[str]
) -> str | None:
    """Merge *commits*, the work of *needs*; `None` is the run's own base. Raises `Unstacked` with the reason."""
    return (await merge_needs(context, step, needs, commits, None)).commit


async def merge_needs(
    context: RunContext, step: str, needs: Sequence[str], commits: Sequence[str], rule: ConflictRule | None
) -> Stacked:
    """Merge *commits*, the work of *needs*, by *rule* where they conflict. Raises `Unstacked` with the reason.

    Where nobody can give a rule, as among the cells of a matrix, it is `None`.
    """
    if not commits:
        return Stacked(None)
    said = f"Base of {step}: {', '.join(needs)}\n"
    try:
        base = await combine_commits(context.repository, commits, said, resolve=_take_side(rule))
        if isinstance(base, Merged):
            await pin(context.repository, context.run, base.commit)  # a slot may be long in coming, and a gc quick
    except FAULTS as error:
        why = str(error) or type(error).__name__
        raise Unstacked(f"the work of its needs ({', '.join(needs)}) cannot be merged: {why}") from error
    if isinstance(base, Conflicted):
        raise Unstacked(_conflict(needs, base, rule), base.paths)
    return Stacked(base.commit, _note(needs, base.resolved, rule))


def _take_side(rule: ConflictRule | None) -> Resolve | None:
    """Make what resolves conflicts by *rule*; `None` where a conflict stays one."""
    if rule is None or not rule.is_favour:
        return None

    async def resolve(bench: MergeRepository, ours: str, theirs: str, found: Conflicted) -> str | None:
        tree = await merge_favouring(bench, ours, theirs, rule) if has_sides(found) else None
        if tree is None or await find_markers(bench, tree, found.paths, (ours, theirs)):
            return None
        return tree

    return resolve


def _note(needs: Sequence[str], paths: Sequence[str], rule: ConflictRule | None) -> str | None:
    if rule is None or not paths:
        return None
    return f"its needs ({', '.join(needs)}) conflict in {_files(paths)}; resolved by `on_conflict: {rule.value}`"


def _conflict(needs: Sequence[str], found: Conflicted, rule: ConflictRule | None) -> str:
    why = f"the work of its needs ({', '.join(needs)}) conflicts in {_files(found.paths)}"
    base = "a `base` (`run` builds on none of them)"
    if rule is None:
        return f"{why}; merge them first, or give it {base}"
    if rule.is_favour:
        why += f", where `on_conflict: {rule.value}` cannot decide (a file deleted, renamed or made a link, say)"
        return f"{why}; let one of them need the other, or give it {base}"
    return f"{why}; let one of them need the other, or give it `on_conflict: ours` or `theirs`, or {base}"


def _files(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(ascii(path)[1:-1] for path in paths[:SHOWN]) + more
