"""What a person reads at the end is true: real runs, merges, verifications and undone deliveries."""

import re
from pathlib import Path

from tests.cli.conftest import Shoal
from tests.cli.flows import written
from tests.conftest import git

VERIFY = "for i in 1 2 3 4 5 6 7 8; do echo line $i; done; test ! -e a.txt || test ! -e b.txt"


def next_command(said: str) -> list[str]:
    return [line.strip() for line in said.partition("\nnext:\n")[2].splitlines()]


def test_a_failed_verification_shows_its_last_lines_and_where_all_are(repo: Path, shoal: Shoal) -> None:
    (repo / ".git/info/exclude").write_text("*.yaml\n")
    merge = f"merge: {{strategy: auto, into: main, verify: '{VERIFY}'}}"
    steps = 'steps: [{name: a, command: "echo x > a.txt"}, {name: b, command: "echo x > b.txt"}]'
    file = written(repo, steps, runtime=f"sandbox: none, max_concurrent_workers: 1, {merge}")

    said = shoal("run", file)

    assert said.code == 4
    assert re.findall(r"> line (\d)", said.out) == ["4", "5", "6", "7", "8"]
    (log,) = re.findall(r"`shoal (logs merge__verify-\w+)` shows all of it", said.out)
    assert "line 1\nline 2" in shoal(*log.split()).out
    assert re.search(r"merge__verify-\w+  passed", said.out)
    assert "no_changes" not in said.out
    assert "1 of 2 sessions merged" in said.out
    (then,) = next_command(said.out)
    assert re.search(r"shoal diff [ab]-\w+$", then)
    assert "git merge" not in said.out


def test_merges_again_and_undone_ones_are_told_as_they_are(repo: Path, shoal: Shoal) -> None:
    file = written(repo, 'steps: [{name: a, command: "echo x > a.txt"}]', runtime="sandbox: none")
    (repo / ".git/info/exclude").write_text("*.yaml\n")
    assert shoal("run", file).code == 0
    before = git(repo, "rev-parse", "main")

    first = shoal("merge", "--into", "main", "--yes")
    again = shoal("merge", "--into", "main", "--yes")
    undone = shoal("merge", "--undo")
    status = shoal("status").out
    twice = shoal("merge", "--undo")

    assert f"delivered into main: {before[:10]} → " in first.out
    assert ("main already contains it" in again.out, "delivered" in again.out) == (True, False)
    assert re.search(r"^removed from shoal/\S+: a-\w+$", undone.out, re.MULTILINE)
    assert "taken out of main again" in undone.out
    assert "delivered into" not in status
    assert "of 0" not in status
    assert not (repo / "a.txt").exists()
    assert re.search(r"^removed from shoal/\S+: nothing, it was not there$", twice.out, re.MULTILINE)


def test_a_run_without_work_has_nothing_to_merge(repo: Path, shoal: Shoal) -> None:
    file = written(repo, 'steps: [{name: a, command: "true"}]', runtime="sandbox: none, merge: auto")

    said = shoal("run", file)

    assert said.code == 0
    assert "0 of 0" not in said.out
    assert "git merge" not in said.out


def test_the_branch_of_the_selected_worker_is_the_one_to_merge(repo: Path, shoal: Shoal) -> None:
    steps = """
    steps:
      - name: a
        command: "seq $((10 - SHOAL_WORKER_INDEX * 9)) > a.txt"
        concurrency: 2
        select: {by: diff_size}
    """
    said = shoal("run", written(repo, steps, runtime="sandbox: none"))

    assert said.code == 0, said.err
    assert "selected worker 1" in said.out
    branches = re.findall(r"^  a-\w+ +succeeded +\S+ s +(\S+)", said.out, re.MULTILINE)
    assert next_command(said.out) == [f"git merge {branches[1]}"]
