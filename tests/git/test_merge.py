"""Merging outside the checkout: both sides or the conflicting files, and no programs."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from shoal.git.merge import Conflicted, Merged, combine_commits, merge_commits, workbench
from shoal.git.repository import inspect
from tests.conftest import git


def committed(repo: Path, start: str, **files: str) -> str:
    git(repo, "checkout", "-q", "--detach", start)
    for name, text in files.items():
        (repo / name).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "side")
    return git(repo, "rev-parse", "HEAD")


async def test_two_sides_become_one_commit_and_a_conflict_is_named(repo: Path) -> None:
    one, two = committed(repo, "main", a="1\n"), committed(repo, "main", b="2\n")
    other = committed(repo, "main", a="3\n")
    repository = await inspect(repo, {})

    whole = await combine_commits(repository, (one, two), "both")
    clash = await combine_commits(repository, (one, two, other), "all")

    assert isinstance(whole, Merged)
    assert git(repo, "show", f"{whole.commit}:a") == "1"
    assert git(repo, "show", f"{whole.commit}:b") == "2"
    assert git(repo, "log", "-1", "--format=%P", whole.commit).split() == [one, two]
    assert isinstance(clash, Conflicted)
    assert clash.paths == ("a",)


async def test_a_side_that_holds_the_other_is_the_answer(repo: Path) -> None:
    base = git(repo, "rev-parse", "HEAD")
    one = committed(repo, "main", a="1\n")
    repository = await inspect(repo, {})

    assert await merge_commits(repository, base, one, "m") == Merged(one)
    assert await merge_commits(repository, one, base, "m") == Merged(one)


async def test_no_driver_of_the_users_runs(repo: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    git(repo, "config", "merge.evil.driver", f"touch {canary}")
    (repo / ".git/info/attributes").write_text("* merge=evil\n")
    start = committed(repo, "main", **{".gitattributes": "* merge=evil\n", "a": "0\n" * 9})
    one, two = committed(repo, start, a="1\n" + "0\n" * 8), committed(repo, start, a="0\n" * 8 + "2\n")
    repository = await inspect(repo, {})

    await merge_commits(repository, one, two, "m")

    assert not canary.exists()


async def test_what_a_killed_merge_left_is_swept_and_what_another_holds_stays(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("shoal-merge-dead", "shoal-merge-fresh", "other"):
        (tmp_path / name / "git").mkdir(parents=True)
    os.utime(tmp_path / "shoal-merge-dead", (0, 0))
    os.utime(tmp_path / "other", (0, 0))
    repository = await inspect(repo, {})
    base = git(repo, "rev-parse", "main")

    async with workbench(repository):
        (held,) = set(tmp_path.glob("shoal-merge-*")) - {tmp_path / "shoal-merge-fresh"}
        os.utime(held, (0, 0))
        await merge_commits(repository, base, base, "m")
        assert held.exists()

    assert {path.name for path in tmp_path.iterdir()} == {"shoal-merge-fresh", "other", repo.name}


def side_of(repo: Path, files: int, text: str) -> str:
    """Commit so many new files on the base by one process."""
    base = git(repo, "rev-parse", "main")
    start = f"commit refs/side\ncommitter A <a@a> 1 +0000\ndata 1\ns\nfrom {base}\n"
    each = "".join(f"M 100644 inline d{n % 50}/{'x' * 150}{n}\ndata {len(text)}\n{text}\n" for n in range(files))
    command = ["git", "-C", str(repo), "fast-import", "--quiet", "--force"]
    subprocess.run(command, input=(start + each).encode(), check=True)
    return git(repo, "rev-parse", "refs/side")


async def test_three_thousand_conflicts_are_read_in_a_moment(repo: Path) -> None:
    """They took 40 s of Python: with every chunk of the answer all that had come before was read again."""
    one, two = side_of(repo, 3000, "1"), side_of(repo, 3000, "2")

    async with workbench(await inspect(repo, {})) as bench:
        began = time.process_time()
        tried = await bench.try_merge(one, two)
        spent = time.process_time() - began

    assert isinstance(tried, Conflicted)
    assert len(tried.paths) == 3000
    assert spent < 1.5
