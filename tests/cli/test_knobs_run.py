"""Settings of a step reach its agents: temperature, sub-agents, and size limits of their work."""

import json
from pathlib import Path

from shoal.adapters.aider import Aider
from shoal.adapters.client import this_host
from shoal.adapters.goose import Goose
from shoal.adapters.kind import NOWHERE
from shoal.adapters.opencode import Opencode
from shoal.adapters.registry import adapter
from shoal.model.agent import CLIENTS, WITH_TEMPERATURE, AgentSpec
from shoal.model.plan import Variation
from shoal.model.resolved_task import ResolvedTask
from shoal.steps.workers import apply_variation
from tests.cli.conftest import Shoal
from tests.cli.flows import ran
from tests.conftest import git


def test_a_temperature_is_refused_at_its_place_where_a_client_takes_none(repo: Path, shoal: Shoal) -> None:
    (repo / "list.yaml").write_text(
        "steps:\n  - {name: a, agent: claude, prompt: x, concurrency: 2, vary: [{prompt: y}, {temperature: 0.5}]}\n"
    )
    (repo / "map.yaml").write_text(
        "agents: {w: {adapter: codex}}\nsteps:\n"
        "  - {name: a, agent: w, prompt: x, concurrency: 2, vary: {temperature: [0, 0.5], model: [a, b]}}\n"
    )

    listed, mapped = shoal("validate", "list.yaml"), shoal("run", "map.yaml", "--dry-run")

    assert (listed.code, mapped.code) == (2, 2)
    assert "list.yaml:2:91: Shoal has no way to give claude a temperature" in listed.out + listed.err
    assert "map.yaml:3:72: Shoal has no way to give codex a temperature" in mapped.err


def test_a_temperature_reaches_every_client_that_takes_one() -> None:
    kinds = {name: adapter(name, this_host()).client for name in CLIENTS}
    warm = Variation(temperature=0.5)
    goose, opencode, aider = (
        ResolvedTask(name="a", prompt="x", agent=AgentSpec(name=name, adapter=name)) for name in WITH_TEMPERATURE
    )

    given = Goose().invocation(apply_variation(goose, warm), NOWHERE)
    config = json.loads(Opencode().invocation(apply_variation(opencode, warm), NOWHERE).env["OPENCODE_CONFIG_CONTENT"])
    started = Aider().invocation(apply_variation(aider, warm), NOWHERE)

    assert tuple(name for name, client in kinds.items() if client and "temperature" in client.knows) == WITH_TEMPERATURE
    assert given.env["GOOSE_TEMPERATURE"] == "0.5"
    assert "GOOSE_TEMPERATURE" not in Goose().invocation(goose, NOWHERE).env
    assert config["agent"] == {"build": {"temperature": 0.5}}
    assert json.loads(started.home[".aider.temperature.yml"])[0]["extra_params"] == {"temperature": 0.5}
    assert "--model-settings-file" in started.argv
    assert "--model-settings-file" not in Aider().invocation(aider, NOWHERE).argv


def test_agents_and_adapters_know_how_many_sub_agents_they_may_have(repo: Path) -> None:
    steps = "\n".join(
        f'  - {{name: {name}, agent: do, prompt: "echo $SHOAL_MAX_CONCURRENT_AGENTS > n", max_concurrent_agents: {count}}}'
        for name, count in {"a": 1, "b": 3, "c": 50, "d": -2}.items()
    )

    done = ran(repo, f"steps:\n{steps}\n")

    assert [done.shown(name, "n") for name in "abcd"] == ["1", "3", "10", "1"]


def test_a_file_that_is_too_large_for_a_branch_is_in_the_status_of_its_session(repo: Path) -> None:
    (repo / ".gitignore").write_text("cache\n")
    git(repo, "add", ".gitignore")
    git(repo, "commit", "-qm", "ignore")
    steps = """\
    steps:
      - {name: big, command: "truncate -s 101M 'big ü.bin'; echo small > small.txt"}
      - {name: ignored, command: "mkdir cache; truncate -s 101M cache/big; echo small > small.txt"}
      - {name: after, needs: [big], command: "true"}
    """

    done = ran(repo, steps)

    assert done.said.code == 1
    assert done.statuses == {"big": "failed", "ignored": "succeeded", "after": "skipped"}
    worker = done.worker("big")
    assert "1 file is too large for a branch (over 100 MiB): " in worker["error"]
    assert done.shown("big", "small.txt") == "small"
    assert list(Path(worker["raw"]).rglob("big*.bin")) or list((repo / ".shoal/workspaces").rglob("big*.bin"))


def test_workspaces_that_are_not_cleaned_up_are_there_until_clean_takes_them(repo: Path, shoal: Shoal) -> None:
    steps = 'steps: [{name: a, command: "echo x > x.txt; echo y > .git/mark || true", concurrency: 2}]'

    done = ran(repo, steps, runtime="cleanup_on_complete: false")

    places = [Path(place) for place in done["a"]["worker_workspaces"]]
    assert done.report["workspace"] == "worktree"
    assert [(place / "x.txt").read_text() for place in places] == ["x\n", "x\n"]
    assert all(str(place) in git(repo, "worktree", "list") for place in places)
    assert git(places[0], "status", "--porcelain") == ""
    shoal("clean")
    assert not any(place.exists() for place in places)
    assert git(repo, "worktree", "list").count("worker_") == 0
    assert done.shown("a", "x.txt", 1) == "x"


def test_an_overlay_that_is_to_stay_is_refused(repo: Path, shoal: Shoal) -> None:
    (repo / "p.yaml").write_text(
        "runtime: {cleanup_on_complete: false, isolation_strategy: overlay}\nsteps: [{name: a, command: 'true'}]\n"
    )

    said = shoal("run", "p.yaml")

    assert said.code == 2
    assert "isolation_strategy: worktree" in said.err
