"""The table of the runs of a repository."""

import json

from tests.cli.conftest import Shoal


def test_runs_are_listed_with_their_status_and_agents(shoal: Shoal) -> None:
    before = shoal("runs")
    good = shoal("run", "--task", "x", "--task", "y", "--command", "true", "--sandbox", "none")
    bad = shoal("run", "--task", "x", "--command", "false", "--sandbox", "none")
    table, rows = shoal("runs"), json.loads(shoal("runs", "--json").out)
    head, latest, first = table.out.splitlines()

    assert (before.code, "no runs yet" in before.out) == (0, True)
    assert (good.code, bad.code, table.code) == (0, 1, 0)
    assert head.split() == ["run", "status", "agents", "time", "started"]
    assert latest.split()[1:3] == ["failed", "0/1"]
    assert first.split()[1:3] == ["succeeded", "2/2"]
    assert max(map(len, table.out.splitlines())) <= 80
    assert [(row["run"], row["success_count"], row["total_workers"]) for row in rows] == [
        (latest.split()[0], 0, 1),
        (first.split()[0], 2, 2),
    ]


def test_a_long_history_is_listed_and_read_in_part(shoal: Shoal) -> None:
    for name in ("x", "y"):
        shoal("run", "--task", name, "--command", "true", "--sandbox", "none")
    latest, older = [row["run"] for row in json.loads(shoal("runs", "--json").out)]

    table = shoal("runs", "--limit", "1").out
    every = shoal("runs", "--limit", "0").out

    assert (latest in table, older in table, table.splitlines()[-1]) == (True, False, "1 older; `--limit 0` lists all")
    assert (latest in every, older in every, "older;" in every) == (True, True, False)
    assert shoal("status").out.splitlines()[-1].split()[0] == older
    assert shoal("status", older).out.splitlines()[-1].split()[0] == latest
