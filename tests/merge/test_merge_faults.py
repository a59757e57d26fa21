"""Whatever happens in the middle of a merge, no work is lost, and the same command continues."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.bench_merge import branched
from shoal.errors import BadInput
from shoal.git.deliver import MARK
from shoal.git.refs import Move, move
from shoal.merge import deliver
from shoal.model.merge import DeliveryStatus, MergeReport
from shoal.model.repository import Repository
from shoal.model.results import RunReport
from tests.conftest import git, make_repo
from tests.merge.merging import RUN, merged, report, run_of, side, statuses, tree, undone, worker

BRANCH = f"shoal/{RUN}"
ROOT = Path(__file__).parents[2]
BIG = "".join(f"big {number}\n" for number in range(40_000))
NEW = {"a": "new\n", "d0/f1.txt": None, "d0/f2.txt": "changed\n", "m": BIG, "z": "last\n"}

KILLED = """
import asyncio, os, resource, signal, sys
from pathlib import Path
import {module} as place
from tests.merge.merging import merged, report, undone, worker

async def quietly(work):
    try:
        await work
    except Exception:
        pass

real, calls = place.{name}, [0]
async def deadly(*args, **more):
    calls[0] += {counts}
    if calls[0] == {call} and not {after}:
        {before}
        os.kill(os.getpid(), signal.SIGKILL)
    done = await real(*args, **more)
    if calls[0] == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
place.{name} = deadly
repo = Path(sys.argv[1])
run = report(repo, [worker(n, c) for n, c in enumerate(sys.argv[3:])], sys.argv[2])
asyncio.run({work})
"""
MERGE = 'merged(repo, run, into="main")'
UNDO = 'undone(repo, run, "s0")'
# Git gets a file size limit, by which it dies in the middle of a file as by a kill: no lock and no file is put right.
CUT_OFF = "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, -1)); await quietly(real(*args, **more))"


def killed(repo: Path, run: RunReport, module: str, name: str, **more: object) -> None:
    """Do some work in a process of its own that is killed, with `SIGKILL`, at a call of a function."""
    facts = {"after": False, "call": 1, "counts": 1, "before": "pass", "work": MERGE, **more}
    script = KILLED.format(module=module, name=name, **facts)
    commits = [str(one.commit) for one in run.steps[0].worker_results]
    done = subprocess.run(
        [sys.executable, "-c", script, str(repo), run.base, *commits],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -9, done.stderr


def cut_off(repo: Path, run: RunReport) -> None:
    """Let the git die that brings the user's files on, in the middle of a file, and us with it."""
    counts = "('-u' in args)"
    killed(repo, run, "shoal.git.deliver", "_git", counts=counts, before=CUT_OFF)
    assert (repo / "a").read_text() == "new\n"
    assert 0 < (repo / "m").stat().st_size < len(BIG)
    assert not (repo / "z").exists()
    assert (repo / ".git/index.lock").read_bytes() == MARK


def status_of(done: MergeReport) -> DeliveryStatus:
    assert done.delivery is not None
    return done.delivery.status


def assert_sound(repo: Path) -> None:
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "fsck", "--strict", "--no-dangling") == ""
    assert list((repo / ".git").glob("index-shoal-*")) == []
    assert not (repo / ".git/index.lock").exists()


@pytest.mark.deep
def test_a_delivery_that_was_cut_off_in_the_middle_of_a_file_is_finished(repo: Path) -> None:
    run = run_of(repo, NEW, {"b": "1\n"})
    cut_off(repo, run)

    done = asyncio.run(merged(repo, run, into="main"))

    assert status_of(done) is DeliveryStatus.DELIVERED
    assert tree(repo, "main") == tree(repo, BRANCH)
    assert ((repo / "m").read_text(), (repo / "z").read_text()) == (BIG, "last\n")
    assert not (repo / "d0/f1.txt").exists()
    assert_sound(repo)


@pytest.mark.deep
@pytest.mark.parametrize(
    "path",
    ["m", "d0/f1.txt", *(pytest.param(path, marks=pytest.mark.deep) for path in ("z", "d0/f2.txt", "README.md"))],
)
def test_what_a_person_wrote_since_then_is_never_taken_for_ours(repo: Path, path: str) -> None:
    run = run_of(repo, NEW)
    cut_off(repo, run)
    (repo / path).write_text("mine\n")

    done = asyncio.run(merged(repo, run, into="main"))

    assert status_of(done) is DeliveryStatus.LEFT
    assert (repo / path).read_text() == "mine\n"
    assert git(repo, "rev-parse", "main") == run.base
    assert not (repo / ".git/index.lock").exists(), "the user's git can go on"


def test_a_lock_of_another_git_is_not_ours_to_take_away(repo: Path) -> None:
    run = run_of(repo, {"a": "0\n"})
    (repo / ".git/index.lock").write_bytes(MARK[:-1] + b"!")

    assert status_of(asyncio.run(merged(repo, run, into="main"))) is DeliveryStatus.LEFT
    assert (repo / ".git/index.lock").exists()


