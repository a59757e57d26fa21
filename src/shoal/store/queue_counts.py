"""How far the queues of a run are, computed from its events."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoal.model.queue import QueueCount, QueueEvent, TaskQueued
from shoal.model.status import Status
from shoal.store.run_state import RunState, StepState

STOPPED = (Status.CANCELLED, Status.LOST)
"""How a session ends whose task is taken again by a resumed run."""


@dataclass(slots=True)
class QueueFold:
    """A queue during folding: how many tasks it ever had, and which step took each that is taken."""

    total: int = 0
    taken: dict[int, str] = field(default_factory=dict)

    def take(self, event: QueueEvent) -> None:
        """Fold one event."""
        if isinstance(event, TaskQueued):
            self.total += 1
        else:
            self.taken[event.number] = event.step


def count_queues(queues: Mapping[str, QueueFold], run: RunState) -> Iterator[QueueCount]:
    """Count the tasks of each queue by what became of them."""
    last = {step: _list_last(state) for step, state in run.steps.items()} if queues else {}
    for name, queue in queues.items():
        found = [last.get(step, {}).get(number) for number, step in queue.taken.items()]
        statuses = [status for status in found if status is not None]
        done = sum(status.is_good for status in statuses)
        at_work = 0 if run.status.is_ended else sum(status is None or not status.is_ended for status in found)
        failed = sum(status.is_ended and not status.is_good and status not in STOPPED for status in statuses)
        yield QueueCount(name=name, total=queue.total, done=done, failed=failed, at_work=at_work)


def _list_last(step: StepState) -> dict[int, Status]:
    """Return how the last session of each task is."""
    ordered = sorted(step.sessions.values(), key=lambda session: session.seq)
    return {session.index: session.status for session in ordered}
