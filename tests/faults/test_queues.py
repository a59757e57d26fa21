"""Runs with a queue that agents add to, killed around each event of it: every task is there, and done once."""

from collections import Counter
from pathlib import Path

import pytest

from shoal.model.events import SessionEnded
from shoal.model.queue import TaskQueued
from shoal.model.status import Status
from shoal.store.fold import fold
from shoal.store.reader import read_events
from tests.faults.points import Kill
from tests.faults.scene import VARIANTS, make_scene

GROWING = """\
queues: {todo: {tasks: ["1"]}}
steps:
  - name: drain
    agent: work
    from_queue: todo
    concurrency: 2
    talk: {queue: todo}
    prompt: "t={{ task }}; [ $t -ge 4 ] || { shoal-talk add_task task=$((t*2)); shoal-talk add_task task=$((t*2+1)); }"
"""


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("after TaskQueued", 1),
        ("after TaskTaken", 3),
        *(
            pytest.param(name, number, marks=pytest.mark.deep)
            for name, number in (
                ("before TaskQueued", 1),
                ("before TaskTaken", 1),
                ("after TaskTaken", 1),
                ("before TaskQueued", 2),
                ("after TaskQueued", 2),
                ("after TaskQueued", 4),
                ("before StepEnded", 1),
            )
        ),
    ],
)
def test_each_task_is_done_once_wherever_the_run_was_killed(tmp_path: Path, name: str, number: int) -> None:
    scene = make_scene(tmp_path / "scene", GROWING, runtime=VARIANTS["bubblewrap"], merge="")

    killed = scene.start(*scene.words, kill=Kill(name, number))
    code = scene.settle()

    assert killed == -9, scene.said()
    assert code == 0, scene.said()
    events = [recorded.event for recorded in read_events(scene.paths)]
    run = list(fold(read_events(scene.paths)).runs)[-1]
    queued = [event.task.text for event in events if isinstance(event, TaskQueued) and event.run == run]
    assert sorted(queued) == [str(task) for task in range(1, 8)]
    done = Counter(
        event.result.index
        for event in events
        if isinstance(event, SessionEnded) and event.run == run and event.result.status is Status.SUCCEEDED
    )
    assert done == Counter(range(7))