UNDOING = [
    ("shoal.merge.deliver", "move", False),  # intended, not moved
    ("shoal.merge.deliver", "move", True),  # moved, not recorded
    ("shoal.merge.undo", "deliver", False),  # reverted on our branch, the user's not touched
    ("shoal.merge.deliver", "advance_checkout", False),  # delivery intended, nothing touched
    ("shoal.merge.deliver", "advance_checkout", True),  # files moved, branch not
    ("shoal.merge.deliver", "_record", False),  # branch moved, not recorded
]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("module", "name", "after", "is_delivered"),
    [
        *((*one, True) for one in UNDOING[2:5:2]),
        *(pytest.param(*one, True, marks=pytest.mark.deep) for one in (*UNDOING[:2], *UNDOING[3::2])),
        *((*one, False) for one in UNDOING[1:2]),
        *(pytest.param(*one, False, marks=pytest.mark.deep) for one in UNDOING[:1]),
    ],
)
def test_killed_while_it_takes_work_out_the_same_command_finishes(
    repo: Path, module: str, name: str, after: bool, is_delivered: bool
) -> None:
    run = run_of(repo, {"a": "0\n"}, {"b": "1\n"})
    asyncio.run(merged(repo, run, into="main" if is_delivered else None))
    killed(repo, run, module, name, after=after, work=UNDO)

    done = asyncio.run(undone(repo, run, "s0"))

    assert statuses(done) == {"s1": "merged"}

    where = "main" if is_delivered else BRANCH
    assert git(repo, "ls-tree", "--name-only", where).split() == ["README.md", "b", "d0"]
    assert git(repo, "log", "--format=%s", where).count("Revert") == int(is_delivered)
    assert git(repo, "branch", "--list", "agent/*").count("agent/") == 2
    assert_sound(repo)
    again = asyncio.run(merged(repo, run, into="main"))
    assert again.left_out == ("s0",)
    assert not (repo / "a").exists()


@pytest.mark.deep
def test_a_revert_that_was_cut_off_goes_on_top_of_what_came_since(repo: Path) -> None:
    run = run_of(repo, {"a": "0\n"}, {"b": "1\n"})
    asyncio.run(merged(repo, run, into="main"))
    killed(repo, run, "shoal.merge.undo", "deliver", work="undone(repo, run)")
    user_commits(repo)

    done = asyncio.run(undone(repo, run))
    again = asyncio.run(undone(repo, run))

    assert (status_of(done), statuses(done), again.delivery) == (DeliveryStatus.DELIVERED, {}, None)
    assert git(repo, "ls-tree", "--name-only", "main").split() == ["README.md", "d0", "theirs"]
    assert_sound(repo)


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["squash", "rebase", "octopus"])
@pytest.mark.parametrize(("module", "name", "after"), UNDOING)
def test_killed_in_any_phase_of_any_strategy(repo: Path, strategy: str, module: str, name: str, after: bool) -> None:
    run = run_of(repo, {"a": "0\n"}, {"d0/f1.txt": None, "b": "1\n"}, {"a": "2\n"})
    into = f'merged(repo, run, into="main", strategy="{strategy}")'
    killed(repo, run, module.replace(".undo", ".merge"), name, after=after, work=into)

    done = asyncio.run(merged(repo, run, into="main", strategy=strategy))

    assert statuses(done) == {"s1": "merged", "s0": "merged", "s2": "conflicts"}
    assert git(repo, "rev-parse", "main") == git(repo, "rev-parse", BRANCH)
    assert git(repo, "ls-tree", "-r", "--name-only", "main").split()[:3] == ["README.md", "a", "b"]
    assert_sound(repo)


Meanwhile = Callable[[Path], object]


def user_commits(repo: Path) -> None:
    (repo / "theirs").write_text("theirs\n")
    git(repo, "add", "theirs")
    git(repo, "commit", "-qm", "theirs")


def user_rebases(repo: Path) -> None:
    user_commits(repo)
    git(repo, "switch", "-q", "-c", "up", "main~1")
    (repo / "theirs").write_text("other\n")
    git(repo, "add", "theirs")
    git(repo, "commit", "-qm", "other")
    git(repo, "switch", "-q", "main")
    subprocess.run(["git", "rebase", "-q", "up"], cwd=repo, capture_output=True, check=False)
    assert (repo / ".git/rebase-merge").is_dir()


def user_switches(repo: Path) -> None:
    git(repo, "switch", "-q", "-c", "elsewhere")
    user_commits(repo)


def user_edits(repo: Path) -> None:
    (repo / "README.md").write_text("mine\n")


async def merged_while(repo: Path, run: RunReport, happens: Meanwhile) -> MergeReport:
    """Merge into main, and let something happen once all is combined and nothing delivered."""
    left = [happens]

    async def meanwhile(commit: str) -> str | None:
        if left:
            left.pop()(repo)
        return None

    return await merged(repo, run, into="main", verify=meanwhile)


