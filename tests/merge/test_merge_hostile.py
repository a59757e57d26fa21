"""Whatever agents committed and the user configured: merging, delivering and undoing start no programs."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.merge.merge import preview
from shoal.merge.undo import undo
from shoal.model.merge import DeliveryStatus, MergeReport
from tests.conftest import git
from tests.merge.merging import canary, merged, open_merge_context, report, run_of, side, statuses, worker

ATTRIBUTES = "* merge=evil diff=evil ident\n*.c filter=evil\n*.tex working-tree-encoding=UTF-16\n"
MODULES = '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c touch%20sprung\n\tupdate = !touch sprung\n'
LINES = "".join(f"line {number}\n" for number in range(20))
MORE_KEYS = (
    "diff.evil.textconv",
    "diff.evil.command",
    "merge.default.driver",
    "credential.helper",
    "core.alternateRefsCommand",
    "pager.merge",
    "pager.diff",
    "sequence.editor",
    "uploadpack.packObjectsHook",
    "merge.tool",
    "gpg.ssh.program",
)


@pytest.fixture
def text(repo: Path) -> None:
    """A file that several can change."""
    (repo / "text").write_text(LINES)
    git(repo, "add", "text")
    git(repo, "commit", "-qm", "text")


def trapped(repo: Path, tmp_path: Path) -> Callable[[], bool]:
    """Set all traps, in the user's configuration, in hooks and in attributes; gives whether one was sprung."""
    sprung = canary(repo, tmp_path)
    touch = str(tmp_path / "touch.sh")
    for key in MORE_KEYS:
        git(repo, "config", key, touch)
    git(repo, "config", "merge.default", "evil")
    git(repo, "config", "filter.evil.required", "true")
    (repo / ".git/info/attributes").write_text("* merge=evil diff=evil\n")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in ("post-checkout", "post-merge", "reference-transaction", "post-index-change", "update", "proc-receive"):
        (hooks / hook).symlink_to(touch)
    git(repo, "config", "core.hooksPath", str(hooks))
    git(repo, "config", "extensions.worktreeConfig", "true")
    (repo / ".git/config.worktree").write_text(f"[core]\n\tfsmonitor = {touch}\n")
    (tmp_path / "sprung").unlink(missing_ok=True)
    return sprung


def status_of(done: MergeReport) -> DeliveryStatus:
    assert done.delivery is not None
    return done.delivery.status


@pytest.mark.usefixtures("text")
def test_the_traps_are_real(repo: Path, tmp_path: Path) -> None:
    commit = side(repo, {"text": f"top\n{LINES}"})
    is_sprung = trapped(repo, tmp_path)

    subprocess.run(["git", "merge", "-q", "--no-edit", commit], cwd=repo, capture_output=True, check=False)

    assert is_sprung()


@pytest.mark.usefixtures("text")
@pytest.mark.parametrize(
    "strategy", ["auto", *(pytest.param(name, marks=pytest.mark.deep) for name in ("squash", "rebase", "octopus"))]
)
async def test_a_whole_merge_and_its_undoing_start_nothing(repo: Path, tmp_path: Path, strategy: str) -> None:
    run = run_of(
        repo,
        {"text": f"top\n{LINES}"},
        {"text": f"{LINES}end\n"},
        {"text": f"{LINES}other\n"},
        {".gitmodules": MODULES, "b": "1\n"},
    )
    is_sprung = trapped(repo, tmp_path)
    async with open_merge_context(repo, run) as context:
        await preview(context)

    done = await merged(repo, run, into="main", strategy=strategy)
    async with open_merge_context(repo, run) as context:
        undone = await undo(context, ["s3"])

    told = statuses(done)
    assert (list(told.values()).count("merged"), told["s3"]) == (3, "merged")
    assert (status_of(done), status_of(undone)) == (DeliveryStatus.DELIVERED, DeliveryStatus.DELIVERED)
    assert not (repo / ".gitmodules").exists()
    assert not is_sprung()


@pytest.mark.usefixtures("text")
async def test_attributes_of_an_agent_bring_no_program_of_the_users_to_life(repo: Path, tmp_path: Path) -> None:
    run = run_of(
        repo,
        {".gitattributes": ATTRIBUTES, "text": f"top\n{LINES}", "main.c": "$Id$\n"},
        {"text": f"{LINES}end\n", "other.c": "x\n"},
    )
    is_sprung = trapped(repo, tmp_path)

    done = await merged(repo, run, into="main")

    assert statuses(done) == {"s0": "merged", "s1": "merged"}
    assert status_of(done) is DeliveryStatus.LEFT, "only the user may start a filter"
    assert "filter 'evil'" in (done.delivery.message if done.delivery else "")
    assert not (repo / "main.c").exists()
    assert not is_sprung()


@pytest.mark.parametrize("is_link_first", [True, False])
async def test_links_lead_nowhere_whichever_session_comes_first(
    repo: Path, tmp_path: Path, is_link_first: bool
) -> None:
    """One session makes a link out of the repository, another writes below it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    both = committed_link(repo, "docs", str(outside)), side(repo, {"docs/key": "evil\n"})
    hidden = committed_link(repo, "home", "../../../../etc")
    commits = (*(both if is_link_first else both[::-1]), hidden)

    run = report(repo, [worker(index, commit) for index, commit in enumerate(commits)])
    done = await merged(repo, run, "s0", "s1", "s2", into="main")

    assert statuses(done) == {"s0": "merged", "s1": "conflicts", "s2": "merged"}
    assert status_of(done) is DeliveryStatus.DELIVERED
    assert list(outside.iterdir()) == []
    assert (repo / "home").readlink() == Path("../../../../etc")


def committed_link(repo: Path, name: str, target: str) -> str:
    index = {"GIT_INDEX_FILE": str(repo / ".git/side")}
    git(repo, "read-tree", "main", **index)
    (repo / ".git/blob").write_text(target)
    oid = git(repo, "hash-object", "-w", "--no-filters", str(repo / ".git/blob"))
    git(repo, "update-index", "--add", "--cacheinfo", f"120000,{oid},{name}", **index)
    return git(repo, "commit-tree", git(repo, "write-tree", **index), "-p", "main", "-m", "link")
