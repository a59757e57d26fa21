"""A killed or stopped run is resumed: finished work is kept, and only the rest starts again."""

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from shoal.adapters.client import this_host
from tests.cli.conftest import SHOAL, Shoal, environment
from tests.cli.resuming import Scene, statuses
from tests.conftest import git
from tests.sessions.test_acp import PROGRAM as ACP_AGENT

EVERY_SHAPE = """\
steps:
  - {name: plan, agent: work, prompt: "true"}
  - {name: many, agent: work, needs: [plan], prompt: "true", concurrency: 3, on_failure: best_effort}
  - {name: again, agent: work, needs: [plan], prompt: "[ $(grep -c again $OUTSIDE/starts) -ge 2 ]", retry: {max_attempts: 3}}
  - {name: cells, agent: work, needs: [plan], prompt: "true", strategy: {matrix: {k: [a, b]}}}
  - {name: rounds, agent: work, needs: [plan], prompt: "true", loop: {until: "loop.round == 2", max: 3}}
  - {name: best, agent: work, needs: [plan], prompt: "true", concurrency: 2, select: {by: diff_size}}
  - {name: last, agent: work, needs: [again, cells, rounds, best], prompt: "true"}
"""
SESSIONS = Counter(
    [
        "plan-0",
        "many-0",
        "many-1",
        "many-2",
        "again-0",
        "again-0",
        "cells-0",
        "cells-1",
        "rounds-0",
        "rounds-0",
        "best-0",
        "best-1",
        "last-0",
    ]
)


@pytest.fixture
def scene(repo: Path, shoal: Shoal, tmp_path: Path) -> Scene:
    return Scene(repo, tmp_path / "outside", shoal)


@pytest.mark.parametrize("blocked", ["plan-0", "many-1", "cells-1", "rounds-0", "best-1", "last-0"])
def test_a_killed_run_ends_as_if_nothing_had_happened(scene: Scene, blocked: str) -> None:
    scene.write(EVERY_SHAPE)
    scene.block(blocked)
    scene.interrupt(f"blocked {blocked}")
    ran_at_kill = scene.starts()
    (scene.repo / "p.yaml").unlink()
    scene.unblock()

    code, report = scene.report("resume")

    assert (code, report["status"]) == (0, "succeeded")
    assert set(statuses(report).values()) == {"succeeded"}
    again = scene.starts() - SESSIONS
    assert again[blocked] >= 1
    assert sum(again.values()) <= 3  # no more than were running at the kill
    assert ran_at_kill - SESSIONS == Counter()
    assert git(scene.repo, "show", f"{report['steps'][-1]['worker_results'][0]['branch']}:plan-0.txt")
    assert scene.shoal("resume").code == 0


def test_an_interrupted_agent_continues_with_its_files_unless_told_otherwise(scene: Scene) -> None:
    steps = 'steps:\n  - {name: only, agent: work, prompt: "ls > seen.txt"}\n'
    for words, lines in (((), 2), (("--fresh",), 1)):
        scene.write(steps)
        scene.block("only-0")
        scene.interrupt("blocked only-0")
        scene.unblock()

        code, report = scene.report("resume", *words)

        worker = report["steps"][0]["worker_results"][0]
        assert code == 0
        assert git(scene.repo, "show", f"{worker['branch']}:only-0.txt").split() == ["x"] * lines
        assert worker["files_changed"] == 2


def test_a_run_that_was_stopped_is_resumed_and_one_that_lives_is_not(scene: Scene) -> None:
    scene.write('steps:\n  - {name: a, agent: work, prompt: "true"}\n  - {name: b, agent: work, prompt: "true"}\n')
    scene.block("b-0")
    with subprocess.Popen(
        [SHOAL, "run", "p.yaml", "--events"], cwd=scene.repo, env=environment(), stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if "blocked b-0" in line)
        alive = scene.shoal("resume")
        running.send_signal(signal.SIGINT)
        running.stdout.read()
    scene.unblock()

    code, report = scene.report("resume")

    assert alive.code == 2
    assert f"is still running (process {running.pid} on " in alive.err
    assert (running.returncode, code) == (130, 0)
    assert statuses(report) == {"a": "succeeded", "b": "succeeded"}
    assert scene.starts()["a-0"] == 1


FAILING = """\
steps:
  - {name: good, agent: work, prompt: "true"}
  - {name: bad, agent: work, prompt: "[ -e $OUTSIDE/mended ]"}
  - {name: after, agent: work, needs: [bad], prompt: "true"}
"""


def test_retry_starts_failed_agents_and_their_dependants_again(scene: Scene) -> None:
    scene.write(FAILING)
    code, report = scene.report("run", "p.yaml")
    assert (code, statuses(report)) == (1, {"good": "succeeded", "bad": "failed", "after": "skipped"})
    (scene.outside / "mended").touch()

    assert scene.shoal("resume").code == 1
    code, report = scene.report("retry")

    assert (code, set(statuses(report).values())) == (0, {"succeeded"})
    assert scene.starts() == Counter({"good-0": 1, "bad-0": 2, "after-0": 1})
    nothing = scene.shoal("retry")
    assert (nothing.code, "has failed" in nothing.err) == (2, True)


def test_retry_from_a_step_does_it_and_what_depends_on_it_again(scene: Scene) -> None:
    scene.write(FAILING.replace("[ -e $OUTSIDE/mended ]", "true"))
    assert scene.report("run", "p.yaml")[0] == 0

    code, _ = scene.report("retry", "--from", "bad")
    unknown = scene.shoal("retry", "--from", "nope")

    assert code == 0
    assert scene.starts() == Counter({"good-0": 1, "bad-0": 2, "after-0": 2})
    assert (unknown.code, "its steps: after, bad, good" in unknown.err) == (2, True)


