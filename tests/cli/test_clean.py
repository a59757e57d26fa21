"""`shoal clean`: what no run needs is removed, and what no ref holds stays."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from shoal import IsolatedAgentSession
from tests.cli.conftest import Shoal
from tests.conftest import git

KEPT = """\
runtime: {cleanup_on_complete: false, isolation_strategy: directory}
agents: {x: {adapter: scripted, script: [{write: {path: a.txt, content: "a\\n"}}]}}
steps: [{name: one, agent: x, prompt: go}]
"""

SALVAGE = "refs/shoal/salvage"
LONG_AGO = 1_000_000_000


def aged(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (LONG_AGO, LONG_AGO))


def written_log(repo: Path) -> Path:
    """Wait for the only log: what a session says is written some time soon."""
    end = time.monotonic() + 30
    while not (logs := list((repo / ".shoal" / "sessions").glob("*.db"))) and time.monotonic() < end:
        time.sleep(0.01)
    (log,) = logs
    return log


def found(shoal: Shoal) -> dict[str, list[Path]]:
    kinds: dict[str, list[Path]] = {}
    for one in json.loads(shoal("clean", "--dry-run", "--json").out)["found"]:
        kinds.setdefault(one["kind"], []).append(Path(one["path"]))
    return kinds


def test_a_dry_run_only_tells(shoal: Shoal, repo: Path, pipelines: Path) -> None:
    shoal("run", "both")
    shoal("open", "one")

    kinds = found(shoal)

    assert kinds.keys() == {"base checkout", "object store", "opened worktree"}
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
    assert "kept, on no branch" in stayed.out
    assert are_there == [True, True]
    assert found(shoal) == {}
    assert git(repo, "for-each-ref", "--format=%(refname)", SALVAGE) != "", "its archive"


# A repository inside with rules that cost too much to follow cannot be kept as files: no seal ever takes it.
UNKEPT = (
    "git init -q nested; echo precious > nested/n; truncate -s 100G nested/.gitignore; ln -s /etc/passwd nested/link;"
    " chmod 000 nested/n; rm README.md"
)


@pytest.mark.parametrize(("strategy", "top"), [("overlay", "upper"), ("worktree", "worker_0")])
def test_what_can_never_be_on_a_branch_is_archived_before_it_goes(
    shoal: Shoal, repo: Path, tmp_path: Path, strategy: str, top: str
) -> None:
    shoal("run", "--task", UNKEPT, "--command", "sh -s", "--isolation", strategy)
    assert "kept, on no branch" in shoal("clean").out

    said = shoal("clean", "--force")

    assert said.code == 0, said.out + said.err
    assert "archived in refs/shoal/salvage/" in said.out
    assert found(shoal) == {}
    (repo / "unpacked").mkdir()
    refs = git(repo, "for-each-ref", "--format=%(refname)", SALVAGE).split()
    ref = next(name for name in refs if strategy == "overlay" or name.endswith("-workspace"))
    command = said.out[said.out.index(f"git cat-file blob {ref}:") :].splitlines()[0]
    subprocess.run(command.replace("FOLDER", "unpacked"), shell=True, cwd=repo, check=True)
    nested = repo / "unpacked" / top / "nested"
    (nested / "n").chmod(0o600)
    assert (nested / "n").read_text() == "precious\n"
    assert (nested / "link").is_symlink()
    result = json.loads(shoal("status", "--json").out)["steps"][0]["worker_results"][0]
    assert ref in result["kept_refs"]
    assert result["raw"] is None


def test_what_cannot_be_archived_stays_until_it_is_discarded_by_name(shoal: Shoal, repo: Path) -> None:
    shoal("run", "--task", UNKEPT, "--command", "sh -s")
    git(repo, "update-ref", SALVAGE, "main")  # where the folder of the refs has to be
    (raw,) = (path for path in found(shoal)["raw files"] if path.parent.name != "work")

    forced = shoal("clean", "--force")
    is_there = raw.is_dir()
    wrong = shoal("clean", "--discard", str(repo))
    discarded = shoal("clean", "--discard", str(raw))

    assert (forced.code, is_there, wrong.code) == (3, True, 2)
    assert f"`shoal clean --discard {raw}` deletes it permanently" in forced.out
    assert discarded.code == 0, discarded.out
    assert not raw.exists()


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


def test_old_logs_go_only_when_that_is_asked_for(shoal: Shoal, repo: Path, pipelines: Path) -> None:
    shoal("run", "both")
    old = sorted((repo / ".shoal" / "sessions").glob("*.db"))
    aged(*old)
    shoal("run", "broken")

    shoal("clean", "--force")
    told = shoal("clean", "--dry-run", "--older-than", "30d").out
    are_there = [path.exists() for path in old]
    said = shoal("clean", "--older-than", "30d")

    assert are_there == [True, True]
    assert "logs" in told
    assert f"2 in {repo}/.shoal/sessions" in said.out
    assert not any(path.exists() for path in old)
    assert len(list((repo / ".shoal" / "sessions").glob("*.db"))) == 1, "the later run's stays"
    assert "no longer exists" in shoal("logs", "one").err
    assert "same.txt" in shoal("diff", "one").out, "branches stay"


def test_what_logs_take_is_told_where_nobody_asked(shoal: Shoal, pipelines: Path) -> None:
    shoal("run", "both")

    assert "`--older-than 30d` removes" in shoal("clean", "--dry-run").out


def test_artifacts_go_by_their_age(shoal: Shoal, repo: Path) -> None:
    step = '{name: a, command: "echo x > x.txt", output_artifacts: [x.txt]}'
    (repo / "left.yaml").write_text(f"runtime: {{sandbox: none}}\nsteps: [{step}]\n")
    shoal("run", "left.yaml")
    left = sorted((repo / ".shoal" / "results").iterdir())

    shoal("clean", "--older-than", "30d")
    stayed = [path.exists() for path in left]
    said = shoal("clean", "--older-than", "0s")

    assert stayed == [True, True], "of the worker, and of its step"
    assert f"2 in {repo}/.shoal/results" in said.out
    assert not any(path.exists() for path in left)


def test_a_patch_goes_only_while_a_ref_holds_its_work(shoal: Shoal, repo: Path) -> None:
    (repo / "keep.yaml").write_text(KEPT)
    shoal("run", "keep.yaml")
    (patch,) = (repo / ".shoal" / "results").iterdir()
    ref = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent")
    commit = git(repo, "rev-parse", ref)

    git(repo, "update-ref", "-d", ref)
    shoal("clean", "--older-than", "0s")
    stayed = patch.exists()
    git(repo, "update-ref", ref, commit)
    shoal("clean", "--older-than", "0s")

    assert stayed
    assert not patch.exists()


def test_the_log_of_a_live_session_stays(shoal: Shoal, repo: Path) -> None:
    with IsolatedAgentSession("alive", repo) as session:
        session.run("echo first")
        log = written_log(repo)
        aged(log)
        shoal("clean", "--older-than", "0s")
        is_there = log.exists()
        session.run("echo second")

    assert is_there
    shoal("clean", "--older-than", "0s")
    assert not log.exists()


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1.5d", "30 days"])
def test_an_age_that_cannot_be_read_removes_nothing(shoal: Shoal, repo: Path, age: str) -> None:
    said = shoal("clean", f"--older-than={age}")

    assert (said.code, said.out) == (2, "")
    assert "like 12h, 30d or 2w" in said.err


def test_pins_that_a_run_could_not_let_go_of_are_removed(shoal: Shoal, repo: Path, pipelines: Path) -> None:
    shoal("run", "both")
    git(repo, "update-ref", "refs/shoal/base/gone-20261118-0000+abc", "main")

    assert shoal("clean").code == 0

    assert git(repo, "for-each-ref", "refs/shoal/base") == ""


MERGED = """\
runtime: {sandbox: none}
steps:
  - {name: whole, command: "echo whole > whole.txt"}
  - {name: squashed, command: "echo squashed > squashed.txt"}
  - {name: changed, command: "echo changed > changed.txt"}
  - {name: open, command: "echo open > open.txt"}
