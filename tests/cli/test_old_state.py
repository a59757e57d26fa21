"""State that an earlier version left, with a merged, a failed and a killed run, is read by today's commands.

`tests/store/old_state.tar.xz` has a repository and its `.shoal` as commit 12e4c04 wrote them: a loop, a `select`, a
matrix and their merge, then an agent that exited with 3, then a run that was killed with SIGKILL.
"""

import contextlib
import json
import os
import sqlite3
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.cli import warm
from tests.conftest import git

ARCHIVE = Path(__file__).parents[1] / "store" / "old_state.tar.xz"
MADE_IN = "/made/here"
GOOD, FAILED, KILLED = "shoal-20261118-db87", "bad-20261118-f9a6", "adhoc-20261118-2276"

WHOLLY: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
"""Python 3.11.3 and older have no filters."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Unpack the repository, and replace the path that it had by the one that it has."""
    repo = tmp_path / "old"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(repo, **WHOLLY)
    for name in (repo / ".shoal/.moved").read_text().splitlines():
        (repo / name).write_text((repo / name).read_text().replace(MADE_IN, str(repo)))
    with contextlib.closing(sqlite3.connect(repo / ".shoal/ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE events SET body = replace(body, ?, ?)", (MADE_IN, str(repo)))
    return repo


def shoal(repo: Path, *words: str) -> str:
    printed = warm.ran(list(words), cwd=repo, env=os.environ, timeout=100)
    assert printed.code == 0, (words, printed.err)
    return printed.out


def test_status_shows_every_old_run(old: Path) -> None:
    good = json.loads(shoal(old, "status", GOOD, "--json"))
    steps = {step["step"]: step for step in good["steps"]}

    assert good["status"] == "succeeded"
    assert steps["grow"]["rounds"] == 2
    assert steps["pick"]["selected"] == 0
    assert len(steps["port"]["worker_results"]) == 2
    assert [result["status"] for result in good["merge"]["results"]] == ["merged"] * 4
    assert "failed" in shoal(old, "status", FAILED)
    assert "interrupted" in shoal(old, "status", KILLED)


def test_logs_and_diff_show_old_sessions(old: Path) -> None:
    assert "did it" in shoal(old, "logs", "grow")
    assert "err: no" in shoal(old, "logs", "breaks")
    assert shoal(old, "diff", "b33ab4", "--name-only").split() == ["w-pick-0.txt"]
    assert shoal(old, "diff", "breaks", "--name-only").split() == ["half.txt"]


def test_an_old_run_is_merged_delivered_and_undone(old: Path) -> None:
    shoal(old, "merge", GOOD, "--preview")
    shoal(old, "merge", GOOD, "--strategy", "auto", "--into", "main")
    files = git(old, "ls-tree", "--name-only", "main").split()
    shoal(old, "merge", GOOD, "--undo", "0c6add")

    assert {"t-linux.txt", "t-mac.txt", "w-grow-0.txt", "w-pick-0.txt"} <= set(files)
    assert "t-mac.txt" not in git(old, "ls-tree", "--name-only", "main").split()


def test_clean_imports_what_an_old_killed_run_left(old: Path) -> None:
    printed = json.loads(shoal(old, "clean", "--json"))

    (worker,) = printed["brought_in"]
    assert subprocess.check_output(["git", "show", f"{worker['branch']}:left.txt"], cwd=old, text=True) == "left\n"
    assert "interrupted" in shoal(old, "status", KILLED)
