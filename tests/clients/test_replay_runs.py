"""Real runs, recorded and replayed: without a key and without a model, the same trees; a changed prompt is named."""

import asyncio
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from shoal.testing.replay import replay
from tests.cli import warm
from tests.cli.conftest import SHOAL
from tests.cli.warm import Said
from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE, Scene, workers
from tests.conftest import git
from tests.outside import wait_until

PROMPTS = {
    "a": "Make it. [[s:both file=a.txt]]",
    "b": "Then this. [[s:shell cmd=git%20log%20--oneline%20%3E%20log.txt%3B%20date]]",
}


def say(here: Scene, *words: str, with_key: bool = False) -> Said:
    env = here.environ()
    if not with_key:
        env = {name: value for name, value in env.items() if name not in (*CLAUDE.keys, "ANTHROPIC_BASE_URL")}
    return warm.ran(words, cwd=here.repo, env=env, timeout=90)


def write(here: Scene, prompts: dict[str, str]) -> None:
    here.write([{"name": name, "prompt": text, "needs": ["a"] * (name == "b")} for name, text in prompts.items()])


def test_a_recorded_run_is_replayed_without_key_or_model_and_a_change_is_named(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    write(here, PROMPTS)
    recorded = here.run("--record")
    assert recorded["status"] == "succeeded", recorded
    asked = len(here.model.requests)

    replayed = say(here, "replay", recorded["run"], "--json")

    assert replayed.code == 0, replayed.err + replayed.out
    assert "replayed: the results of 2 agents are the same" in replayed.err
    before, after = workers(recorded), workers(json.loads(replayed.out))
    for name in PROMPTS:
        trees = [git(here.repo, "rev-parse", f"{found[name]['commit']}^{{tree}}") for found in (before, after)]
        assert trees[0] == trees[1]
        assert before[name]["usage"] == after[name]["usage"]
        assert before[name]["output"] == after[name]["output"]
    assert len(here.model.requests) == asked, "no model was asked"
    files = list((here.repo / f".shoal/results/{recorded['run']}.recording").iterdir())
    assert len(files) == 2
    assert all(b"dummy-key" not in file.read_bytes() for file in files)

    write(here, {**PROMPTS, "b": PROMPTS["b"].replace("Then this", "Then that")})
    changed = say(here, "replay", recorded["run"], "--with", "shoal.yaml", "--json")

    assert changed.code == 1
    assert "the replay diverged: b/worker_0/1.1, request" in changed.err
    assert "Then this" in changed.err
    assert "Then that" in changed.err
    found = workers(json.loads(changed.out))
    assert [found[name]["status"] for name in "ab"] == ["succeeded", "failed"]
    assert len(here.model.requests) == asked


def test_a_recording_goes_with_its_run_to_another_clone(scene: MakeScene, tmp_path: Path) -> None:
    here = scene(CLAUDE)
    write(here, {"a": PROMPTS["a"]})
    git(here.repo, "add", "shoal.yaml")
    git(here.repo, "commit", "-qm", "the pipeline")
    recorded = here.run("--record")
    archive = tmp_path / "run.tar.gz"
    assert say(here, "export", recorded["run"], "-o", str(archive)).code == 0
    git(here.repo, "clone", "-q", str(here.repo), str(tmp_path / "clone"))
    there = replace(here, repo=tmp_path / "clone")

    imported = say(there, "import", str(archive))
    replayed = say(there, "replay", "--with", "shoal.yaml")

    assert imported.code == 0, imported.err
    assert replayed.code == 0, replayed.err
    assert "replayed: the results of 1 agent are the same" in replayed.err


@pytest.mark.timeout(240)
def test_a_recorded_run_that_was_killed_and_resumed_is_replayed_as_a_whole(scene: MakeScene, tmp_path: Path) -> None:
    here = scene(CLAUDE)
    (tools := tmp_path / "tools").mkdir()
    cmd = quote(f"echo half > half.txt; [ -e {tools}/go ] || tail -f /dev/null; date")
    write(here, {"a": PROMPTS["a"], "b": f"Then this. [[s:shell cmd={cmd}]]"})
    document = json.loads((here.repo / "shoal.yaml").read_text())
    document["runtime"]["toolchains"] = [str(tools)]
    (here.repo / "shoal.yaml").write_text(json.dumps(document))
    command = [str(SHOAL), "run", "shoal.yaml", "--record"]
    with subprocess.Popen(command, cwd=here.repo, env=here.environ(), stdout=subprocess.DEVNULL) as running:
        try:
            wait_until(
                lambda: any("half.txt" in files for *_, files in os.walk(here.repo / ".shoal/boxes")), seconds=90
            )
        finally:
            running.kill()
    (tools / "go").touch()

    resumed = say(here, "resume", "--json", with_key=True)
    asked = len(here.model.requests)
    replayed = say(here, "replay", "--json")

    report = json.loads(resumed.out)
    assert report["status"] == "succeeded", report
    assert replayed.code == 0, replayed.err
    assert "the results of 2 agents are the same" in replayed.err
    assert len(here.model.requests) == asked


def test_a_run_that_was_not_recorded_is_not_replayed(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    write(here, {"a": "Say it. [[s:text]]"})
    ran = here.run()

    refused = say(here, "replay", ran["run"])

    assert refused.code == 2
    assert "was not recorded; record a run with `shoal run --record`" in refused.err


def test_a_replay_is_a_line_in_a_test_of_the_user(scene: MakeScene) -> None:
    here = scene(CLAUDE)
    write(here, {"a": PROMPTS["a"]})
    here.run("--record")
    env = {name: value for name, value in here.environ().items() if name not in (*CLAUDE.keys, "ANTHROPIC_BASE_URL")}

    same = asyncio.run(replay(here.repo, environ=env))
    write(here, {"a": PROMPTS["a"].replace("Make it", "Build it")})
    other = asyncio.run(replay(here.repo, file=here.repo / "shoal.yaml", environ=env))

    assert same.is_same, same.comparison.lines
    assert not other.is_same
    assert "Make it" in other.comparison.lines[0]
    assert "Build it" in other.comparison.lines[0]
