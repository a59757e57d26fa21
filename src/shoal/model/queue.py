"""Queues of tasks: what a file starts them with, and the events of what agents add and take."""

import hashlib
from dataclasses import dataclass

MOST_TASKS = 10_000
USUAL_TASKS = 500
MOST_TASK_CHARS = 16_000
MOST_KEY_CHARS = 200
MOST_PRIORITY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTask:
    """A task for a queue: who comes first is decided by the priority, then by the order of arrival."""

    text: str
    key: str = ""
    """What makes it the same as another; empty for its text."""
    priority: int = 0
    step: str = ""
    """The step that takes it if it can; others take it when they have nothing else."""

    @property
    def identity(self) -> str:
        """Return what no two tasks of a queue share."""
        words = f"key {self.key}" if self.key else f"text {' '.join(self.text.split())}"
        return hashlib.sha256(words.encode(errors="replace")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A queue as a file describes it."""

    name: str
    tasks: tuple[QueuedTask, ...] = ()
    most: int = USUAL_TASKS
    """How many tasks it may ever have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueued:
    """A task was added to a queue; *number* is its place in the order of arrival, and its worker's index."""

    run: str
    queue: str
    number: int
    task: QueuedTask
    by: str = ""
    """The agent that added it; empty for a task of the file."""
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTaken:
    """A step takes a task of a queue: from now on, no other step does."""

    run: str
    queue: str
    number: int
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCount:
    """How far a queue is."""

    name: str
    total: int
    done: int
    failed: int
    at_work: int

    @property
    def waiting(self) -> int:
        """Return how many tasks nobody has begun."""
        return max(0, self.total - self.done - self.failed - self.at_work)

    def as_fields(self) -> dict[str, object]:
        """Return it for a document."""
        ended = {"total": self.total, "done": self.done, "failed": self.failed}
        return {"queue": self.name, **ended, "at_work": self.at_work, "waiting": self.waiting}


QueueEvent = TaskQueued | TaskTaken
