"""A branch of the user moves with its working tree, or nothing is touched."""

import os
import subprocess
from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.merge.merge import merge
from shoal.merge.request import MergeRequest
from shoal.model.merge import DeliveryStatus, Strategy
from tests.conftest import git
from tests.merge.delivering import BRANCH, at, moved_on, status_of
from tests.merge.merging import canary, merged, open_merge_context, report, run_of, side, statuses, worker


async def test_a_clean_checkout_moves_along(repo: Path) -> None:
    run = run_of(repo, {"a": "0\n"}, {"d0/f1.txt": None, "deep/er": "1\n"}, {"a": "2\n"})
    (repo / "untracked").write_text("mine\n")

    done = await merged(repo, run, into="main")
    again = await merged(repo, run, into="main")

    assert status_of(done) is DeliveryStatus.DELIVERED
    assert status_of(again) is DeliveryStatus.UNCHANGED
    assert statuses(done) == statuses(again) == {"s1": "merged", "s0": "merged", "s2": "conflicts"}
    assert at(repo) == at(repo, BRANCH) == at(repo, "HEAD")
    assert (repo / "a").read_text() == "0\n"
    assert (repo / "deep/er").read_text() == "1\n"
    assert not (repo / "d0/f1.txt").exists()
    assert git(repo, "status", "--porcelain") == "?? untracked"


async def test_a_dirty_checkout_is_not_touched_and_one_command_finishes_it(repo: Path) -> None:
    run = run_of(repo, {"a": "0\n"})
    (repo / "README.md").write_text("mine\n")
    before = at(repo), (repo / ".git/index").read_bytes()

    done = await merged(repo, run, into="main")

    assert status_of(done) is DeliveryStatus.LEFT
    assert done.needs_a_person
    assert (at(repo), (repo / ".git/index").read_bytes()) == before
    assert not (repo / "a").exists()
    assert done.delivery is not None
    assert done.delivery.command == f"git merge --ff-only --autostash {BRANCH}"
    git(repo, *done.delivery.command.split()[1:])
    assert ((repo / "a").read_text(), (repo / "README.md").read_text()) == ("0\n", "mine\n")
    assert status_of(await merged(repo, run, into="main")) is DeliveryStatus.UNCHANGED


async def test_the_command_that_finishes_it_works_where_the_same_file_has_changes(repo: Path) -> None:
    lines = "".join(f"{number}\n" for number in range(20))
    (repo / "README.md").write_text(lines)
    git(repo, "commit", "-qam", "lines")
    run = run_of(repo, {"README.md": f"agent\n{lines}"})
    (repo / "README.md").write_text(f"{lines}mine\n")

    done = await merged(repo, run, into="main")

    assert done.delivery is not None
    assert done.delivery.command is not None
    git(repo, *done.delivery.command.split()[1:])
    assert (repo / "README.md").read_text() == f"agent\n{lines}mine\n"


async def test_files_that_were_only_touched_are_no_changes(repo: Path) -> None:
    run = run_of(repo, {"README.md": "agent\n"})
    os.utime(repo / "README.md", (1, 1))

    done = await merged(repo, run, into="main")

    assert status_of(done) is DeliveryStatus.DELIVERED, done.delivery
    assert (repo / "README.md").read_text() == "agent\n"
    assert git(repo, "status", "--porcelain") == ""


async def test_an_untracked_file_in_the_way_is_never_overwritten(repo: Path) -> None:
    run = run_of(repo, {"a": "0\n", "b": "0\n"})
    (repo / "b").write_text("mine\n")
    before = at(repo)

    done = await merged(repo, run, into="main")

    assert status_of(done) is DeliveryStatus.LEFT
    assert (at(repo), (repo / "b").read_text(), (repo / "a").exists()) == (before, "mine\n", False)


