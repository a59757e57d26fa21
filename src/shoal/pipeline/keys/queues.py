"""The key `queues`: tasks that agents take, and may add to."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from shoal.model.queue import MOST_KEY_CHARS, MOST_PRIORITY, MOST_TASK_CHARS, MOST_TASKS, USUAL_TASKS, QueuedTask
from shoal.model.queue import QueueSpec as Queue
from shoal.pipeline.fields import Shape, wrong
from shoal.pipeline.problems import Position, Problem, key, nearest
from shoal.pipeline.tree import Fields, Node, entries, find, items, key_position, text, value_of

FOREIGN = ("strategy", "vary", "select", "loop", "gate", "pipeline", "command", "exec")
"""Keys that make no sense in a step with `from_queue`."""


class QueuedTaskShape(Shape):
    """A task that is in the queue from the start."""

    task: str = Field(max_length=MOST_TASK_CHARS)
    """What is to be done: `{{ task }}` in the step's prompt."""
    key: str = Field(default="", max_length=MOST_KEY_CHARS)
    """What makes it the same as another, which is added once; default: its text."""
    priority: int = Field(default=0, ge=-MOST_PRIORITY, le=MOST_PRIORITY)
    """Tasks with a higher number are taken first."""
    step: str = ""
    """The step that takes it, of several on the same queue; others take it when they have nothing else to do."""

    @property
    def given(self) -> QueuedTask:
        """Build the value."""
        return QueuedTask(text=self.task, key=self.key, priority=self.priority, step=self.step)


def _task(value: object) -> object:
    """Read a text as a task."""
    if isinstance(value, str):
        value = {"task": value}
    if isinstance(value, dict) and isinstance(value.get("task"), str) and not value["task"].strip():
        raise wrong("a task of a queue needs a text")
    return value


SeedTask = Annotated[QueuedTaskShape, BeforeValidator(_task, json_schema_input_type=str | QueuedTaskShape)]


class QueueShape(Shape):
    """A queue of tasks, which steps take with `from_queue`."""

    tasks: list[SeedTask] = Field(default_factory=list, max_length=MOST_TASKS)
    """What is in it from the start: texts, or mappings with a `task`."""
    max_tasks: int = Field(default=USUAL_TASKS, ge=1, le=MOST_TASKS)
    """How many tasks it may ever have, those included that agents add."""

    def to_queue(self, name: str) -> Queue:
        """Build the value."""
        return Queue(name=name, tasks=tuple(task.given for task in self.tasks), most=self.max_tasks)


class QueueProblems:
    """Finds what is wrong with the queues of a document."""

    def __init__(self, tree: Node, name: str) -> None:
        self._tree = tree
        self._name = name
        self._queues = entries(find(tree, "queues"))
        self._drained: dict[str, set[str]] = {}

    def of_step(self, step: Fields) -> Iterator[Problem]:
        """Find what is wrong with a step's queue."""
        node = value_of(step, "from_queue")
        if node is None or (label := text(node)) is None:
            return
        if label not in self._queues:
            yield self._at(node.at, f"no queue named {key(label)}; {nearest(label, self._queues)}")
        for other in FOREIGN:
            if value_of(step, other) is not None:
                what = f"a step with `from_queue` takes its work from there; remove `{other}`"
                yield self._at(key_position(step, [other]), what)
        rule = value_of(step, "on_failure")
        if rule is not None and text(rule) not in ("best_effort", "fail_fast"):
            what = "with `from_queue`, `on_failure` is `best_effort` (the default there) or `fail_fast`"
            yield self._at(rule.at, what)
        title = text(value_of(step, "name")) or text(value_of(step, "id"))
        self._drained.setdefault(label, set()).add(title or "")

    def of_talk(self, owner: Node) -> Iterator[Problem]:
        """Find an unknown queue that an agent may add to."""
        node = find(owner, "talk", "queue")
        if node is not None and (label := text(node)) and label not in self._queues:
            yield self._at(node.at, f"no queue named {key(label)}; {nearest(label, self._queues)}")

    def of_queues(self) -> Iterator[Problem]:
        """Find what is wrong with the queues, once all steps are known."""
        for label, entry in self._queues.items():
            steps = self._drained.get(label, set())
            if not steps:
                yield self._at(entry.at, f"no step takes tasks from the queue {key(label)}; give one `from_queue`")
            yield from self._tasks(entry.value, steps)

    def _tasks(self, queue: Node, steps: set[str]) -> Iterator[Problem]:
        tasks, most = list(items(find(queue, "tasks"))), value_of(queue, "max_tasks")
        limit: Any = getattr(most, "value", USUAL_TASKS)
        if isinstance(limit, int) and len(tasks) > limit:
            at = most.at if most is not None else key_position(queue, ["tasks"])
            yield self._at(at, f"the queue has {len(tasks)} tasks, more than its `max_tasks` ({limit})")
        for task in tasks:
            wanted = value_of(task, "step") if isinstance(task, Fields) else None
            if wanted is not None and steps and (label := text(wanted)) and label not in steps:
                yield self._at(wanted.at, f"no step named {key(label)} takes from this queue; {nearest(label, steps)}")

    def _at(self, at: Position, what: str) -> Problem:
        return Problem(self._name, at, what)
