"""`shoal approve`: a waiting run is answered from another terminal, once, and only while it lives."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.store.requests import user_name
from tests.cli.conftest import SHOAL, Shoal, environment
from tests.conftest import git

# A run that does nothing but ask: every gate at once, and its end is printed.
ASKER = """
import asyncio, json, os, sys
from pathlib import Path
from shoal.store.documents import event_line
from shoal.steps.gate import ask_person, open_request_door
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.model.events import RunEnded, RunStarted, StepEnded, StepStarted
from shoal.model.gate import Gate
from shoal.model.status import Status

async def asked(name, gates):
    ask = RunRequest(folder=Path.cwd(), environ=os.environ, name=name, sandbox="none", strategy="worktree")
    async with open_run(ask) as opened:
        site = opened.context
        site.ledger.subscribe(lambda recorded: print(event_line(recorded), flush=True))
        started = RunStarted(run=site.run, name=name, base="b", wall="none", workspace="worktree", owner=os.getpid())
        steps = [StepStarted(run=site.run, step=step, workers=0, on_failure="fail_fast") for step in gates]
        await site.ledger.append(started, *steps)
        with open_request_door(site) as door:
            async def one(step, message):
                answer = await ask_person(Gate(message=message), door, site, step)
                await site.ledger.append(StepEnded(run=site.run, step=step, status=answer.status))
            async with asyncio.TaskGroup() as group:
                for step, message in gates.items():
                    group.create_task(one(step, message))
        await site.ledger.append(RunEnded(run=site.run, status=Status.SUCCEEDED, duration_seconds=1.0))

asyncio.run(asked(sys.argv[1], json.loads(sys.argv[2])))
"""
Event = dict[str, Any]
PIPELINE = """\
agents:
  writer: {adapter: scripted, script: [{write: {path: plan.txt, content: "plan\\n"}}, {say: "two parts"}]}
  shipper: {adapter: scripted, script: [{write: {path: shipped.txt, content: "shipped\\n"}}]}
pipelines:
  - name: release
    steps:
      - {name: plan, agent: writer, prompt: plan}
      - {name: ship, needs: [plan], gate: "Deploy {{ steps.plan.output }}?"}
      - {name: deploy, needs: [ship], agent: shipper, prompt: deploy}
  - name: hurried
    steps:
      - {name: ship, gate: {message: "Now?", timeout: 1s}}
"""


class Waiting:
    """A process of ours, and the events that it prints."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.process = process
        self._lines = process.stdout

    def until(self, kind: str, **fields: object) -> Event:
        """Read on to an event of that kind, and give it."""
        while True:
            event = self.until_any(kind)
            if fields.items() <= event.items():
                return event

    def until_said(self, word: str) -> None:
        """Read on until an agent has said *word*."""
        while word not in self.until("Output")["text"]:
            pass

    def until_any(self, *kinds: str) -> Event:
        """Read on to an event of one of *kinds*, and give it."""
        for line in self._lines:
            event: Event = json.loads(line)
            if event["event"] in kinds:
                return event
        raise AssertionError(f"none of {kinds} came")


