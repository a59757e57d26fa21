"""The history of ended runs: removed by age and by number, and never what somebody may still need."""

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Shoal
from tests.cli.test_clean import aged
from tests.conftest import git

STEP = '{name: a, command: "echo $SHOAL_RUN > x.txt", output_artifacts: [x.txt]}'


def run(shoal: Shoal, repo: Path, runtime: str = "", step: str = STEP) -> str:
    """Run one step, and give the run's name."""
    (repo / "p.yaml").write_text(f"runtime: {{sandbox: none{runtime}}}\nsteps: [{step}]\n")
    return str(json.loads(shoal("run", "p.yaml", "--json").out)["run"])


def runs(shoal: Shoal) -> list[str]:
    return [row["run"] for row in json.loads(shoal("runs", "--limit", "0", "--json").out)]


def age(repo: Path, *names: str) -> None:
    """Let everything of these runs be of long ago."""
    with contextlib.closing(sqlite3.connect(repo / ".shoal" / "ledger.db", isolation_level=None)) as ledger:
        for name in names:
            sessions = ledger.execute("SELECT DISTINCT session FROM events WHERE run = ?", (name,)).fetchall()
            ledger.execute("UPDATE events SET at = 1e9 WHERE run = ?", (name,))
            logs = [repo / ".shoal" / "sessions" / f"{session}.db" for (session,) in sessions if session]
            aged(*(log for log in logs if log.exists()), *(repo / ".shoal" / "results").glob(f"{name}-*"))
            aged(*(path for (session,) in sessions if (path := repo / f".shoal/results/{session}").exists()))


def leftovers(repo: Path) -> list[str]:
    state = repo / ".shoal"
    return sorted(path.name for folder in ("sessions", "results") for path in (state / folder).iterdir())


def test_an_old_run_goes_with_all_that_it_left_but_its_branch(shoal: Shoal, repo: Path) -> None:
    old, new = run(shoal, repo), run(shoal, repo)
    age(repo, old)
    branches = git(repo, "for-each-ref", "refs/heads/agent")

    told = json.loads(shoal("clean", "--dry-run", "--older-than", "30d", "--json").out)["found"]
    text = shoal("clean", "--dry-run", "--older-than", "30d").out
    before = runs(shoal)
    done = json.loads(shoal("clean", "--older-than", "30d", "--json").out)["removed"]

    assert told == done
    assert sorted(
        entry["kind"] for entry in done if entry["kind"] != "base checkout" and entry["kind"] != "object store"
    ) == [
        *("artifact", "artifact"),
        *("log", "run"),
    ]
    assert all(entry["bytes"] > 0 for entry in done)
    assert f"1 in {repo}/.shoal/ledger.db" in text
    assert (before, runs(shoal)) == ([new, old], [new])
    assert git(repo, "for-each-ref", "refs/heads/agent") == branches
    assert shoal("clean").code == 0
    assert runs(shoal) == [new], "nothing brings it back"
    assert not any(old in name for name in leftovers(repo))


@pytest.mark.parametrize("limit", ["{runs: 2}", "{days: 30}", "{days: 30, runs: 2}"])
def test_a_run_removes_the_history_that_its_file_does_not_keep(shoal: Shoal, repo: Path, limit: str) -> None:
    first, second = run(shoal, repo), run(shoal, repo)
    age(repo, first)
    third = run(shoal, repo, f", history: {limit}")

    assert runs(shoal) == [third, second]
    assert len(leftovers(repo)) == 6
    assert len(git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent").split()) == 3


def test_a_run_with_files_on_no_branch_stays(shoal: Shoal, repo: Path) -> None:
    kept = run(shoal, repo)
    age(repo, kept)
    with contextlib.closing(sqlite3.connect(repo / ".shoal" / "ledger.db")) as ledger:
        (session,) = ledger.execute("SELECT session FROM events WHERE kind = 'SessionEnded'").fetchone()
    (repo / ".shoal" / "boxes" / session).mkdir()

    run(shoal, repo, ", history: {days: 30, runs: 1}")

    assert kept in runs(shoal)


@pytest.mark.parametrize("end", ["", "x"])
def test_a_run_that_can_be_resumed_stays(shoal: Shoal, repo: Path, end: str) -> None:
    kept = run(shoal, repo)
    age(repo, kept)
    lock = repo / ".shoal" / "runs" / f"{kept}.lock"
    with contextlib.closing(sqlite3.connect(repo / ".shoal" / "ledger.db", isolation_level=None)) as ledger:
        ledger.execute("DELETE FROM events WHERE kind = 'RunEnded'")
    if end:
        lock.touch()  # as a killed Shoal leaves it

    shoal("clean", "--older-than", "30d")
    run(shoal, repo, ", history: {days: 30, runs: 1}")

    assert kept in runs(shoal)
    assert not shoal("status", kept).err
