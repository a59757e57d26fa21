"""A branch of the user's moves with its working tree, or nothing is touched; and work can be taken out again."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.engine.merge.desk import MergeAsk
from shoal.engine.merge.merge import merge
from shoal.engine.merge.undo import undo
from shoal.errors import BadInput
from shoal.model.merge import DeliveryStatus, MergeReport, Strategy
from shoal.model.results import RunReport
from tests.conftest import git
from tests.engine.merging import RUN, canary, desk_of, merged, report, run_of, side, statuses, tree, worker

BRANCH = f"shoal/{RUN}"


def at(repo: Path, ref: str = "main") -> str:
    return git(repo, "rev-parse", ref)


def status_of(done: MergeReport) -> DeliveryStatus:
    assert done.delivery is not None
    return done.delivery.status


def moved_on(repo: Path, name: str = "theirs") -> str:
    """Let the user commit something on the branch that is checked out."""
    (repo / name).write_text(f"{name}\n")
    git(repo, "add", name)
    git(repo, "commit", "-qm", name)
    return at(repo, "HEAD")


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
    assert done.delivery.command == f"git merge --ff-only {BRANCH}"
    git(repo, *done.delivery.command.split()[1:])
    assert ((repo / "a").read_text(), (repo / "README.md").read_text()) == ("0\n", "mine\n")
    assert status_of(await merged(repo, run, into="main")) is DeliveryStatus.UNCHANGED


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

    async with desk_of(repo, report(repo, [worker(0, commit)])) as desk:
        done = await merge(desk, MergeAsk(strategy=Strategy.AUTO, into="main"))

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


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
import shoal.engine.merge.{module} as place
from tests.engine.merging import merged, report, worker

real, calls = place.{name}, [0]
async def deadly(*args, **more):
    calls[0] += 1
    done = await real(*args, **more) if {after} else None
    if calls[0] == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return done if {after} else await real(*args, **more)
place.{name} = deadly
repo = Path(sys.argv[1])
run = report(repo, [worker(n, c) for n, c in enumerate(sys.argv[3:])], sys.argv[2])
asyncio.run(merged(repo, run, into="main"))
"""


