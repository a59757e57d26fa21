"""The merge request and its context: what to merge and where, and the run whose sessions are merged."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import BadInput, UnknownName
from shoal.git.refs import refuse_blocked_names, value
from shoal.git.repository import inspect
from shoal.git.snapshot import is_hidden
from shoal.merge.candidates import MergeWaivers
from shoal.model.conflict_rule import ConflictRule
from shoal.model.events import Recorded
from shoal.model.merge import (
    Conflict,
    DeliveryIntended,
    DeliveryRecorded,
    MergeEnded,
    MergeIntended,
    MergeRecorded,
    MergeReport,
    MergeResult,
    Strategy,
)
from shoal.model.repository import Repository
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import RunReport, WorkerResult
from shoal.sessions.context import RunContext
from shoal.store.fold import fold, report
from shoal.store.ledger import Ledger, open_ledger
from shoal.store.lock import hold_lock
from shoal.store.lookup import find_run, find_session
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events, store_at
from shoal.store.run_state import RunState, State

if TYPE_CHECKING:
    from shoal.steps.attempts import WorkerRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeHistory:
    """Where Shoal left the integration branch of a run, and what it contains."""

    tip: str = ""
    """Empty if there is no such branch."""
    start: str = ""
    strategy: Strategy = Strategy.AUTO
    results: tuple[MergeResult, ...] = ()
    removed: tuple[str, ...] = ()
    """Sessions that an undo took out."""
    unrecorded: str | None = None
    """Where the branch was moved to without a record, because the process was killed."""
    deliveries: Mapping[str, DeliveryRecorded] = field(default_factory=dict)
    """The last delivery into each branch."""
    pending: Mapping[str, DeliveryIntended] = field(default_factory=dict)
    """Started but unrecorded deliveries into each branch."""

    def without_missing(self, missing: Container[str]) -> "MergeHistory":
        """Forget the source commits that are *missing*: what is merged stays merged, but cannot be merged anew."""
        results = (replace(result, source=None) if result.source in missing else result for result in self.results)
        return replace(self, results=tuple(results))


def read_history(events: Iterable[Recorded], branch_tip: str) -> MergeHistory:
    """Fold *events* of one run; *branch_tip* is where the integration branch really is."""
    history = MergeHistory()
    intent: MergeIntended | None = None
    for recorded in events:
        match recorded.event:
            case MergeIntended() as event:
                intent = event
                if event.new == branch_tip:
                    history = replace(_apply_intent(history, event), unrecorded=branch_tip)
            case MergeRecorded(new=new):
                if intent is not None and intent.new == new:
                    history = replace(_apply_intent(history, intent), unrecorded=None)
            case DeliveryIntended(into=into) as event:
                history = replace(history, pending={**history.pending, into: event})
            case DeliveryRecorded(into=into) as event:
                pending = {name: intended for name, intended in history.pending.items() if name != into}
                history = replace(history, pending=pending, deliveries={**history.deliveries, into: event})
            case _:
                continue
    return history


def _apply_intent(history: MergeHistory, intent: MergeIntended) -> MergeHistory:
    return replace(
        history,
        tip=intent.new,
        start=intent.start,
        strategy=intent.strategy,
        results=intent.results,
        removed=intent.out,
    )


HEADS = "refs/heads/"
WAIT_SECONDS = 600.0
NO_RESOLVER = "a `resolver` goes with `on_conflict` `agent` only"

Verify = Callable[[str], Awaitable[str | None]]
"""Verifies a commit with the work of several sessions; returns `None` if it is good, otherwise the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictOptions:
    """How to resolve conflicts; once *stop* is set, the remaining conflicts are left as they are."""

    rule: ConflictRule = ConflictRule.REPORT
    runner: "WorkerRunner | None" = None
    """Runs sessions, for `agent` and `redo`."""
    resolver: ResolvedTask | None = None
    """The agent that resolves, for `agent`."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def needs_sessions(self) -> bool:
        """Return whether the rule runs agents."""
        return self.rule in (ConflictRule.AGENT, ConflictRule.REDO)


def conflict_rule(name: str, resolver: object) -> ConflictRule:
    """Parse the name of a rule; `agent` needs a resolver, and no other rule takes one."""
    if name not in set(ConflictRule):
        raise UnknownName("on_conflict", name, [rule.value for rule in ConflictRule])
    if (name == ConflictRule.AGENT) is (resolver is None):
        raise BadInput("`on_conflict` is `agent` and needs a `resolver`" if resolver is None else NO_RESOLVER)
    return ConflictRule(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """What to merge, and how."""

    sessions: tuple[str, ...] = ()
    """In this order; none means all that succeeded, those with the fewest conflicts first."""
    strategy: Strategy = Strategy.REVIEW
    into: str | None = None
    is_approved: bool = False
    """Whether a person approved the delivery, which the strategy `review` waits for."""
    allow_executable: bool = False
    allow_secrets: bool = False
    verify: Verify | None = None
    width: int = 1
    """How many verifications run at the same time."""
    resolving: ConflictOptions = field(default_factory=ConflictOptions)

    @property
    def allowed(self) -> MergeWaivers:
        """Work to merge although a person should review it."""
        return MergeWaivers(executable=self.allow_executable, secrets=self.allow_secrets)

    @property
    def waits(self) -> bool:
        """Return whether the delivery waits until a person approves."""
        return self.strategy is Strategy.REVIEW and not self.is_approved


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeContext:
    """The repository, its state, and the run that is merged."""

    repository: Repository
    paths: StatePaths
    ledger: Ledger
    report: RunReport
    """The run whose branch is built; its sessions may come from several runs."""

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
        """The full ref of the integration branch."""
        return f"{HEADS}{self.branch}"

    async def read_branch_tip(self) -> str:
        """Read the tip of the integration branch; empty if there is none."""
        return await value(self.repository, self.ref) or ""

    def read_history(self, branch_tip: str) -> MergeHistory:
        """Read what was merged before."""
        return read_history(read_events(self.paths, self.run), branch_tip)


@contextlib.asynccontextmanager
async def hold_merge_lock(merge_context: MergeContext) -> AsyncIterator[None]:
    """Hold the lock of this run's merges."""
    if is_hidden(merge_context.repository):
        remedy = "apply the work with `shoal diff SESSION | git apply`"
        raise BadInput(f"there is no git repository here to merge into; {remedy}")
    merge_context.paths.create()
    await refuse_blocked_names(merge_context.repository)
    async with hold_lock(merge_context.paths.locks / f"merge-{merge_context.run}.lock", timeout=WAIT_SECONDS):
        yield


