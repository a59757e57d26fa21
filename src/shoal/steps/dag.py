"""The only scheduler of work with dependencies: stages of a plan, cells of a matrix, tasks of a program."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from shoal.errors import FAULTS, ShoalError, first_error
from shoal.git.conflict_sides import find_markers, has_sides, merge_favouring
from shoal.git.imports import release_packs
from shoal.git.merge import Conflicted, Merged, MergeRepository, Resolve, combine_commits
from shoal.git.refs import pin
from shoal.model.conflict_rule import ConflictRule
from shoal.patterns.limiter import Limiter
from shoal.sessions.context import RunContext

Ended = TypeVar("Ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A piece of work, its dependencies, and what it starts from."""

    name: str
    needs: Sequence[str] = ()
    title: str = ""
    """What the commit that merges its dependencies calls it, if not by its name."""
    base: str | None = None
    """A commit to start from instead of the work of its dependencies."""
    is_stacked: bool = True
    """Whether it starts from the work of its dependencies."""
    start: str | None = None
    """What it starts from if its dependencies left nothing; `None` is the run's base."""
    on_conflict: ConflictRule | None = None
    """How conflicts between its dependencies are resolved; `None` if no rule is possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInputs(Generic[Ended]):
    """What a node starts with: its dependencies have succeeded, and their work is merged."""

    base: str | None
    needs: Mapping[str, Ended]
    ended: Mapping[str, Ended] = field(repr=False)
    """Everything that has ended so far."""
    note: str | None = None
    """Which conflicts were resolved by a rule."""


class DagWork(Protocol[Ended]):
    """What differs between stages, cells and tasks."""

    def is_met(self, ended: Ended) -> bool:
        """Return whether its dependants may start."""

    def contribution(self, name: str, ended: Ended) -> "Contribution":
        """Return what its dependants build on; raise `Unstacked` if they cannot build on its work."""

    async def skip(self, node: Node, failed: Sequence[str]) -> Ended:
        """Record that *node* does not start, because its dependencies *failed* did not succeed."""

    async def unstack(self, node: Node, error: "Unstacked", turn: NodeInputs[Ended]) -> Ended:
        """Record that the work of the dependencies of *node* cannot be merged."""

    async def perform(self, node: Node, turn: NodeInputs[Ended]) -> Ended:
        """Run *node* until it ends."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one dependency passes on: the *commit*, or `None`, and the *name* used in messages."""

    name: str
    commit: str | None


class DagRunner(Generic[Ended]):
    """Runs nodes in the order of their dependencies: each starts as soon as those have ended, on their merged work."""

    def __init__(self, context: RunContext, work: DagWork[Ended], limiter: Limiter | None = None) -> None:
        self._context = context
        self._work = work
        self._limiter = limiter

    async def run(self, nodes: Sequence[Node]) -> dict[str, Ended]:
        """Run all *nodes*; the first error cancels the rest and is raised."""
        known = {node.name: node for node in nodes}

        async def perform(name: str, ended: Mapping[str, Ended]) -> Ended:
            return await self._node(known[name], ended)

        return await in_turn({node.name: node.needs for node in nodes}, perform)

    async def _node(self, node: Node, ended: Mapping[str, Ended]) -> Ended:
        work = self._work
        needs = {need: ended[need] for need in node.needs}
        if failed := [need for need, outcome in needs.items() if not work.is_met(outcome)]:
            return await work.skip(node, failed)
        try:
            base = await self._stack(node, needs)
        except Unstacked as error:
            return await work.unstack(node, error, NodeInputs(base=node.start, needs=needs, ended=ended))
        turn = NodeInputs(base=base.commit, needs=needs, ended=ended, note=base.note)
        async with contextlib.nullcontext() if self._limiter is None else self._limiter.slot():
            return await work.perform(node, turn)

    async def _stack(self, node: Node, needs: Mapping[str, Ended]) -> "Stacked":
        if node.base is not None:
            return Stacked(node.base)
        if not node.is_stacked:
            return Stacked(None)
        if not needs:
            return Stacked(node.start)
        parts = [self._work.contribution(need, outcome) for need, outcome in needs.items()]
        merged = await merge_parts(self._context, node.title or node.name, parts, node.on_conflict)
        return Stacked(merged.commit or node.start, merged.note)


def explain_skip(failed: Sequence[str]) -> str:
    """Describe which dependencies did not succeed."""
    names = ", ".join(map(ascii, failed))
    return f"dependency {names} failed" if len(failed) == 1 else f"dependencies {names} failed"


Perform = Callable[[str, Mapping[str, Ended]], Awaitable[Ended]]
"""Runs one piece by name; it gets everything that has ended so far."""


async def in_turn(needs: Mapping[str, Sequence[str]], perform: Perform[Ended]) -> dict[str, Ended]:
    """Run everything in *needs*, each after its dependencies; the first error cancels the rest and is raised."""
    ends = {name: asyncio.Event() for name in needs}
    ended: dict[str, Ended] = {}

    async def run_node(name: str) -> None:
        for need in needs[name]:
            await ends[need].wait()
        ended[name] = await perform(name, ended)
        ends[name].set()

    try:
        async with asyncio.TaskGroup() as group:
            for name in needs:
                group.create_task(run_node(name))
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return ended


SHOWN = 5


class Unstacked(ShoalError):
    """The work of the dependencies cannot be merged; *paths* are the conflicting files."""

    def __init__(self, what: str, paths: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.paths = tuple(paths)


@dataclass(frozen=True, slots=True)
class Stacked:
    """The merged *commit*, `None` for the run's base; *note* says which conflicts were resolved by a rule."""

    commit: str | None
    note: str | None = None


async def merge_parts(
    context: RunContext, title: str, parts: Sequence[Contribution], rule: ConflictRule | None = None
) -> Stacked:
    """Merge *parts* as the base of *title*; conflicts are resolved by *rule*. Raises `Unstacked` with the reason."""
    needs = [part.name for part in parts]
    commits = [part.commit for part in parts if part.commit]
    if not commits:
        return Stacked(None)
    message = f"Base of {title}: {', '.join(needs)}\n"
    try:
        base = await combine_commits(context.repository, commits, message, resolve=_take_side(rule), is_held=True)
        if isinstance(base, Merged):
            try:  # a slot may take long, and git gc may run meanwhile
                await pin(context.repository, context.run, base.commit)
            finally:
                release_packs(base.keeps)
    except FAULTS as error:
        why = str(error) or type(error).__name__
        raise Unstacked(f"the work of its needs ({', '.join(needs)}) cannot be merged: {why}") from error
    if isinstance(base, Conflicted):
        raise Unstacked(_conflict(needs, base, rule), base.paths)
    return Stacked(base.commit, _note(needs, base.resolved, rule))


def _take_side(rule: ConflictRule | None) -> Resolve | None:
    """Return what resolves conflicts by *rule*; `None` if conflicts are not resolved."""
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
        why += f", where `on_conflict: {rule.value}` cannot decide (a file was deleted, renamed or replaced by a link)"
        return f"{why}; let one of them need the other, or give it {base}"
    return f"{why}; let one of them need the other, or give it `on_conflict: ours` or `theirs`, or {base}"


def _files(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(ascii(path)[1:-1] for path in paths[:SHOWN]) + more