@pytest.mark.parametrize(
    ("module", "name", "after", "call"),
    [
        ("land", "move", False, 1),  # intended, not moved
        ("land", "move", True, 1),  # moved, not recorded
        ("merge", "delivered", False, 1),  # integrated, nothing delivered
        ("deliver", "advanced", False, 1),  # delivery intended, nothing touched
        ("deliver", "advanced", True, 1),  # files moved, branch not
        ("deliver", "move", True, 1),  # branch moved, not recorded
    ],
)
def test_killed_in_any_phase_the_same_command_finishes_the_job(
    repo: Path, module: str, name: str, after: bool, call: int
) -> None:
    run = run_of(repo, {"a": "0\n"}, {"d0/f1.txt": None, "b": "1\n"}, {"a": "2\n"})
    commits = [str(one.commit) for one in run.steps[0].worker_results]
    script = KILLED.format(module=module, name=name, after=after, call=call)
    killed = subprocess.run(
        [sys.executable, "-c", script, str(repo), run.base, *commits],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -9, killed.stderr

    done = asyncio.run(merged(repo, run, into="main"))

    assert statuses(done) == {"s1": "merged", "s0": "merged", "s2": "conflicts"}
    assert at(repo) == at(repo, BRANCH)
    assert git(repo, "rev-list", "--count", "--no-merges", f"{run.base}..main") == "2"
    assert git(repo, "status", "--porcelain") == ""
    assert (repo / "a").read_text() == "0\n"
    assert git(repo, "fsck", "--strict", "--no-dangling") == ""


async def test_a_delivery_that_was_cut_off_never_takes_a_persons_change_for_its_own(repo: Path) -> None:
    run = run_of(repo, {"a": "0\n", "README.md": "new\n"})
    script = KILLED.format(module="deliver", name="advanced", after=True, call=1)
    commit = str(run.steps[0].worker_results[0].commit)
    root = str(Path(__file__).parents[2])
    subprocess.run(
        [sys.executable, "-c", script, str(repo), run.base, commit], cwd=root, env={**os.environ, "PYTHONPATH": root}
    )
    (repo / "README.md").write_text("mine\n")

    done = await merged(repo, run, into="main")

    assert status_of(done) is DeliveryStatus.LEFT
    assert (repo / "README.md").read_text() == "mine\n"


async def undone(repo: Path, run: RunReport, *sessions: str) -> MergeReport:
    async with desk_of(repo, run) as desk:
        return await undo(desk, sessions)


@pytest.mark.parametrize("strategy", ["auto", "squash", "rebase", "octopus"])
async def test_a_session_is_taken_out_by_building_without_it(repo: Path, strategy: str) -> None:
    run = run_of(repo, {"a": "0\n"}, {"b": "1\n"}, {"c": "2\n"})
    await merged(repo, run, strategy=strategy)

    done = await undone(repo, run, "s1")
    again = await merged(repo, run, strategy=strategy)
    named = await merged(repo, run, "s1", strategy=strategy)

    assert statuses(done) == {"s0": "merged", "s2": "merged"}
    assert statuses(again) == {"s0": "merged", "s2": "merged"}
    assert again.left_out == ("s1",)
    assert statuses(named) == {"s0": "merged", "s2": "merged", "s1": "merged"}
    assert git(repo, "ls-tree", "--name-only", BRANCH).split() == ["README.md", "a", "b", "c", "d0"]


@pytest.mark.parametrize("strategy", ["auto", "squash", "rebase", "octopus"])
async def test_what_was_delivered_is_taken_out_by_a_revert(repo: Path, strategy: str) -> None:
    run = run_of(repo, {"a": "0\n"}, {"b": "1\n"})
    await merged(repo, run, into="main", strategy=strategy)
    theirs = moved_on(repo)

    done = await undone(repo, run, "s0")
    again = await merged(repo, run, into="main", strategy=strategy)

    assert status_of(done) is DeliveryStatus.DELIVERED
    assert git(repo, "merge-base", theirs, "main") == theirs
    assert git(repo, "ls-tree", "--name-only", "main").split() == ["README.md", "b", "d0", "theirs"]
    assert not (repo / "a").exists()
    assert git(repo, "status", "--porcelain") == ""
    assert status_of(again) is DeliveryStatus.UNCHANGED
    assert again.left_out == ("s0",)
    named = await merged(repo, run, "s0", into="main", strategy=strategy)
    source = str(run.steps[0].worker_results[0].commit)
    is_in_history = git(repo, "merge-base", source, theirs) == source  # git takes that for merged
    assert statuses(named)["s0"] == ("held" if is_in_history else "merged")


async def test_all_of_a_run_is_taken_out(repo: Path) -> None:
    run = run_of(repo, {"a": "0\n"}, {"b": "1\n"})
    before = tree(repo, "main")
    await merged(repo, run)

    await undone(repo, run)
    gone = git(repo, "branch", "--list", "shoal/*")
    await merged(repo, run, "s0", "s1", into="main")
    await undone(repo, run)

    assert gone == ""
    assert tree(repo, "main") == before
    assert git(repo, "branch", "--list", "agent/*").count("agent/") == 2


async def test_what_others_stand_on_or_build_over_is_not_taken_out_in_silence(repo: Path) -> None:
    one = side(repo, {"a": "1\n"})
    run = report(repo, [worker(0, one), worker(1, side(repo, {"b": "2\n"}, one))])
    with pytest.raises(BadInput, match="nothing of"):
        await undone(repo, run)
    await merged(repo, run, into="main")

    with pytest.raises(BadInput, match="s1 stands on s0"):
        await undone(repo, run, "s0")
    (repo / "b").write_text("changed since\n")
    git(repo, "commit", "-qam", "over it")
    over = at(repo)
    done = await undone(repo, run, "s1")

    assert statuses(done) == {"s1": "conflicts"}
    assert at(repo) == over
