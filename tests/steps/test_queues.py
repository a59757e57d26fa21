"""Queues of tasks: each is done once, whoever adds it and whenever the run is killed, and a dry queue ends its step."""

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shoal.pipeline.load import load
from shoal.pipeline.problems import BadDocument
from tests.cli.conftest import SHOAL, environment
from tests.conftest import git

GROW = (
    "read n; echo $n > done-$n.txt; for x in $((n*2)) $((n*2+1)); do "
    "[ $x -gt {most} ] || shoal-talk add_task task=$x key=n$x; done; :"
)


def write(repo: Path, **document: object) -> None:
    (repo / "shoal.yaml").write_text(json.dumps(document))


def grow(repo: Path, most: int, workers: int) -> None:
    """Write a document whose queue grows from 1 task to *most*, by its own agents."""
    write(
        repo,
        runtime={"max_concurrent_workers": workers},
        queues={"todo": {"tasks": [{"task": "1", "key": "n1"}], "max_tasks": most}},
        agents={"w": {"adapter": "command", "command": ["sh", "-c", GROW.format(most=most)]}},
        steps=[
            {"name": "drain", "from_queue": "todo", "concurrency": workers, "agent": "w", "talk": {"queue": "todo"}}
        ],
    )


def finish(repo: Path, *words: str, seconds: float = 100) -> dict[str, Any]:
    """Run to the end, and give the report."""
    done = subprocess.run(
        [str(SHOAL), *words, "--json"], cwd=repo, env=environment(), capture_output=True, text=True, timeout=seconds
    )
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def say(repo: Path, *words: str) -> str:
    """Run a command, and return what it prints."""
    return subprocess.run(
        [str(SHOAL), *words], cwd=repo, env=environment(), capture_output=True, text=True, timeout=100
    ).stdout


