"""One worker of a step, as a value: its names, its task and what it may spend."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.adapters.kind import Adapter
from shoal.model.assignment import Assignment
from shoal.model.limits import ResourceLimits
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.model.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One worker of a step: its names are ours, and its branch is not taken by anybody."""

    step: str
    index: int
    count: int
    task: Assignment
    adapter: Adapter
    attempt: int = 1
    database: str | None = None
    """The name of its database, where that is not the session's own."""
    base: str | None = None
    """The commit to start from, where that is not the run's."""
    needs: tuple[str, ...] = ()
    """The steps that must end well first."""
    is_stacked: bool = True
    """Whether it starts from the work of its needs."""
    wish: Task | None = None
    """What was asked for, where its inputs may name its needs."""
    function: Callable[..., object] | None = None
    """What does the work in a thread of this process, for code that is trusted."""
    hex: str = field(default_factory=lambda: secrets.token_hex(3))

    @property
    def session(self) -> str:
        """The session's id, which is also the name of its private folder."""
        return f"{self.step}-{self.hex}"

    @property
    def branch(self) -> str:
        """The branch that will hold its work."""
        return f"agent/{self.step}/{self.hex}"

    def unstarted(self, status: Status, why: str | None = None) -> WorkerResult:
        """Make the result of a job that never began."""
        return WorkerResult(index=self.index, session=self.session, status=status, attempts=0, error=why)

    @property
    def limits(self) -> ResourceLimits:
        """What it may spend."""
        return self.task.limits or ResourceLimits.unnamed()

    def message(self, masked: Callable[[str], str]) -> str:
        """Say what the sealing commit says: masked before it is cut, or half of a secret could pass."""
        subject = " ".join(masked(self.task.prompt).split())[:72]
        return f"{self.step}: {subject or 'work of an agent'}\n\nShoal-Session: {self.session}\n"

    @property
    def seconds(self) -> float | None:
        """How long it may take: what was asked for, and never longer than its limit."""
        asked = self.task.timeout if self.task.timeout is not None else self.task.agent.timeout
        bounds = [seconds for seconds in (asked, self.limits.time_seconds) if seconds is not None]
        return min(bounds, default=None)
