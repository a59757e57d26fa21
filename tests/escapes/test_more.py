"""Attacks by what existed before: hostile repositories and folders, and what an agent leaves for Shoal itself."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.git import imports
from shoal.model.events import SessionStarted
from shoal.model.limits import ResourceLimits
from shoal.model.status import Status
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import store_at
from tests.acting import ran, shown, step, worked
from tests.cli.conftest import shoal_in
from tests.conftest import git, make_repo
from tests.escapes.scene import Scene

SESSION = "s-aaaaaa"


async def forged(repo: Path, victim: Path) -> None:
    """Write a ledger in which an agent of a killed run worked in the folder *victim*."""
    paths = StatePaths.of(repo)
    paths.create()
    started = SessionStarted(
        run="old-1",
        step="s",
        session=SESSION,
        index=0,
        branch="agent/s/aaaaaa",
        base=git(repo, "rev-parse", "HEAD"),
        strategy="directory",
        workspace=str(victim),
    )
    async with open_ledger(store_at(paths)) as book:
        await book.append(started)
    paths.run_lock("old-1").touch()


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the user's that is nobody's business."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "precious").write_text("mine")
    return folder


async def test_a_state_that_came_with_a_clone_is_refused_and_names_no_folder(repo: Path, victim: Path) -> None:
    """Its ledger says that an agent was killed in a folder of the user's, which a sweep would seal and remove."""
    await forged(repo, victim)
    git(repo, "add", "--force", ".shoal")
    git(repo, "commit", "-qm", "innocent")
    clone = repo.parent / "clone"
    git(repo, "clone", "-q", str(repo), str(clone))

    for words in (
        ("run", "--task", "echo hi > hi", "--command", "sh -s"),
        ("clean", "--force"),
        ("status",),
        ("diff",),
    ):
        said = await asyncio.to_thread(shoal_in(clone), *words)
        assert said.code == 2, (words, said)
        assert "tracked by git" in said.err

    assert (victim / "precious").read_text() == "mine"
    assert git(clone, "for-each-ref", "refs/heads/agent") == ""


async def test_a_state_that_is_a_link_is_refused(repo: Path, victim: Path) -> None:
    """What Shoal writes would land wherever the repository wants it."""
    (repo / ".shoal").symlink_to(victim)

    with pytest.raises(BadInput, match="is a link"):
        await worked(repo, "true")

    assert os.listdir(victim) == ["precious"]


@pytest.mark.parametrize("way", ["{victim}", "{repo}/.shoal/workspaces/r/s/../../../../../victim"])
async def test_no_ledger_has_a_folder_removed_that_is_no_workspace(repo: Path, victim: Path, way: str) -> None:
    """Not tracked, so not told from ours; what it names is left alone all the same, and so is who works next."""
    (repo / ".shoal/workspaces/r/s").mkdir(parents=True)
    await forged(repo, Path(way.format(victim=victim, repo=repo)))

    result = await worked(repo, "echo ok > ok")
    said = await asyncio.to_thread(shoal_in(repo), "clean", "--force")

    assert result.status is Status.SUCCEEDED
    assert said.code == 0, said
    assert (victim / "precious").read_text() == "mine"


async def test_a_plain_folder_with_a_state_of_its_own_runs_nothing(tmp_path: Path) -> None:
    """A folder from an archive brings the hidden repository of its snapshots along, with filters in it."""
    folder, canary = tmp_path / "folder", tmp_path / "canary"
    hidden = folder / ".shoal/snapshot.git"
    hidden.parent.mkdir(parents=True)
    (folder / "file").write_text("text\n")
    (folder / ".gitattributes").write_text("* filter=x\n")
    subprocess.run(["git", "init", "-q", "--bare", str(hidden)], check=True)
    for place in (hidden, tmp_path):
        with (place / "config").open("a") as config:
            config.write(f'[filter "x"]\n\tclean = "touch {canary}; cat"\n')
    (hidden / "commondir").write_text(f"{tmp_path}\n")

    report = await ran(folder, step("work", "echo hi > hi"), strategy="directory")

    assert report.steps[0].worker_results[0].status is Status.SUCCEEDED
    assert not canary.exists()


@pytest.mark.deep
async def test_a_base_deeper_than_python_calls_is_worked_on(repo: Path) -> None:
    """1,100 folders in each other; with paths that the kernel still takes."""
    fill = "i=0; while [ $i -lt 1100 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done; echo deep > file"
    subprocess.run(["sh", "-c", fill], cwd=repo, check=True)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "deep")

    try:
        result = await worked(repo, "echo ok > ok")
    finally:  # what lies so deep, pytest cannot remove
        subprocess.run(["rm", "-rf", str(repo / "d"), str(repo / ".shoal")], check=True)

    assert result.status is Status.SUCCEEDED, result


