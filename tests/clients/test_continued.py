"""A client that was killed in the middle of its task goes on in its own conversation, with the files it had left."""

import json
import signal
import subprocess
import time
from typing import Any
from urllib.parse import quote

import pytest

from shoal.sessions.worker import GO_ON
from shoal.steps.prompt import INTERRUPTED
from tests.cli.conftest import SHOAL
from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE, EVERY, Real, Scene, workers
from tests.conftest import git

each = pytest.mark.parametrize("real", EVERY, ids=[client.name for client in EVERY])

# It writes a file, and is cut off while its second tool is at work.
# A client that forgets about that tool is told to use it again, which then ends at once.
WORK = quote("test -e half.txt && exit; echo half > half.txt; echo $$ > pid; tail -f /dev/null")
TASK = f"Dig the well. [[s:both file=well.txt content=deep%0A cmd={WORK} in=100 out=20]]"


def cut_off(here: Scene, with_signal: int = signal.SIGKILL, *, model_seconds: float = 60) -> None:
    """Run the task, and send a signal to the coordinator when the client has used one tool and is using the next."""
    here.write([{"name": "w", "prompt": TASK}])
    with subprocess.Popen(
        [str(SHOAL), "run", "shoal.yaml", "--json"], cwd=here.repo, env=here.environ(), stdout=subprocess.PIPE
    ) as running:
        here.model.wait(2, timeout=model_seconds)
        while not any((here.repo / ".shoal").rglob("pid")):  # the test's own time ends a wait for nothing
            time.sleep(0.05)
        while "I will write it." not in here.logs():
            time.sleep(0.05)
        running.send_signal(with_signal)
        running.communicate(timeout=60)


def resumed(here: Scene, *words: str, seconds: float = 90) -> dict[str, Any]:
    """Resume the run, and give its report."""
    command = [str(SHOAL), "resume", "--json", *words]
    done = subprocess.run(command, cwd=here.repo, env=here.environ(), capture_output=True, text=True, timeout=seconds)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@each
@pytest.mark.parametrize("with_signal", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.deep)])
def test_a_client_that_was_cut_off_goes_on_in_its_conversation(scene: MakeScene, real: Real, with_signal: int) -> None:
    here = scene(real)
    cut_off(here, with_signal)
    asked = len(here.model.requests)
    before = here.model.usage

    report = resumed(here)

    worker = workers(report)["w"]
    assert worker["status"] == "succeeded", worker
    seen = here.model.requests[asked].conversation.messages
    texts = {role: [message.text for message in seen if message.role == role] for role in ("user", "assistant")}
    assert any("Dig the well." in text for text in texts["user"]), seen
    assert any("I will write it." in text for text in texts["assistant"]), seen
    assert GO_ON in texts["user"][-1]
    assert git(here.repo, "show", f"{worker['branch']}:well.txt") == "deep"
    assert git(here.repo, "show", f"{worker['branch']}:half.txt") == "half"
    assert any(note.startswith("continued its own conversation") for note in worker["notes"]), worker["notes"]
    spent = report["usage"]
    if real is CLAUDE:  # the others tell what they spent only at the end of a turn
        assert (spent["input_tokens"], spent["output_tokens"]) == (here.model.usage.input, here.model.usage.output)
    assert before.input <= spent["input_tokens"] <= here.model.usage.input
    assert not list((here.repo / ".shoal" / "conversations").glob("*"))
    assert here.left() == []


def test_without_its_conversation_a_client_begins_a_new_one_with_its_files(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    cut_off(here)
    asked = len(here.model.requests)
    cleaned = subprocess.run([str(SHOAL), "clean"], cwd=here.repo, env=here.environ(), capture_output=True, text=True)

    worker = workers(resumed(here))["w"]

    assert "  conversation " in cleaned.stdout, cleaned.stdout
    first = here.model.requests[asked].conversation
    assert "Dig the well." in first.user
    assert INTERRUPTED in first.user
    assert first.position == 0
    assert worker["status"] == "succeeded", worker
    assert git(here.repo, "show", f"{worker['branch']}:half.txt") == "half"
    assert worker["notes"] == [
        "started a new conversation, because the earlier one could not be continued: it no longer exists"
    ]


def test_a_conversation_that_the_client_does_not_know_is_begun_anew(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    cut_off(here, signal.SIGINT)
    for file in (here.repo / ".shoal" / "conversations").rglob("*.jsonl"):
        file.rename(file.with_name("00000000-0000-0000-0000-000000000000.jsonl"))

    worker = workers(resumed(here))["w"]

    assert worker["status"] == "succeeded", worker
    assert worker["notes"][0].startswith("started a new conversation, because the earlier one could not be continued: ")
    assert "No conversation found" in worker["notes"][0]


def test_fresh_starts_without_conversation_and_files(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    cut_off(here)
    asked = len(here.model.requests)
    with subprocess.Popen(
        [str(SHOAL), "resume", "--fresh"], cwd=here.repo, env=here.environ(), stdout=subprocess.DEVNULL
    ) as running:
        first = here.model.wait(asked + 1, timeout=60)[asked]
        while not any((here.repo / ".shoal").rglob("pid")):  # it does its task from the start, and waits there again
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)

    asked_for = "".join(message.text for message in first.conversation.messages)
    assert "Dig the well." in asked_for
    assert "interrupted" not in asked_for
