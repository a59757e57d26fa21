"""Where a merge is done: a repository, its state, and the run whose sessions are brought together."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from shoal.engine.merge.past import Past, past
from shoal.errors import BadInput
from shoal.git.refs import refuse_blocked_names, value
from shoal.git.snapshot import is_hidden
from shoal.model.merge import Strategy
from shoal.model.repository import Repository
from shoal.model.results import RunReport
from shoal.store.ledger import Ledger
from shoal.store.lock import held
from shoal.store.paths import StatePaths
from shoal.store.read import events

HEADS = "refs/heads/"
WAIT_SECONDS = 600.0

Verify = Callable[[str], Awaitable[str | None]]
"""Take a commit that holds the work of several sessions; `None` says that it is good, a text says why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeAsk:
    """What is to be merged, and how."""

    sessions: tuple[str, ...] = ()
    """In this order; none means all that ended well, those with the fewest conflicts first."""
    strategy: Strategy = Strategy.REVIEW
    into: str | None = None
    allow_executable: bool = False
    verify: Verify | None = None


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