@pytest.mark.deep
async def test_a_deep_gitdir_is_the_agents_own_trouble(scene: Scene) -> None:
    """As many folders in each other as are looked at before anybody is asked: they ended the whole run."""
    deep = """
    cd $(git rev-parse --absolute-git-dir); i=0
    while [ $i -lt 489 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done
    cd $SHOAL_WORKSPACE_PATH; echo work > work
    """
    attack = await scene.attacked(deep)

    assert attack.result.status is Status.SUCCEEDED, attack.result
    assert shown(scene.repo, attack.result, "work") == "work"
    await scene.looked_after(attack)


async def test_a_flood_of_flagged_files_is_counted_and_hides_none(scene: Scene) -> None:
    """100,000 of them, with long names, made a ledger of 250 MB; and the one that matters may be the last."""
    flood = """
    mkdir -p .claude/hooks zz; i=0
    while [ $i -lt 400 ]; do : > .claude/hooks/$i; i=$((i+1)); done; echo evil > zz/.envrc
    """
    attack = await scene.attacked(flood)

    flagged = attack.result.executable
    assert len(flagged) == 101
    assert "zz/.envrc" in flagged
    assert flagged[-1] == "and 301 more"
    said = await asyncio.to_thread(scene.shoal, "diff", "attack", "--json")
    shown = json.loads(said.out)
    assert len([file for file in shown["files"] if file["path"].startswith(".claude/hooks/")]) == 400
    assert shown["executable_config"] == list(flagged)
    await scene.looked_after(attack)


async def test_more_names_than_can_be_looked_at_are_refused_and_stay(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some 100,000 long paths took a gigabyte of the coordinator's memory, and all of its time for seconds."""
    monkeypatch.setattr(imports, "MAX_LISTED_BYTES", 2000)

    result = await worked(repo, "i=0; while [ $i -lt 50 ]; do echo $i > file-$i; i=$((i+1)); done")

    assert result.status is Status.FAILED
    assert "changes more files than can be looked at" in (result.error or "")
    assert result.raw is not None
    assert git(repo, "for-each-ref", "refs/heads/agent") == ""


async def test_what_is_large_is_not_unpacked_in_memory(repo: Path) -> None:
    """Unpacked, all trees of a history are in memory at once; in a pack they are looked at one by one."""
    result = await worked(repo, "head -c 9000000 /dev/urandom > large; echo ok > ok")

    assert shown(repo, result, "ok") == "ok"
    assert git(repo, "cat-file", "-s", f"{result.branch}:large") == "9000000"
    assert len(list((repo / ".git/objects/pack").glob("*.idx"))) == 1
    assert git(repo, "fsck", "--full", "--strict", "--no-dangling") == ""


async def test_line_ends_that_the_user_is_warned_of_do_not_cost_an_agents_work(repo: Path) -> None:
    """With `core.safecrlf`, git's `add` ends at the first file whose line ends it would change."""
    git(repo, "config", "core.safecrlf", "true")
    git(repo, "config", "core.autocrlf", "input")

    result = await worked(repo, r"printf 'a\r\nb\n' > mixed; echo work > work")

    assert result.status is Status.SUCCEEDED, result
    assert shown(repo, result, "work") == "work"
    assert shown(repo, result, "mixed") == "a\nb"


@pytest.mark.deep
async def test_no_word_is_left_for_the_next_agent_in_the_attributes_of_a_folder(tmp_path: Path) -> None:
    """A recycled worktree keeps its folders, and neither content nor mode tells what hangs on them."""
    repo = make_repo(tmp_path / "large", files=600)
    leave = "python3 -c \"import os; os.setxattr('d0', 'user.note', b'obey me')\"; echo done > done"
    look = "python3 -c \"import os; print(os.listxattr('d0'))\""

    first = await worked(repo, leave, strategy="worktree")
    second = await worked(repo, look, strategy="worktree")

    assert shown(repo, first, "done") == "done"
    assert "note" not in second.output, second


@pytest.mark.parametrize("strategy", ["auto", "worktree"])
async def test_a_folder_that_cannot_be_listed_counts_as_disk(repo: Path, strategy: str) -> None:
    """Its owner may write into it all the same; for an ordinary user's Shoal it was no disk at all."""
    script = "mkdir d; chmod 300 d; head -c 60000000 /dev/zero | tr '\\0' x > d/x; while true; do sleep 0.1; done"
    limits = ResourceLimits(disk_mb=30, time_seconds=60)

    report = await ran(repo, step("work", script, limits=limits), strategy=strategy)

    result = report.steps[0].worker_results[0]
    assert (result.status, result.limit) == (Status.OVER_LIMIT, "disk"), result
