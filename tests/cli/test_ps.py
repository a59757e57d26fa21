"""`shoal ps` and `shoal runs --all`: what is running, and what ran, in all repositories of the user."""

import json
from pathlib import Path

from tests.cli.conftest import SHOAL, shoal_in
from tests.cli.flows import written
from tests.cli.test_approve import started
from tests.conftest import make_repo

STEPS = "steps: [{{name: {step}, agent: w, prompt: x}}]"


def test_agents_of_all_repositories_are_listed_while_they_run(tmp_path: Path) -> None:
    repos = [make_repo(tmp_path / name) for name in ("one", "other")]
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    files = [written(repo, STEPS.format(step=repo.name), w=wait) for repo in repos]
    (tmp_path / "home").mkdir()
    home = {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}
    shoal = shoal_in(tmp_path)
    before = shoal("ps", **home)
    with (
        started(repos[0], "env", f"XDG_STATE_HOME={home['XDG_STATE_HOME']}", SHOAL, "run", files[0], "--events") as one,
        started(repos[1], "env", f"XDG_STATE_HOME={home['XDG_STATE_HOME']}", SHOAL, "run", files[1], "--events") as two,
    ):
        pids = [run.until("AgentStarted")["pid"] for run in (one, two)]
        shown, found = shoal("ps", **home), json.loads(shoal("ps", "--json", **home).out)
        (tmp_path / "go").touch()
        assert [run.process.wait(timeout=60) for run in (one, two)] == [0, 0]
    after = shoal("ps", "--json", **home)
    listed = json.loads(shoal("runs", "--all", "--json", **home).out)
    table = shoal("runs", "--all", "-n", "1", **home).out

    assert (before.code, before.out) == (0, "no agents are running\n")
    assert [(row["repository"], row["step"], row["agent"], row["state"], row["pid"]) for row in found] == [
        (str(repo), repo.name, "w", "running", pid) for repo, pid in zip(repos, pids, strict=True)
    ]
    assert all(row["session"] in shown.out for row in found)
    assert json.loads(after.out) == []
    assert {row["repository"] for row in listed} == set(map(str, repos))
    assert table.count("\n") == 2
