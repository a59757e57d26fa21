"""`shoal clean`: what no run needs goes, and what no ref holds stays."""

import json
from pathlib import Path

from tests.cli.conftest import Shoal
from tests.conftest import git

KEPT = """\
runtime: {cleanup_on_complete: false, isolation_strategy: directory}
agents: {x: {adapter: scripted, script: [{write: {path: a.txt, content: "a\\n"}}]}}
steps: [{name: one, agent: x, prompt: go}]
"""


def found(shoal: Shoal) -> dict[str, list[Path]]:
    kinds: dict[str, list[Path]] = {}
    for one in json.loads(shoal("clean", "--dry-run", "--json").out)["found"]:
        kinds.setdefault(one["kind"], []).append(Path(one["path"]))
    return kinds


def test_a_dry_run_only_tells(shoal: Shoal, repo: Path, pipelines: Path) -> None:
    shoal("run", "both")
    shoal("open", "one")

    kinds = found(shoal)

    assert kinds.keys() == {"base checkout", "opened worktree"}
    assert found(shoal) == kinds
    assert all(path.is_dir() for paths in kinds.values() for path in paths)


def test_what_a_ref_holds_goes(shoal: Shoal, repo: Path) -> None:
    (repo / "keep.yaml").write_text(KEPT)
    shoal("run", "keep.yaml")
    kinds = found(shoal)

    said = shoal("clean")

    assert len(kinds["leftover"]) == 2, "its box and its workspace"
    assert said.code == 0
    assert found(shoal) == {}
    assert list((repo / ".shoal" / "workspaces").iterdir()) == []
    assert git(repo, "for-each-ref", "refs/heads/agent") != ""


def test_what_no_ref_holds_goes_by_force_only(shoal: Shoal, repo: Path) -> None:
    (repo / "keep.yaml").write_text(KEPT)
    shoal("run", "keep.yaml")
    git(repo, "update-ref", "-d", git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent"))
    raw = found(shoal)["raw files"]

    stayed = shoal("clean")
    are_there = [path.is_dir() for path in raw]
    forced = shoal("clean", "--force")

    assert (stayed.code, forced.code) == (0, 0)
    assert "held by no branch" in stayed.out
    assert are_there == [True, True]
    assert found(shoal) == {}


def test_an_opened_worktree_with_work_in_it_always_stays(shoal: Shoal, pipelines: Path) -> None:
    shoal("run", "both")
    mine, unchanged = (Path(shoal("open", name).out.strip()) for name in ("one", "two"))
    (mine / "mine.txt").write_text("mine")

    shoal("clean")
    both_stay = mine.is_dir() and unchanged.is_dir()
    shoal("clean", "--force")

    assert both_stay
    assert (mine / "mine.txt").read_text() == "mine"
    assert not unchanged.exists()


def test_what_stays_is_not_called_nothing(shoal: Shoal, pipelines: Path) -> None:
    shoal("run", "both")
    shoal("open", "one")

    shoal("clean")

    assert shoal("clean").out.endswith("\nnothing else to clean\n")


def test_cleaning_where_nothing_ran_makes_nothing(shoal: Shoal, repo: Path) -> None:
    assert shoal("clean").out == "nothing to clean\n"
    assert not (repo / ".shoal").exists()