def kill_after(repo: Path, ended: int) -> None:
    """Start the run, and kill it with `kill -9` once so many sessions have ended."""
    command = [str(SHOAL), "run", "--events"]
    with subprocess.Popen(
        command, cwd=repo, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            ended -= json.loads(line)["event"] == "SessionEnded"
            if ended <= 0:
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.read()


def assert_all_done(repo: Path, report: dict[str, Any], most: int) -> None:
    (step,) = report["steps"]
    results = step["worker_results"]
    assert report["status"] == "succeeded", (step["status"], Counter(result["status"] for result in results))
    assert report["queues"] == [{"queue": "todo", "total": most, "done": most, "failed": 0, "at_work": 0, "waiting": 0}]
    assert sorted(int(result["prompt"]) for result in results) == list(range(1, most + 1))
    for result in results:
        assert (
            git(repo, "diff", "--name-only", report["base"], result["branch"]) == f"done-{result['prompt'].strip()}.txt"
        )


def test_a_queue_grows_by_its_own_agents_and_ends_by_itself(repo: Path) -> None:
    grow(repo, most=12, workers=4)

    assert_all_done(repo, finish(repo, "run"), 12)


def test_a_killed_run_continues_with_each_task_done_once(repo: Path) -> None:
    grow(repo, most=15, workers=4)
    kill_after(repo, ended=4)

    report = finish(repo, "resume")

    assert_all_done(repo, report, 15)
    started = Counter(
        event["index"]
        for event in map(json.loads, events(repo))
        if event["event"] == "SessionEnded" and event["result"]["status"] == "succeeded"
        for event in [event["result"]]
    )
    assert set(started.values()) == {1}


def events(repo: Path) -> list[str]:
    """Read all events of the latest run."""
    return say(repo, "attach", "--events").splitlines()


@pytest.mark.deep
@pytest.mark.timeout(1500)
def test_a_queue_grows_to_five_hundred_tasks_and_is_killed_on_the_way(repo: Path) -> None:
    grow(repo, most=500, workers=8)
    kill_after(repo, ended=120)

    report = finish(repo, "resume", seconds=1200)

    assert_all_done(repo, report, 500)


def test_a_failed_task_does_not_stop_the_others_unless_asked(repo: Path) -> None:
    work = {"adapter": "command", "command": ["sh", "-c", "read n; [ $n != bad ]"]}
    step = {"name": "drain", "from_queue": "todo", "agent": "w"}
    write(repo, queues={"todo": {"tasks": ["bad", "a", "b"]}}, agents={"w": work}, steps=[step])
    best = finish(repo, "run")
    write(
        repo,
        queues={"todo": {"tasks": ["bad", "a", "b"]}},
        agents={"w": work},
        steps=[step | {"on_failure": "fail_fast"}],
    )
    fast = finish(repo, "run")

    assert best["steps"][0]["status"] == "degraded"
    assert best["queues"] == [{"queue": "todo", "total": 3, "done": 2, "failed": 1, "at_work": 0, "waiting": 0}]
    assert fast["steps"][0]["status"] == "failed"
    assert fast["queues"] == [{"queue": "todo", "total": 3, "done": 0, "failed": 1, "at_work": 0, "waiting": 2}]


def test_steps_share_a_queue_and_take_what_another_does_not_get_to(repo: Path) -> None:
    work = {"adapter": "command", "command": ["sh", "-c", "read n; echo $n > $n.txt"]}
    slow = {"adapter": "command", "command": ["sh", "-c", "read n; sleep 1; echo $n > $n.txt"]}
    tasks = [{"task": f"t{number}", "step": "slow"} for number in range(6)] + [{"task": "own", "step": "fast"}]
    write(
        repo,
        queues={"todo": {"tasks": tasks}},
        agents={"fast": work, "slow": slow},
        steps=[
            {"name": "fast", "from_queue": "todo", "agent": "fast"},
            {"name": "slow", "from_queue": "todo", "agent": "slow"},
        ],
    )

    report = finish(repo, "run")

    by = {step["step"]: [result["prompt"].strip() for result in step["worker_results"]] for step in report["steps"]}
    assert report["status"] == "succeeded"
    assert sorted(by["fast"] + by["slow"]) == ["own", *(f"t{number}" for number in range(6))]
    assert "own" in by["fast"]
    assert len(by["fast"]) > 1, "it took tasks of the slow step"


def test_priorities_decide_and_the_same_task_is_done_once(repo: Path) -> None:
    tasks = ["low", {"task": "high", "priority": 5}, "low  ", {"task": "x", "key": "k"}, {"task": "y", "key": "k"}]
    write(
        repo,
        queues={"todo": {"tasks": tasks}},
        agents={"w": {"adapter": "command", "command": ["cat"]}},
        steps=[{"name": "drain", "from_queue": "todo", "agent": "w", "prompt": "Do this: {{ task }}"}],
    )

    report = finish(repo, "run")

    outputs = [result["output"].strip() for result in report["steps"][0]["worker_results"]]
    starts = [event["prompt"].strip() for event in map(json.loads, events(repo)) if event["event"] == "SessionStarted"]
    assert sorted(outputs) == ["Do this: high", "Do this: low", "Do this: x"]
    assert starts[0] == "Do this: high"


def test_the_text_of_a_task_is_no_template_and_no_yaml(repo: Path) -> None:
    text = "{{ run.id }} {% for x in y %}\n- name: evil\n\"' $(touch evil) \x1b[31m"
    say = r"printf 'again \173\173 run.id }} \173%% for x in y %%}\033[31m $(touch evil)'"
    write(
        repo,
        queues={"todo": {"tasks": [text]}},
        agents={
            "plan": {"adapter": "command", "command": ["sh", "-c", f'shoal-talk add_task "task=$({say})"']},
            "w": {"adapter": "command", "command": ["cat"]},
        },
        steps=[
            {"name": "plan", "agent": "plan", "prompt": "add one", "talk": {"queue": "todo"}},
            {"name": "drain", "needs": ["plan"], "from_queue": "todo", "agent": "w"},
        ],
    )

    report = finish(repo, "run")

    added, seeded = sorted(result["output"].strip() for result in report["steps"][1]["worker_results"])
    assert "{{ run.id }} {% for x in y %}" in added
    assert "\x1b" not in added, "what an agent adds is escaped"
    assert seeded.startswith("{{ run.id }}")
    assert "$(touch evil)" in seeded


def test_floods_are_bounded_and_a_closed_queue_takes_nothing(repo: Path) -> None:
    flood = (
        "for n in $(seq 30); do shoal-talk add_task task=t$n; done;"
        ' shoal-talk add_task task="$(head -c 20000 /dev/zero | tr \'\\0\' x)"; shoal-talk add_task task=" "; :'
    )
    write(
        repo,
        queues={"todo": {"tasks": ["first"], "max_tasks": 10}},
        agents={
            "flood": {"adapter": "command", "command": ["sh", "-c", f"({flood}) 2>&1"]},
            "w": {"adapter": "command", "command": ["cat"]},
        },
        steps=[
            {"name": "plan", "agent": "flood", "prompt": "x", "talk": {"queue": "todo"}},
            {"name": "drain", "needs": ["plan"], "from_queue": "todo", "agent": "w", "concurrency": 4},
            {
                "name": "late",
                "needs": ["drain"],
                "base": "run",
                "agent": "flood",
                "prompt": "x",
                "talk": {"queue": "todo"},
            },
        ],
    )

    report = finish(repo, "run")

    plan, drain, late = report["steps"]
    said = plan["worker_results"][0]["output"]
    assert "the queue todo may have 10 tasks" in said
    assert "may have 16000 characters" in said
    assert "a task needs a text" in said
    assert drain["total_workers"] == 10, "the tasks of the file are always there"
    assert "the queue todo is closed" in late["worker_results"][0]["output"]
    assert "-- refused add_task" in say(repo, "logs", plan["worker_results"][0]["session"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": [{"name": "d", "from_queue": "tudo", "agent": "w"}]}, "no queue named `tudo`; did you mean `todo`?"),
        ({"queues": {"todo": {"tasks": [" "]}}}, "a task of a queue needs a text"),
        (
            {"queues": {"todo": {"tasks": ["a", "b"], "max_tasks": 1}}},
            "the queue has 2 tasks, more than its `max_tasks`",
        ),
        ({"queues": {"todo": {"task": ["a"]}}}, "did you mean `tasks`?"),
        ({"queues": {"todo": {"tasks": [{"task": "a", "step": "e"}]}}}, "no step named `e` takes from this queue"),
        ({"queues": {"todo": {}, "more": {}}}, "no step takes tasks from the queue `more`"),
        (
            {"steps": [{"name": "d", "from_queue": "todo", "agent": "w", "on_failure": "any"}]},
            "`on_failure` is `best_effort`",
        ),
        (
            {"steps": [{"name": "d", "from_queue": "todo", "agent": "w", "loop": {"until": "true"}}]},
            "takes its work from there; remove `loop`",
        ),
        (
            {"steps": [{"name": "d", "from_queue": "todo", "agent": "w", "talk": {"queue": "x"}}]},
            "no queue named `x`",
        ),
    ],
)
def test_mistakes_are_reported_with_their_place(repo: Path, change: dict[str, Any], words: str) -> None:
    document = {
        "queues": {"todo": {"tasks": ["a"]}},
        "agents": {"w": {"adapter": "command", "command": ["cat"]}},
        "steps": [{"name": "d", "from_queue": "todo", "agent": "w"}],
    }
    write(repo, **(document | change))

    with pytest.raises(BadDocument) as refused:
        load(repo / "shoal.yaml")

    assert words in str(refused.value)
    assert "shoal.yaml:1:" in str(refused.value)


def test_the_plan_and_the_status_show_the_queue(repo: Path) -> None:
    grow(repo, most=3, workers=2)

    planned, _, status = (say(repo, *words) for words in (("run", "--dry-run"), ("run",), ("status",)))

    assert "takes tasks from the queue todo, 2 tasks at a time" in planned
    assert "queue todo: 3 tasks: 3 done, 0 at work, 0 waiting" in status
