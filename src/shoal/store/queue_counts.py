"""How far the queues of a run are, computed from its events."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoal.model.queue import QueueCount, QueueEvent, TaskQueued
from shoal.store.run_state import RunState, StepState


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
    ended = {step: set(_list_ended(state)) for step, state in run.steps.items()} if queues else {}
    for name, queue in queues.items():
        done = sum(number in ended.get(step, ()) for number, step in queue.taken.items())
        at_work = 0 if run.status.is_ended else len(queue.taken) - done
        yield QueueCount(name=name, total=queue.total, done=done, at_work=at_work)


def _list_ended(step: StepState) -> Iterator[int]:
    return (session.index for session in step.sessions.values() if session.result is not None)
