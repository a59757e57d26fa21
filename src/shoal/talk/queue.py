"""The tools with which agents add tasks to a queue of their run."""

from collections.abc import Sequence
from typing import Annotated

from shoal.model.queue import MOST_KEY_CHARS, MOST_PRIORITY, MOST_TASK_CHARS, QueuedTask
from shoal.talk.kind import AddedTask, CallRefused
from shoal.talk.quote import escape
from shoal.talk.tool import Caller

Text = Annotated[str, f"What is to be done, at most {MOST_TASK_CHARS} characters; another agent gets nothing else."]
Priority = Annotated[int, "Tasks with a higher number are taken first."]


async def add_task(
    caller: Caller,
    task: Text,
    key: Annotated[str, "A name for the task: with that of an earlier one, it is not added again."] = "",
    priority: Priority = 0,
    step: Annotated[str, "The step that should take it, if several take tasks from the queue."] = "",
) -> str:
    """Add a task to the queue of this run. Another agent works on it, in a workspace of its own."""
    (added,) = await _add(caller, [_make(caller, task, key, priority, step)])
    queue = caller.peer.grant.queue
    if not added.is_new:
        return f"this is task {added.number} of {queue} already; it was not added again"
    return f"added as task {added.number} of {queue}"


async def add_tasks(
    caller: Caller,
    tasks: Annotated[list[str], "What is to be done, each for an agent of its own; at most 100."],
    priority: Priority = 0,
) -> str:
    """Add several tasks to the queue of this run."""
    added = await _add(caller, [_make(caller, task, "", priority, "") for task in tasks])
    new = [str(task.number) for task in added if task.is_new]
    return f"added {len(new)} of {len(added)} tasks to {caller.peer.grant.queue}: {', '.join(new) or 'all were there'}"


async def _add(caller: Caller, tasks: Sequence[QueuedTask]) -> Sequence[AddedTask]:
    if caller.hub.queues is None:
        raise CallRefused("this run has no queues")
    if not tasks:
        raise CallRefused("there is no task in the call")
    peer = caller.peer
    return await caller.hub.queues.add(peer.grant.queue, tasks, peer.name, peer.session)


def _make(caller: Caller, text: str, key: str, priority: int, step: str) -> QueuedTask:
    if not text.strip():
        raise CallRefused("a task needs a text")
    for name, given, most in (("task", text, MOST_TASK_CHARS), ("key", key, MOST_KEY_CHARS), ("step", step, 48)):
        if len(given) > most:
            raise CallRefused(f"`{name}` may have {most} characters, and this has {len(given)}")
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise CallRefused(f"`priority` is a number from -{MOST_PRIORITY} to {MOST_PRIORITY}")
    mask = caller.hub.mask
    return QueuedTask(
        text=escape(mask.text(text)), key=escape(mask.text(key)), priority=priority, step=escape(mask.text(step))
    )
