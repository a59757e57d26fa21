"""Which kinds of repository are supported, and the errors for others."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.errors import BadInput, BadRepository
from shoal.git.refs import aliases, list_refs, refuse_blocked_names
from shoal.git.repository import dirt, inspect, resolve
from shoal.runs.context import exclude_state
from tests.conftest import git, make_repo


async def test_a_plain_repository_is_found_from_a_folder_below(repo: Path) -> None:
    found = await inspect(repo / "d0", os.environ)

    assert (found.top, found.home, found.git) == (repo, repo, repo / ".git")
    assert found.lenders == (repo / ".git/objects",)
    assert await resolve(found, None) == git(repo, "rev-parse", "HEAD")
    assert found.branch == "main"


@pytest.mark.parametrize("sign", ["\f", "\x85", "\u2028"])
async def test_a_folder_may_have_any_name_without_a_line_break(tmp_path: Path, sign: str) -> None:
    odd = make_repo(tmp_path / f"odd{sign}name")
    newline = make_repo(tmp_path / "new\nline")

    assert (await inspect(odd, os.environ)).git == odd / ".git"
    with pytest.raises(BadRepository, match="contains a line break"):
        await inspect(newline, os.environ)


async def test_what_is_no_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRepository, match="git init"):
        await inspect(tmp_path, os.environ)


async def test_a_bare_repository_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "bare.git")

    with pytest.raises(BadRepository, match="bare"):
        await inspect(tmp_path / "bare.git", os.environ)


async def test_the_inside_of_a_gitdir_is_refused(repo: Path) -> None:
    with pytest.raises(BadRepository, match=r"inside of a \.git folder"):
        await inspect(repo / ".git", os.environ)


async def test_an_empty_repository_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "empty")
    found = await inspect(tmp_path / "empty", os.environ)

    with pytest.raises(BadRepository, match="no commit yet"):
        await resolve(found, None)


@pytest.mark.parametrize("ref", ["nowhere", "-", "--all", "", "HEAD:README.md", "a..b", "x\0y"])
async def test_a_base_that_is_no_commit_is_refused(repo: Path, ref: str) -> None:
    found = await inspect(repo, os.environ)

    with pytest.raises(BadInput):
        await resolve(found, ref)


async def test_a_tag_and_a_branch_are_bases(repo: Path) -> None:
    git(repo, "tag", "-a", "v1", "-m", "one")
    found = await inspect(repo, os.environ)

    assert await resolve(found, "v1") == await resolve(found, "main") == git(repo, "rev-parse", "HEAD")


async def test_a_linked_worktree_shares_the_state_of_the_main_checkout(repo: Path, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    git(tmp_path / "side", "commit", "-q", "--allow-empty", "-m", "side")

    found = await inspect(tmp_path / "side", os.environ)

    assert (found.top, found.home, found.git) == (tmp_path / "side", repo, repo / ".git")
    assert await resolve(found, None) == git(tmp_path / "side", "rev-parse", "HEAD")
    assert found.branch == "side"


async def test_a_worktree_of_a_bare_repository_does_not_show_our_state(repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
    git(tmp_path / "bare.git", "worktree", "add", "-q", str(tmp_path / "tree"))
    (tmp_path / "tree/.shoal").mkdir()
    (tmp_path / "tree/.shoal/ledger.db").write_text("")

    exclude_state(await inspect(tmp_path / "tree", os.environ))

    assert git(tmp_path / "tree", "status", "--porcelain") == ""


async def test_a_branch_may_have_signs_that_only_python_takes_for_line_breaks(repo: Path) -> None:
    git(repo, "branch", "agent/a\u2028b")
    git(repo, "symbolic-ref", "refs/heads/agent/c\x85d", "refs/heads/main")
    found = await inspect(repo, os.environ)

    head = git(repo, "rev-parse", "HEAD")
    assert await list_refs(found, "refs/heads/agent") == dict.fromkeys(
        ["refs/heads/agent/a\u2028b", "refs/heads/agent/c\x85d"], head
    )
    assert await aliases(found, "refs/heads/main") == {"refs/heads/main", "refs/heads/agent/c\x85d"}


async def test_a_sha256_repository_is_known_as_one(tmp_path: Path) -> None:
    found = await inspect(make_repo(tmp_path / "long", 1, format="--object-format=sha256"), os.environ)

    assert found.object_format == "sha256"
    assert len(await resolve(found, None)) == 64


async def test_all_lenders_of_objects_are_found(repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--shared", str(repo), "one")
    git(tmp_path, "clone", "-q", "--shared", str(tmp_path / "one"), "two")

    found = await inspect(tmp_path / "two", os.environ)

    assert found.lenders == tuple(tmp_path / name / ".git/objects" for name in ("two", "one", "repo"))


async def test_uncommitted_changes_are_counted_without_running_a_filter(repo: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (repo / ".gitattributes").write_text("* filter=evil\n")
    git(repo, "config", "filter.evil.clean", f"touch {canary}; cat")
    git(repo, "config", "core.fsmonitor", f"touch {canary}")
    (repo / "README.md").write_text("scratch!\n")

    assert await dirt(await inspect(repo, os.environ)) == 2
    assert not canary.exists()


async def test_the_users_identity_is_taken_from_their_configuration(repo: Path) -> None:
    git(repo, "config", "user.name", 'Ada "L"')
    git(repo, "config", "user.email", "ada@example.org")

    found = await inspect(repo, {})

    assert (found.identity.name, found.identity.email) == ('Ada "L"', "ada@example.org")


@pytest.mark.parametrize("name", ["agent", "shoal"])
async def test_a_branch_where_our_refs_go_is_said_at_once(repo: Path, name: str) -> None:
    git(repo, "branch", name)

    with pytest.raises(BadRepository, match="rename it"):
        await refuse_blocked_names(await inspect(repo, os.environ))


async def test_git_variables_of_a_hook_are_not_followed(
    repo: Path, new_repo: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(new_repo("other") / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent")

    assert (await inspect(repo, os.environ)).top == repo
