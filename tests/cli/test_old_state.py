"""A `.shoal` folder that an earlier Shoal wrote can still be read, merged and cleaned."""

import json
import tarfile
from pathlib import Path

import pytest

from tests.cli.conftest import shoal_in
from tests.conftest import git

STATE = Path(__file__).parent / "recorded" / "state_2026_11.tar.gz"
"""A repository after a run of three agents: its commits, ledger and logs, as of November 2026."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    with tarfile.open(STATE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_every_command_works_on_the_state_of_an_earlier_shoal(old: Path) -> None:
    shoal = shoal_in(old)
    status = shoal("status", "--json")
    report = json.loads(status.out)
    workers = [worker for step in report["steps"] for worker in step["worker_results"]]
    session = workers[0]["session"]

    assert (status.code, report["status"], len(workers)) == (0, "succeeded", 3)
    assert "worked" in shoal("logs", session).out
    assert "new-0" in shoal("diff", session).out
    assert shoal("merge", "--preview").code == 0
    assert shoal("merge", "--into", "main", "--yes").code == 0
    assert {"new-0", "new-1"} <= set(git(old, "ls-tree", "--name-only", "main").split())
    assert shoal("clean").code == 0
