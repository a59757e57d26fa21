"""The wall clock is set while a run goes on, and the repository is copied or renamed before one is resumed."""

import contextlib
import json
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, environment, shoal_in
from tests.cli.flows import written
from tests.conftest import git

HOUR, YEAR = 3600, 365 * 24 * 3600
# The wall clock of a program, as far off as a file says; what the kernel measures is not touched, as when it is set.
CLOCK = """
import os, time
real = time.time

def shifted():
    try:
        with open(os.environ["CLOCK"]) as file:
            return real() + float(file.read())
    except (OSError, ValueError):
        return real()

time.time = shifted
"""
STEPS = """\
steps:
  - {name: first, agent: work, prompt: "echo %d > $CLOCK; sleep 0.5", timeout: 60}
  - {name: late, agent: work, prompt: "sleep 60", timeout: 2, needs: [first]}
"""


DEEP = pytest.mark.deep


@pytest.mark.parametrize(
    "offset", [HOUR, -10 * YEAR, pytest.param(-HOUR, marks=DEEP), pytest.param(10 * YEAR, marks=DEEP)]
)
def test_a_clock_that_is_set_during_a_run_changes_no_timeout_and_no_order(
    repo: Path, tmp_path: Path, offset: int
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CLOCK)
    clock = tmp_path / "clock"
    env = environment(PYTHONPATH=str(tmp_path / "site"), CLOCK=str(clock))
    script = f'CLOCK={clock}; eval "$(head -n 1 "$SHOAL_PROMPT_FILE")"'
    written(repo, STEPS % offset, runtime="sandbox: none, network: host", work=script)

    def shoal(*words: str) -> str:
        return subprocess.run([SHOAL, *words], cwd=repo, env=env, stdout=subprocess.PIPE, text=True, check=False).stdout

    before = json.loads(shoal("run", "p.yaml", "--json"))
    clock.unlink()

    report = json.loads(shoal("run", "p.yaml", "--json"))
    listed = [row["run"] for row in json.loads(shoal("runs", "--json"))]

    first, late = (step["worker_results"][0] for step in report["steps"])
    assert (first["status"], late["status"]) == ("no_changes", "timed_out")
    assert 0.5 <= first["duration_seconds"] < 30
    assert 2 <= late["duration_seconds"] < 30
    assert 2.5 <= report["duration_seconds"] < 60
    assert listed == [report["run"], before["run"]], "the latest is first, whatever the clock said"
    assert report["run"] in shoal("status").splitlines()[0]
    with contextlib.closing(sqlite3.connect(repo / ".shoal" / "ledger.db")) as ledger:
        rows = ledger.execute("SELECT at, kind FROM events WHERE run = ? ORDER BY seq", (report["run"],)).fetchall()
    assert rows[-1][0] - rows[0][0] == pytest.approx(offset, abs=60)
    assert (rows[0][1], rows[-1][1]) == ("RunStarted", "RunEnded")


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_killed_run_is_resumed_where_its_repository_is_now(repo: Path, tmp_path: Path, *, is_copied: bool) -> None:
    block = tmp_path / "block"
    block.touch()
    script = f"echo x > x.txt; if [ -e {block} ]; then echo blocked; sleep 60; fi"
    written(repo, "steps: [{name: a, agent: work, prompt: go}]", runtime="sandbox: none, network: host", work=script)
    with subprocess.Popen(
        [SHOAL, "run", "p.yaml", "--events"], cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if "blocked" in line)
        running.kill()
        running.stdout.read()
    block.unlink()
    now = tmp_path / "elsewhere"
    if is_copied:
        shutil.copytree(repo, now, symlinks=True)
    else:
        repo.rename(now)

    resumed = {place: shoal_in(place)("resume", "--json") for place in ([now, repo] if is_copied else [now])}

    for place, said in resumed.items():
        assert said.code == 0, said.err
        (worker,) = json.loads(said.out)["steps"][0]["worker_results"]
        assert git(place, "show", f"{worker['branch']}:x.txt") == "x"
        assert shoal_in(place)("clean").code == 0
        assert git(place, "fsck", "--strict") == ""