@pytest.mark.parametrize("what", ["merge", "rebase", "lock"])
async def test_what_the_user_has_under_way_is_not_disturbed(repo: Path, what: str) -> None:
    run = run_of(repo, {"a": "0\n"})
    if what == "merge":
        (repo / ".git/MERGE_HEAD").write_text(f"{at(repo)}\n")
    elif what == "lock":
        (repo / ".git/index.lock").touch()
    else:
        (repo / ".git/rebase-merge").mkdir()
        (repo / ".git/rebase-merge/head-name").write_text("refs/heads/main\n")
        (repo / ".git/HEAD").write_text(f"{at(repo)}\n")
    before = at(repo)

    assert status_of(await merged(repo, run, into="main")) is DeliveryStatus.LEFT
    assert at(repo) == before


async def test_a_branch_that_is_not_checked_out_moves_alone_and_a_linked_worktree_along(
    repo: Path, tmp_path: Path
) -> None:
    git(repo, "branch", "alone")
    git(repo, "worktree", "add", "-q", "-b", "linked", str(tmp_path / "linked"))
    run = run_of(repo, {"a": "0\n"})

    assert status_of(await merged(repo, run, into="alone")) is DeliveryStatus.DELIVERED
    assert status_of(await merged(repo, run, into="linked")) is DeliveryStatus.DELIVERED

    assert git(repo, "show", "alone:a") == "0"
    assert git(tmp_path / "linked", "status", "--porcelain") == ""
    assert (tmp_path / "linked/a").read_text() == "0\n"
    assert not (repo / "a").exists()


@pytest.mark.parametrize("strategy", ["auto", "squash", "rebase", "octopus"])
async def test_a_branch_that_moved_is_merged_on_anew(repo: Path, strategy: str) -> None:
    run = run_of(repo, {"a": "0\n"}, {"clash": "1\n"})
    await merged(repo, run, strategy=strategy)
    moved_on(repo)
    theirs = moved_on(repo, "clash")

    done = await merged(repo, run, into="main", strategy=strategy)

    assert status_of(done) is DeliveryStatus.DELIVERED
    assert statuses(done) == {"s0": "merged", "s1": "conflicts"}
    assert git(repo, "merge-base", theirs, "main") == theirs
    assert git(repo, "ls-tree", "--name-only", "main").split() == ["README.md", "a", "clash", "d0", "theirs"]
    assert git(repo, "status", "--porcelain") == ""


@pytest.mark.parametrize("strategy", ["auto", "squash", "rebase", "octopus"])
async def test_after_a_delivery_the_user_goes_on_and_so_does_the_run(repo: Path, strategy: str) -> None:
    run = run_of(repo, {"a": "0\n"})
    await merged(repo, run, into="main", strategy=strategy)
    moved_on(repo)
    base = run.base
    late = report(repo, [*run.steps[0].worker_results, worker(1, side(repo, {"late": "1\n"}, base))], base)

    done = await merged(repo, late, into="main", strategy=strategy)

    assert statuses(done) == {"s0": "merged", "s1": "merged"}
    assert git(repo, "log", "--format=%s", "main", "--", "a").count("\n") == 0  # its work came in once
    assert (repo / "late").read_text() == "1\n"


async def test_a_branch_that_was_rewritten_or_is_gone_is_refused(repo: Path) -> None:
    git(repo, "branch", "old")
    moved_on(repo)
    run = run_of(repo, {"a": "0\n"})
    git(repo, "reset", "-q", "--hard", "old")
    rewritten = moved_on(repo, "rewritten")

    with pytest.raises(BadInput, match="started from"):
        await merged(repo, run, into="main")
    with pytest.raises(BadInput, match="no branch 'gone'"):
        await merged(repo, run, into="gone")
    assert at(repo) == rewritten
    assert git(repo, "branch", "--list", "shoal/*") == ""

    done = await merged(repo, run, into="main", strategy="rebase")
    assert git(repo, "log", "--format=%s", f"{rewritten}..main") == "side of ['a']"
    assert status_of(done) is DeliveryStatus.DELIVERED