@contextlib.contextmanager
def started(repo: Path, *argv: str | Path) -> Iterator[Waiting]:
    with subprocess.Popen(argv, cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Waiting(process)
        finally:
            process.kill()


@contextlib.contextmanager
def asking(repo: Path, name: str = "demo", **gates: str) -> Iterator[tuple[str, Waiting]]:
    """A run that waits at all of *gates*."""
    with started(repo, sys.executable, "-c", ASKER, name, json.dumps(gates)) as waiting:
        opened = [waiting.until("GateOpened") for _ in gates]
        yield opened[0]["run"], waiting


def test_the_only_gate_of_the_latest_run_is_approved(repo: Path, shoal: Shoal) -> None:
    with asking(repo, ship="Ship it?") as (run, waiting):
        status, document = shoal("status").out, json.loads(shoal("status", "--json").out)
        said = shoal("approve")
        answered = waiting.until("GateAnswered")
        waiting.until("RunEnded")
    again = shoal("approve", run)

    assert (
        f'waiting for approval: ship "Ship it?"\n  shoal approve {run} ship\n  shoal approve {run} ship --reject\n'
        in status
    )
    assert [(one["step"], one["message"]) for one in document["waiting"]] == [("ship", "Ship it?")]
    assert (said.code, said.out, said.err) == (0, f'approved ship of {run}: "Ship it?"\n', "")
    assert (answered["answer"], answered["by"], answered["message"]) == ("approve", user_name(), "")
    assert (again.code, f"{run} has ended (succeeded)" in again.err) == (2, True)
    assert list((repo / ".shoal/requests").iterdir()) == []


def test_a_no_is_said_with_its_reason_and_as_a_document(repo: Path, shoal: Shoal) -> None:
    with asking(repo, ship="Ship it?") as (run, waiting):
        said = shoal("approve", "--reject", "--message", "not on a friday", "--json")
        answered = waiting.until("GateAnswered")

    assert json.loads(said.out) == {
        "run": run,
        "step": "ship",
        "gate": "Ship it?",
        "answer": "reject",
        "message": "not on a friday",
        "by": user_name(),
        "taken": True,
    }
    assert (answered["answer"], answered["message"]) == ("reject", "not on a friday")


def test_one_of_several_gates_has_to_be_named(repo: Path, shoal: Shoal) -> None:
    with asking(repo, east="East?", west="West?") as (run, waiting):
        many = shoal("approve")
        unknown, other = shoal("approve", run, "north"), shoal("approve", "nope")
        first = shoal("approve", "demo", "west")  # by the pipeline's name
        waiting.until("GateAnswered", step="west")
        twice = shoal("approve", run[-4:], "west", "--reject")  # by the end of the run's name
        second = shoal("approve", "east")  # a word alone that is no run
        waiting.until("RunEnded")

    assert (many.code, unknown.code, other.code, twice.code) == (2, 2, 2, 2)
    for said in (many, unknown):
        assert f'`shoal approve {run} west` "West?"' in said.err
        assert f'`shoal approve {run} east` "East?"' in said.err
    assert "2 gates are waiting" in many.err
    assert "no step named 'north' is waiting" in unknown.err
    assert "no run named 'nope'" in other.err
    assert f"west of {run} was already approved by {user_name()}" in twice.err
    assert (first.code, second.code) == (0, 0)


def test_the_latest_run_that_waits_is_meant_not_the_latest(repo: Path, shoal: Shoal) -> None:
    with asking(repo, "first", ship="First?") as (run, waiting):
        assert shoal("run", "--task", "x", "--command", "true").code == 0
        wrong, said = shoal("approve", "adhoc"), shoal("approve")
        waiting.until("RunEnded")

    assert (wrong.code, "has ended (succeeded)" in wrong.err, f"`shoal approve {run} ship`" in wrong.err) == (
        2,
        True,
        True,
    )
    assert said.out.startswith(f"approved ship of {run}")


def test_a_killed_run_takes_one_answer_for_its_resume(repo: Path, shoal: Shoal) -> None:
    with asking(repo, ship="Ship it?") as (run, waiting):
        waiting.process.kill()
        waiting.process.wait()
        said, named = shoal("approve"), shoal("approve", run, "ship")

    assert (said.code, named.code) == (0, 2)
    assert said.out.startswith(f"approved ship of {run}")
    assert f"ship of {run} was already approved" in named.err
    assert list((repo / ".shoal/requests" / run).iterdir()) == []
    assert shoal("run", "--task", "x", "--command", "true").code == 0
    assert list((repo / ".shoal/requests").iterdir()) == [], "the next run has swept it"


def test_where_nothing_waits_that_is_said(repo: Path, shoal: Shoal) -> None:
    said = shoal("approve")

    assert (said.code, said.err) == (2, "shoal: no run is waiting for an answer\n")
    assert not (repo / ".shoal").exists()


def test_what_is_asked_moves_no_cursor(repo: Path, shoal: Shoal) -> None:
    with asking(repo, one="a\n\x1b[2Jb\u202e", two="?") as (_, waiting):
        texts = [shoal("status").out, shoal("approve").err, shoal("approve", "one", "-m", "\x1b]0;x\x07").out]
        answered = waiting.until("GateAnswered")
        told = shoal("approve", "demo", "one").err

    for text in (*texts, told):
        assert text.replace("\n", "").isprintable()
    assert all(r'"a \x1b[2Jb\u202e"' in text for text in texts)
    assert answered["message"] == "\x1b]0;x\x07"


def test_a_message_has_an_end(repo: Path, shoal: Shoal) -> None:
    with asking(repo, ship="Ship it?") as (run, _):
        said = shoal("approve", "--message", "x" * 2001)

        assert (said.code, "at most 2000 are allowed" in said.err) == (2, True)
        assert list((repo / ".shoal/requests" / run).iterdir()) == []


@contextlib.contextmanager
def held_up(waiting: Waiting) -> Iterator[None]:
    """Let the run do nothing for a while."""
    os.kill(waiting.process.pid, signal.SIGSTOP)
    yield
    os.kill(waiting.process.pid, signal.SIGCONT)


def answering(repo: Path, run: str, *words: str) -> "subprocess.Popen[str]":
    """Start the command, and return when its request is there."""
    folder = repo / ".shoal/requests" / run
    before = len(list(folder.glob("[0-9]*")))
    argv: list[str | Path] = [SHOAL, "approve", *words]
    process = subprocess.Popen(argv, cwd=repo, env=environment(), stderr=subprocess.PIPE, text=True)
    while len(list(folder.glob("[0-9]*"))) == before:
        assert process.poll() is None, process.stderr and process.stderr.read()
    return process


def test_a_run_that_is_held_up_finds_the_answer_when_it_goes_on(repo: Path, shoal: Shoal) -> None:
    with asking(repo, ship="Ship it?") as (_, waiting):
        with held_up(waiting):
            said = shoal("approve", "--json")
        answered = waiting.until("GateAnswered")

    assert (said.code, json.loads(said.out)["taken"], answered["answer"]) == (0, False, "approve")


@pytest.mark.deep
def test_of_two_answers_at_once_one_is_taken_and_the_other_is_told(repo: Path) -> None:
    with asking(repo, ship="Ship it?") as (run, waiting):
        with held_up(waiting):
            commands = [answering(repo, run, "--reject"), answering(repo, run)]
        answered = waiting.until("GateAnswered")
        said = [command.communicate(timeout=30)[1] for command in commands]

    assert answered["answer"] == "reject"
    assert [command.returncode for command in commands] == [0, 2]
    assert f"was rejected by {user_name()} before your answer arrived" in said[1]


def test_an_answer_to_a_run_that_is_killed_before_it_takes_it_is_not_said_to_be_given(repo: Path) -> None:
    with asking(repo, ship="Ship it?") as (run, waiting):
        with held_up(waiting):
            command = answering(repo, run)
            waiting.process.kill()
        said = command.communicate(timeout=30)[1]

    assert (command.returncode, "ended before it read your answer" in said) == (2, True)
    assert list((repo / ".shoal/requests" / run).iterdir()) == []


# From here on the gate is a step of a pipeline, run as a person runs it.


@pytest.fixture
def released(repo: Path) -> Path:
    """A repository with a pipeline that waits before it deploys."""
    (repo / "shoal.yaml").write_text(PIPELINE)
    return repo


def test_a_pipeline_waits_for_approval_and_goes_on(released: Path, shoal: Shoal) -> None:
    with started(released, SHOAL, "run", "release", "--events") as running:
        opened = running.until("GateOpened")
        status = shoal("status").out
        said = shoal("approve", opened["run"], "ship", "-m", "go")
        answered, ended = running.until("GateAnswered"), running.until("RunEnded")
        assert running.process.wait(timeout=30) == 0
    report = json.loads(shoal("status", "--json").out)
    deploy = next(one for one in report["steps"] if one["step"] == "deploy")

    assert (opened["step"], opened["message"].split()[0]) == ("ship", "Deploy")
    assert "two parts" in opened["message"], "the plan's own words"
    assert 'waiting for approval: ship "Deploy' in status
    assert (said.code, answered["message"], ended["status"]) == (0, "go", "succeeded")
    branch = deploy["worker_results"][0]["branch"]
    assert git(released, "show", f"{branch}:shipped.txt") == "shipped"
    assert git(released, "show", f"{branch}:plan.txt") == "plan", "the gate hands on what it stood on"
    assert shoal("approve").code == 2


def test_what_needs_a_rejected_gate_is_skipped(released: Path, shoal: Shoal) -> None:
    with started(released, SHOAL, "run", "release", "--events") as running:
        running.until("GateOpened")
        assert shoal("approve", "--reject", "-m", "too early").code == 0
        ended = running.until("RunEnded")
        assert running.process.wait(timeout=30) == 1
    steps = {one["step"]: one["status"] for one in json.loads(shoal("status", "--json").out)["steps"]}

    assert ended["status"] == "degraded"
    assert (steps["plan"], steps["ship"], steps["deploy"]) == ("succeeded", "failed", "skipped")


def test_all_gates_are_approved_by_yes(released: Path, shoal: Shoal) -> None:
    said = shoal("run", "release", "--yes")

    assert said.code == 0
    assert f"ship approved by {user_name()}: --yes" in said.out


def test_a_gate_that_nobody_answers_in_time_is_rejected(released: Path, shoal: Shoal) -> None:
    said = shoal("run", "hurried")

    assert said.code == 1
    assert "ship rejected because the gate timed out" in said.out
    assert "shoal approve hurried-" in said.out, "how to answer was shown while it waited"
