"""Merging beside the checkout: both sides or the files in conflict, and nobody's programs."""

import os
from pathlib import Path

import pytest

from shoal.git.merge import Conflicted, Merged, combined, merged, workbench
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

    whole = await combined(repository, (one, two), "both")
    clash = await combined(repository, (one, two, other), "all")

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

    assert await merged(repository, base, one, "m") == Merged(one)
    assert await merged(repository, one, base, "m") == Merged(one)


async def test_no_driver_of_the_users_runs(repo: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    git(repo, "config", "merge.evil.driver", f"touch {canary}")
    (repo / ".git/info/attributes").write_text("* merge=evil\n")
    start = committed(repo, "main", **{".gitattributes": "* merge=evil\n", "a": "0\n" * 9})
    one, two = committed(repo, start, a="1\n" + "0\n" * 8), committed(repo, start, a="0\n" * 8 + "2\n")
    repository = await inspect(repo, {})

    await merged(repository, one, two, "m")

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
        await merged(repository, base, base, "m")
        assert held.exists()

    assert {path.name for path in tmp_path.iterdir()} == {"shoal-merge-fresh", "other", repo.name}