"""


def test_branches_whose_work_is_in_the_users_branch_go_and_all_others_stay(shoal: Shoal, repo: Path) -> None:
    (repo / "p.yaml").write_text(MERGED)
    shoal("run", "p.yaml")
    lines = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent").split()
    branches = {branch.split("/")[1]: branch for branch in lines}
    git(repo, "merge", "-q", "--no-ff", "-m", "whole", branches["whole"])
    for name in ("squashed", "changed"):
        git(repo, "merge", "-q", "--squash", branches[name])
        git(repo, "commit", "-qm", name)
    (repo / "changed.txt").write_text("and then the user changed it\n")
    git(repo, "commit", "-qam", "mine")

    plain = shoal("clean")
    preview = shoal("clean", "--merged", "--dry-run")
    before = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent").split()
    done = json.loads(shoal("clean", "--merged", "--into", "main", "--json").out)

    gone = {branches["whole"], branches["squashed"]}
    assert plain.code == 0
    assert sorted(before) == sorted(lines)
    assert all(branch in preview.out for branch in gone)
    assert {item["path"] for item in done["removed"] if item["kind"] == "merged branch"} == gone
    assert set(git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent").split()) == set(lines) - gone


def test_a_branch_that_somebody_works_on_stays_and_a_wrong_target_is_refused(shoal: Shoal, repo: Path) -> None:
    (repo / "p.yaml").write_text(MERGED)
    shoal("run", "p.yaml")
    branch = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent/whole")
    git(repo, "merge", "-q", branch)
    git(repo, "worktree", "add", "-q", "../mine", branch)

    answers = [shoal("clean", *words) for words in (("--merged", "--into", "no"), ("--into", "main"), ("--merged",))]

    assert [answer.code for answer in answers] == [2, 2, 0]
    assert git(repo, "rev-parse", "--verify", branch)