@contextlib.asynccontextmanager
async def open_merge_context(
    repo: Path, environ: Mapping[str, str], context: RunContext | None, workers: Sequence[str], run: str | None = None
) -> AsyncIterator[MergeContext]:
    """Open the merge context of the current run, of *run*, or of the run of the last of *workers*."""
    if context is not None:
        own = report(fold(read_events(context.paths, context.run)).runs[context.run])
        yield MergeContext(repository=context.repository, paths=context.paths, ledger=context.ledger, report=own)
        return
    repository = await inspect(repo, environ)
    paths = StatePaths.of(repository.home)
    state = fold(read_events(paths))
    chosen = _find_report(state, workers) if run is None else report(find_run(state, run))
    async with open_ledger(store_at(paths)) as ledger:
        yield MergeContext(repository=repository, paths=paths, ledger=ledger, report=chosen)


def find_results(paths: StatePaths, given: Sequence[object]) -> list[WorkerResult]:
    """Find the result of each session that was *given* as a result, a session, or a name."""
    return [item if isinstance(item, WorkerResult) else _find_result(paths, session_name(item)) for item in given]


def session_name(given: object) -> str:
    """Return the name of the session that was *given*."""
    name = given if isinstance(given, str) else getattr(given, "session", None)
    result = getattr(given, "result", None)  # a session that was held open: its id may have been used before
    if name is None and isinstance(result, WorkerResult):
        name = result.session
    name = name or getattr(given, "session_id", None)
    if not isinstance(name, str):
        raise BadInput(f"{given!r:.80} is not a session; pass a result, a session, or the name of one")
    return name


def _find_result(paths: StatePaths, word: str) -> WorkerResult:
    state = find_session(fold(read_events(paths)), word)
    if state.result is None:
        raise BadInput(f"{state.session} has not ended yet; wait for it, then merge it")
    return state.result


def _find_report(state: State, workers: Sequence[str]) -> RunReport:
    if not workers:
        return report(find_run(state))
    session = find_session(state, workers[-1]).session
    return next(report(run) for run in state.runs.values() if _has(run, session))


def _has(run: RunState, session: str) -> bool:
    return any(session in step.sessions for step in run.steps.values())


MAX_RECORDED = 20


async def record_merge_ended(merge_context: MergeContext, report: MergeReport) -> MergeReport:
    """Record how a merge ended, unless the last record is the same; return *report*."""
    last: MergeReport | None = None
    for recorded in read_events(merge_context.paths, merge_context.run):
        if isinstance(recorded.event, MergeEnded):
            last = recorded.event.report
    short = replace(report, results=tuple(map(_shorten_result, report.results)))
    if short != last:
        await merge_context.ledger.append(MergeEnded(run=merge_context.run, report=short))
    return report


def _shorten_result(result: MergeResult) -> MergeResult:
    """Keep what a person would read: a result may list thousands of files."""
    return replace(result, conflicts=tuple(map(_shorten_conflict, result.conflicts[:MAX_RECORDED])))


def _shorten_conflict(conflict: Conflict) -> Conflict:
    return replace(conflict, paths=conflict.paths[:MAX_RECORDED], partners=conflict.partners[:MAX_RECORDED])