@pytest.mark.parametrize(
    ("happens", "status", "names"),
    [
        (user_commits, DeliveryStatus.DELIVERED, "README.md a d0 theirs"),
        (user_switches, DeliveryStatus.DELIVERED, "README.md a d0"),
        (user_rebases, DeliveryStatus.LEFT, "README.md d0 theirs"),
        (user_edits, DeliveryStatus.LEFT, "README.md d0"),
    ],
)
async def test_the_user_goes_on_working_meanwhile(
    repo: Path, happens: Meanwhile, status: DeliveryStatus, names: str
) -> None:
    run = run_of(repo, {"a": "0\n"})

    done = await merged_while(repo, run, happens)

    assert status_of(done) is status
    assert git(repo, "ls-tree", "--name-only", "main").split() == names.split()
    assert git(repo, "show", f"{BRANCH}:a") == "0"
    assert (repo / "a").exists() == (status is DeliveryStatus.DELIVERED and happens is not user_switches)
    if happens is user_switches:
        assert git(repo, "status", "--porcelain") == ""
        assert git(repo, "symbolic-ref", "--short", "HEAD") == "elsewhere"
    if happens is user_edits:
        assert (repo / "README.md").read_text() == "mine\n"


@pytest.mark.parametrize("what", ["rewritten", "deleted"])
async def test_a_branch_that_goes_away_meanwhile_stays_as_the_user_left_it(repo: Path, what: str) -> None:
    git(repo, "switch", "-q", "-c", "elsewhere")
    other = git(repo, "commit-tree", tree(repo, "main"), "-m", "another root")
    run = run_of(repo, {"a": "0\n"})
    words = ("-d", "refs/heads/main") if what == "deleted" else ("refs/heads/main", other)

    with pytest.raises(BadInput, match="no branch 'main'" if what == "deleted" else "started from"):
        await merged_while(repo, run, lambda repo: git(repo, "update-ref", *words))

    left = git(repo, "for-each-ref", "--format=%(objectname)", "refs/heads/main")
    assert left == ("" if what == "deleted" else other)
    assert git(repo, "show", f"{BRANCH}:a") == "0"
    assert git(repo, "branch", "--list", "agent/*")
    assert_sound(repo)


async def test_a_branch_that_moves_at_the_last_moment_gets_its_files_back(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(repo, {"a": "0\n"})
    theirs = side(repo, {"theirs": "x\n"})

    async def late(repository: Repository, moves: list[Move]) -> bool:
        if any(ref.ref == "refs/heads/main" for ref in moves):
            git(repo, "update-ref", "refs/heads/main", theirs)
        return await move(repository, moves)

    monkeypatch.setattr(deliver, "move", late)
    done = await merged(repo, run, into="main")

    assert status_of(done) is DeliveryStatus.LEFT
    assert git(repo, "rev-parse", "main") == theirs
    assert not (repo / "a").exists()
    assert git(repo, "diff", "--name-only", run.base) == ""


@pytest.mark.deep
async def test_a_hundred_branches_beside_a_checkout_that_stays_byte_for_byte(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "large", files=5000)
    workers = [worker(number, commit) for number, commit in enumerate(branched(repo, 100))]
    run = report(repo, workers)
    watched = [repo / ".git" / name for name in ("HEAD", "index", "config", "refs/heads/main", "logs/HEAD")]
    before = {place: (place.read_bytes(), place.stat().st_mtime_ns) for place in watched}
    files = {place: place.stat().st_mtime_ns for place in repo.glob("d*/**/*")}

    done = await merged(repo, run)

    assert {place: (place.read_bytes(), place.stat().st_mtime_ns) for place in watched} == before
    assert {place: place.stat().st_mtime_ns for place in repo.glob("d*/**/*")} == files
    told = statuses(done)
    assert (list(told.values()).count("merged"), list(told.values()).count("conflicts")) == (90, 10)
    for one in done.results:
        if one.status.value == "conflicts":
            partner = (
                f"s{(int(one.session[1:]) + 90) % 180 if int(one.session[1:]) < 90 else int(one.session[1:]) - 90}"
            )
            assert {partner} == {name for conflict in one.conflicts for name in conflict.partners}
            assert len([path for conflict in one.conflicts for path in conflict.paths]) == 3
    git(repo, "worktree", "add", "-q", "--detach", str(tmp_path / "theirs"), "main")
    for one in done.results:
        if told[one.session] == "merged":
            git(tmp_path / "theirs", "merge", "-q", "--no-ff", "--no-edit", str(one.source))
    assert tree(repo, BRANCH) == tree(tmp_path / "theirs", "HEAD")

    delivered = await merged(repo, run, into="main")
    assert status_of(delivered) is DeliveryStatus.DELIVERED
    assert_sound(repo)