def test_a_changed_file_may_change_what_has_not_finished_and_nothing_else(scene: Scene) -> None:
    steps = (
        'steps:\n  - {name: a, agent: work, prompt: "true"}\n  - {name: b, agent: work, needs: [a], prompt: "true"}\n'
    )
    scene.write(steps)
    scene.block("b-0")
    scene.interrupt("blocked b-0")
    scene.unblock()

    scene.write(steps.replace('name: a, agent: work, prompt: "true"', 'name: a, agent: work, prompt: "false"'))
    refused = scene.shoal("resume", "--with", "p.yaml")
    scene.write(steps.replace('needs: [a], prompt: "true"', 'needs: [a], prompt: "echo new > new.txt"'))
    code, report = scene.report("resume", "--with", "p.yaml")

    assert (refused.code, "step 'a' has finished work" in refused.err) == (2, True)
    assert code == 0
    assert git(scene.repo, "show", f"{report['steps'][1]['worker_results'][0]['branch']}:new.txt") == "new"


def test_a_gate_stays_answered_and_an_open_one_is_asked_again(scene: Scene) -> None:
    scene.write(
        "steps:\n  - {name: ask, gate: {message: 'go on?'}}\n"
        '  - {name: work, agent: work, needs: [ask], prompt: "true"}\n'
        "  - {name: last, gate: {message: 'ship?'}, needs: [work]}\n"
    )
    with subprocess.Popen(
        [SHOAL, "run", "p.yaml", "--events"], cwd=scene.repo, env=environment(), stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if "GateOpened" in line)
        assert scene.shoal("approve").code == 0
        next(line for line in running.stdout if "GateOpened" in line)
        running.kill()
        running.stdout.read()

    code, report = scene.report("resume", "--yes")

    assert (code, set(statuses(report).values())) == (0, {"succeeded"})
    assert scene.starts() == Counter({"work-0": 1})


def test_a_secret_comes_from_the_host_again(scene: Scene) -> None:
    scene.write('steps:\n  - {name: s, agent: work, prompt: "test $KEY = v2", env: {KEY: {from: MY_KEY}}}\n')
    scene.block("s-0")
    command = [str(SHOAL), "run", "p.yaml", "--events"]
    with subprocess.Popen(
        command, cwd=scene.repo, env=environment(MY_KEY="v1-secret"), stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if "blocked s-0" in line)
        running.kill()
        running.stdout.read()
    scene.unblock()

    without = scene.shoal("resume")
    again = scene.shoal("resume", MY_KEY="v2")

    assert (without.code, "MY_KEY" in without.err) == (2, True)
    assert again.code == 0
    assert b"v1-secret" not in (scene.repo / ".shoal" / "ledger.db").read_bytes()


@pytest.mark.parametrize(
    ("scenario", "said", "note"),
    [
        ("resumable", "loaded 'do it', asked 'interrupted'", "continued its own conversation s-1"),
        ("unloadable", "This task was interrupted", "could not be continued: it cannot load a session"),
    ],
)
def test_an_acp_agent_loads_its_session_where_it_can(scene: Scene, scenario: str, said: str, note: str) -> None:
    command = [str(this_host().python), "-c", ACP_AGENT, scenario]
    agent = {"adapter": "acp", "command": command, "network": "none"}
    document = {"agents": {"tiny": agent}, "steps": [{"name": "talk", "agent": "tiny", "prompt": "do it"}]}
    (scene.repo / "p.yaml").write_text(json.dumps(document))
    scene.interrupt("got do it")

    code, report = scene.report("resume")

    worker = report["steps"][0]["worker_results"][0]
    assert (code, worker["status"]) == (0, "succeeded"), worker
    assert said in worker["output"]
    assert "said before" not in worker["output"]  # what the agent repeats of the conversation is no output
    assert worker["notes"][0].endswith(note)
    assert git(scene.repo, "show", f"{worker['branch']}:half.txt") == "half"


GATE = """\
steps:
  - {name: ask, gate: {message: 'go on?'}}
  - {name: work, agent: work, needs: [ask], prompt: "true"}
"""


@pytest.mark.parametrize("is_recovered", [False, True])
@pytest.mark.parametrize(("words", "status"), [((), "succeeded"), (("--reject",), "failed")])
def test_a_gate_is_answered_while_nobody_is_there(
    scene: Scene, words: tuple[str, ...], status: str, *, is_recovered: bool
) -> None:
    scene.write(GATE)
    scene.interrupt("GateOpened")
    if is_recovered:
        assert scene.shoal("clean").code == 0

    answered = scene.shoal("approve", *words)
    twice = scene.shoal("approve")
    _, report = scene.report("resume")

    assert answered.code == 0, answered.err
    assert twice.code == 2
    assert statuses(report)["ask"] == status


@pytest.mark.parametrize("words", [("resume",), ("retry", "--from", "last")])
def test_it_continues_in_the_background_where_that_is_asked(scene: Scene, shoal: Shoal, words: tuple[str, ...]) -> None:
    scene.write(
        "steps: [{name: first, agent: work, prompt: 'true'}, {name: last, agent: work, needs: [first], prompt: 'true'}]"
    )
    scene.block("last-0")
    scene.interrupt("blocked last-0")
    scene.unblock()
    started, known = scene.report(*words, "--detach")
    waited = shoal("wait", known["run"])
    nothing = shoal("resume", "--detach", "--json")

    assert (started, waited.code) == (0, 0)
    assert Path(known["output"]).read_text() != ""
    assert scene.starts() == Counter({"first-0": 1, "last-0": 2})
    assert (nothing.code, "nothing was interrupted" in nothing.err) == (0, True)
