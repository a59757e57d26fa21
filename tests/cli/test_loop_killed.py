"""Shoal is killed between the rounds of a loop: each round's work is on a branch, and the same command works."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.conftest import git

DOCUMENT = """\
steps:
  - name: count
    command: "echo x >> rounds.txt; echo round $(wc -l < rounds.txt) began; [ $(wc -l < rounds.txt) != LAST ] || sleep 60"
    loop: {until: "loop.round == 3", max: 5}
"""


@pytest.mark.deep
@pytest.mark.parametrize("last", [1, 2, 3])
def test_what_every_round_made_is_kept(repo: Path, shoal: Shoal, last: int) -> None:
    (repo / "shoal.yaml").write_text(DOCUMENT.replace("LAST", str(last)))
    with subprocess.Popen(
        [SHOAL, "run", "--events"], cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if f"round {last} began" in line)
        running.kill()
    assert shoal("clean").code == 0
    (repo / "shoal.yaml").write_text(DOCUMENT.replace("LAST", "9"))
    branches = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent").split()
    again = shoal("run", "--json")

    assert sorted(git(repo, "show", f"{one}:rounds.txt").count("x") for one in branches) == list(range(1, last + 1))
    assert (again.code, json.loads(again.out)["steps"][0]["rounds"]) == (0, 3)
