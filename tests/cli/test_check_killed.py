"""Shoal is killed while a contract is checked: the work is on its branch by then, but not recorded."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.conftest import git

DOCUMENT = """\
runtime: {isolation_strategy: STRATEGY}
steps:
  - name: work
    command: "echo a > a.txt; mkdir -p .shoal .claude; echo b > .shoal/unkept; echo {} > .claude/settings.json"
    contract: {type: command, command: "echo checking; sleep 60"}
"""


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["auto", "worktree"])
def test_what_the_branch_does_not_hold_stays_and_what_it_holds_is_told(repo: Path, shoal: Shoal, strategy: str) -> None:
    (repo / "shoal.yaml").write_text(DOCUMENT.replace("STRATEGY", strategy))
    with subprocess.Popen(
        [SHOAL, "run", "--events"], cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if '"checking"' in line)
        running.kill()
    assert shoal("clean").code == 0

    (worker,) = json.loads(shoal("status", "--json").out)["steps"][0]["worker_results"]
    assert (worker["status"], worker["files_changed"], worker["unkept"]) == ("interrupted", 2, [".shoal"])
    assert "can run code on your machine: .claude/settings.json" in shoal("status").out
    assert git(repo, "show", f"{worker['branch']}:a.txt") == "a"
    assert [path.read_text() for path in (repo / ".shoal").rglob("unkept")] == ["b\n"]