@pytest.mark.parametrize("name", ["main~1", "-f", "main..main", "HEAD", "agent/t", "shoal/x", "", "*"])
async def test_what_is_no_branch_of_the_users_is_refused(repo: Path, name: str) -> None:
    moved_on(repo)

    with pytest.raises(BadInput):
        await merged(repo, run_of(repo, {"a": "0\n"}), into=name or "no such")


async def test_a_user_who_commits_meanwhile_loses_nothing(repo: Path) -> None:
    git(repo, "branch", "other")
    run = run_of(repo, {"a": "0\n"}, {"b": "1\n"})
    theirs: list[str] = []

    async def meanwhile(commit: str) -> None:
        if len(theirs) < 2:
            theirs.append(side(repo, {f"theirs{len(theirs)}": "x\n"}, "other"))
            git(repo, "update-ref", "refs/heads/other", theirs[-1])

    done = await merged(repo, run, into="other", verify=meanwhile)

    assert status_of(done) is DeliveryStatus.DELIVERED
    assert len(theirs) == 2
    names = git(repo, "ls-tree", "--name-only", "other").split()
    assert names == ["README.md", "a", "b", "d0", "theirs0", "theirs1"]
    assert git(repo, "merge-base", theirs[-1], "other") == theirs[-1]


async def test_a_working_tree_is_found_wherever_its_gitdir_lies(repo: Path, tmp_path: Path) -> None:
    (repo / ".git").rename(tmp_path / "elsewhere")
    (repo / ".git").write_text(f"gitdir: {tmp_path / 'elsewhere'}\n")
    git(repo, "config", "core.worktree", str(repo))
    (repo / "new").write_text("x\n")
    git(repo, "add", "new")
    tree_of = git(repo, "write-tree")
    git(repo, "reset", "-q", "--hard")
    commit = git(repo, "commit-tree", tree_of, "-p", "main", "-m", "new")

    async with open_merge_context(repo, report(repo, [worker(0, commit)])) as context:
        done = await merge(context, MergeRequest(strategy=Strategy.AUTO, into="main"))

    assert status_of(done) is DeliveryStatus.DELIVERED
    assert (repo / "new").read_text() == "x\n"
    assert git(repo, "status", "--porcelain", "--untracked-files=no") == ""


async def test_a_filter_of_the_users_is_theirs_to_start_and_no_trap_is_sprung(repo: Path, tmp_path: Path) -> None:
    run = run_of(repo, {"a.big": "0\n"}, {"b": "1\n"})
    is_sprung = canary(repo, tmp_path)
    (repo / ".git/info/attributes").write_text("*.big filter=evil\n")

    plain = await merged(repo, run, "s1", into="main")
    filtered = await merged(repo, run, into="main")

    assert status_of(plain) is DeliveryStatus.DELIVERED
    assert status_of(filtered) is DeliveryStatus.LEFT
    assert filtered.delivery is not None
    assert "the filter 'evil'" in filtered.delivery.message
    assert not (repo / "a.big").exists()
    assert not is_sprung()


async def test_a_link_that_an_agent_made_leads_nowhere(repo: Path, tmp_path: Path) -> None:
    """One session makes a link out of the repository, another writes below a folder of that name."""
    outside = tmp_path / "outside"
    outside.mkdir()
    start = at(repo)
    blob = subprocess.run(
        ["git", "hash-object", "-w", "--stdin"],
        input=str(outside),
        text=True,
        cwd=repo,
        capture_output=True,
        check=True,
    )
    linked = git(repo, "rev-parse", start)
    index = {"GIT_INDEX_FILE": str(repo / ".git/side")}
    git(repo, "read-tree", start, **index)
    git(repo, "update-index", "--add", "--cacheinfo", f"120000,{blob.stdout.strip()},docs", **index)
    linked = git(repo, "commit-tree", git(repo, "write-tree", **index), "-p", start, "-m", "link")
    run = report(repo, [worker(0, linked), worker(1, side(repo, {"docs/key": "evil\n"}))])

    done = await merged(repo, run, into="main")

    assert sorted(statuses(done).values()) == ["conflicts", "merged"]
    assert list(outside.iterdir()) == []
