"""The results of a worker, a step and a run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from shoal.errors import ExitCode, ShoalError
from shoal.model.contract import ContractResult
from shoal.model.merge import MergeReport, Overlap
from shoal.model.queue import QueueCount
from shoal.model.select import RankedRow
from shoal.model.status import Status

Usage = Mapping[str, float]
NONE: Usage = MappingProxyType({"input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0})


class Purpose(StrEnum):
    """What a session is for; a merge takes only work that nobody else has taken."""

    WORK = "work"
    VERIFY = "verify"
    RESOLVE = "resolve"
    CHILD = "child"
    """Started by another agent, which decides what becomes of the work."""


def sum_usage(parts: Iterable[Usage]) -> dict[str, float]:
    """Add up usage; the sum of none is empty, not zeros."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """How one session ended, and its work."""

    index: int
    session: str
    status: Status
    purpose: Purpose = Purpose.WORK
    parent: str = ""
    """The session whose agent started it."""
    exit_code: int | None = None
    output: str = ""
    branch: str | None = None
    commit: str | None = None
    files_changed: int = 0
    attempts: int = 1
    duration_seconds: float = 0.0
    usage: Mapping[str, float] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    """What its processes used, as far as this host measures it: `memory_peak_mb`, `memory_average_mb`,
    `cpu_seconds`, and `disk_mb`, its maximum disk use."""
    client_session: str | None = None
    """The client's id of the conversation, by which it can resume it."""
    artifacts: Mapping[str, str] = field(default_factory=dict)
    limit: str | None = None
    error: str | None = None
    workspace: str = ""
    unkept: tuple[str, ...] = ()
    """Names of files that could not be kept, escaped for display."""
    unconverted: tuple[str, ...] = ()
    """Names of files that were kept as they are, because they are not in the encoding that their attributes name."""
    ignored: int = 0
    """How many files the repository's own ignore rules left out of the commit."""
    kept_refs: tuple[str, ...] = ()
    """Refs that hold the agent's other branches and stashes."""
    executable: tuple[str, ...] = ()
    """Changed files that run code on a person's machine later: hooks, editor tasks, CI, attributes."""
    secrets: tuple[str, ...] = ()
    """Where its branch contains secrets of the user: files or commits, each with the names of the variables."""
    instructions: tuple[str, ...] = ()
    """Changed files that clients read as instructions: `AGENTS.md` and the like."""
    notes: tuple[str, ...] = ()
    """Remarks about how its work was kept: without its own commits, or without its ignore rules."""
    set_back: tuple[str, ...] = ()
    """Client settings of earlier agents that it did not see: they were as on the run's base."""
    raw: str | None = None
    """Where the raw files still are, if they could not be imported."""
    prompt: str = ""
    """The beginning of its prompt, on one line and without secrets."""
    agent: str = ""
    """The name of its agent."""
    base: str | None = None
    """The commit that it started from."""
    item: str | None = None
    """The item of a matrix that it worked on."""
    stopped_by: str | None = None
    """Who stopped this session alone; it counts as failed, and is not tried again."""
    checks: tuple[ContractResult, ...] = ()
    """The results of its step's contracts, and of the command of a selection."""
    node: str = ""
    """The node that it ran on; empty for this machine."""

    @property
    def status_text(self) -> str:
        """How it ended, in a word; a verification changes nothing by nature, so a successful one has `passed`."""
        return "passed" if self.status.is_good and self.purpose is Purpose.VERIFY else self.status.value

    @property
    def status_for_step(self) -> Status:
        """How it counts for its step: a worker that a person stopped counts as failed, unlike a cancelled sibling."""
        return self.status if self.stopped_by is None else Status.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The aggregate of a step (seed 000)."""

    step: str
    on_failure: str
    status: Status
    worker_results: tuple[WorkerResult, ...]
    error: str | None = None
    """Why it failed or was skipped, if that was not due to one of its workers."""
    selected: int | None = None
    """The selected worker."""
    ranking: tuple[RankedRow, ...] = ()
    """All workers from best to worst, if one was selected."""
    rounds: int = 1
    """The number of rounds of a loop; the results are of the last round."""
    notes: tuple[str, ...] = ()
    """Remarks: the files in which its needs conflict, if its `on_conflict` resolved that."""
    artifacts: Mapping[str, str] = field(default_factory=dict)
    """The paths of the files that it passes on, by name."""

    @property
    def total_workers(self) -> int:
        """Count all workers."""
        return len(self.worker_results)

    @property
    def success_count(self) -> int:
        """Count the successful ones."""
        return sum(result.status.is_good for result in self.worker_results)

    @property
    def cancelled_count(self) -> int:
        """Count the cancelled siblings, which are not failures."""
        return sum(result.status is Status.CANCELLED for result in self.worker_results)

    @property
    def skipped_count(self) -> int:
        """Count those that never had to start."""
        return sum(result.status is Status.SKIPPED for result in self.worker_results)

    @property
    def fail_count(self) -> int:
        """Count the failed ones; running ones have not failed yet."""
        ended = sum(result.status.is_ended for result in self.worker_results)
        return ended - self.success_count - self.cancelled_count - self.skipped_count


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """How a run ended."""

    run: str
    status: Status
    base: str
    duration_seconds: float
    steps: tuple[StepResult, ...]
    wall: str
    workspace: str
    limits: str = ""
    """What held the agents to their limits, and the limits of each step."""
    notes: tuple[str, ...] = ()
    """Remarks for people: uncommitted changes left out, a clamped number, a gap in the sandbox."""
    usage: Usage = field(default_factory=dict)
    """The model usage of all its sessions, including retries, reviews and judges."""
    merge: MergeReport | None = None
    """The result of merging the work, if that was requested."""
    overlaps: tuple[Overlap, ...] = ()
    """The pairs of sessions that changed the same files, in order of detection."""
    queues: tuple[QueueCount, ...] = ()
    """How far its queues of tasks are."""
    earlier: tuple[WorkerResult, ...] = ()
    """Successful work of earlier rounds of loops: a last round that changed nothing builds on it."""
    error: str | None = None
    """Why the run itself could not finish, if that is not the failure of an agent."""
    exit_code: int | None = None
    """The exit code of the command that ran it, if it was recorded."""

    @property
    def workers(self) -> list[WorkerResult]:
        """Return the results of all workers, in the order of the steps."""
        return [worker for step in self.steps for worker in step.worker_results]


def exit_code(report: RunReport) -> int:
    """Return the exit code of the run: the recorded one, otherwise from its agents and its merge."""
    if report.exit_code is not None:
        return report.exit_code
    if report.status is not Status.SUCCEEDED:
        return ExitCode.FAILED
    return ExitCode.NEEDS_A_PERSON if report.merge is not None and report.merge.needs_a_person else ExitCode.SUCCESS


class RunBroken(ShoalError):
    """A run could not finish after its agents had started; *report* has their results."""

    def __init__(self, report: RunReport, cause: Exception) -> None:
        super().__init__(report.error or str(cause))
        self.report = report
        self.cause = cause


class AgentFailed(ShoalError):
    """A required agent failed; *result* has its status and work."""

    exit_code = ExitCode.FAILED

    def __init__(self, result: WorkerResult) -> None:
        super().__init__(f"{result.session} {result.status.value}: {result.error or 'it gave no reason'}")
        self.result = result
