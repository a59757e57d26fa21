"""Where a merge is done: a repository, its state, and the run whose sessions are brought together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.engine.merge.past import Past, past
from shoal.errors import BadInput, UnknownName
from shoal.git.refs import refuse_blocked_names, value
from shoal.git.snapshot import is_hidden
from shoal.model.assignment import Assignment
from shoal.model.conflict_rule import ConflictRule
from shoal.model.merge import Strategy
from shoal.model.repository import Repository
from shoal.model.results import RunReport
from shoal.store.ledger import Ledger
from shoal.store.lock import held
from shoal.store.paths import StatePaths
from shoal.store.read import events

if TYPE_CHECKING:
    from shoal.engine.dispatch import Dispatch  # brings in all that sessions need, which few merges do

HEADS = "refs/heads/"
WAIT_SECONDS = 600.0
NO_RESOLVER = "a `resolver` goes with `on_conflict` `agent` only"

Verify = Callable[[str], Awaitable[str | None]]
"""Take a commit that holds the work of several sessions; `None` says that it is good, a text says why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolving:
    """What is done with work that conflicts, and with what; told to *stop*, the rest is left as it is."""

    rule: ConflictRule = ConflictRule.REPORT
    dispatch: "Dispatch | None" = None
    """What sessions are run with, for `agent` and `redo`."""
    resolver: Assignment | None = None
    """Who resolves, for `agent`."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def needs_boxes(self) -> bool:
        """Say whether agents have to work for it."""
        return self.rule in (ConflictRule.AGENT, ConflictRule.REDO)


def conflict_rule(name: str, resolver: object) -> ConflictRule:
    """Read the name of a rule; only `agent` has a resolver, and needs one."""
    if name not in set(ConflictRule):
        raise UnknownName("on_conflict", name, [one.value for one in ConflictRule])
    if (name == ConflictRule.AGENT) is (resolver is None):
        raise BadInput("`on_conflict` is `agent` and needs a `resolver`" if resolver is None else NO_RESOLVER)
    return ConflictRule(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeAsk:
    """What is to be merged, and how."""

    sessions: tuple[str, ...] = ()
    """In this order; none means all that ended well, those with the fewest conflicts first."""
    strategy: Strategy = Strategy.REVIEW
    into: str | None = None
    allow_executable: bool = False
    verify: Verify | None = None
    width: int = 1
    """How many verifications run at the same time, at most."""
    resolving: Resolving = field(default_factory=Resolving)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Where a merge is done."""

    repository: Repository
    paths: StatePaths
    ledger: Ledger
    report: RunReport
    """The run whose branch is made; its sessions may come from several runs."""

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.report.run

    @property
    def branch(self) -> str:
        """The integration branch."""
        return f"shoal/{self.run}"

    @property
    def ref(self) -> str:
        """The integration branch in full."""
        return f"{HEADS}{self.branch}"

    async def at(self) -> str:
        """Say where the integration branch is; empty where it is not."""
        return await value(self.repository, self.ref) or ""

    def past(self, at: str) -> Past:
        """Say what was merged before."""
        return past(events(self.paths, self.run), at)


@contextlib.asynccontextmanager
async def at_work(desk: Desk) -> AsyncIterator[None]:
    """Be the only one who merges this run."""
    if is_hidden(desk.repository):
        raise BadInput("there is no git repository here to merge into; `shoal diff SESSION | git apply` takes the work")
    desk.paths.create()
    await refuse_blocked_names(desk.repository)
    async with held(desk.paths.locks / f"merge-{desk.run}.lock", timeout=WAIT_SECONDS):
        yield
