"""The list of a user's repositories: pointers are used only if their target exists."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from shoal.store.known_repositories import list_repositories, register
from shoal.store.paths import StatePaths

State = Mapping[str, str]


def made(root: Path) -> StatePaths:
    """Make a state folder with a ledger."""
    paths = StatePaths(root / ".shoal")
    paths.root.mkdir(parents=True)
    paths.ledger.touch()
    return paths


@pytest.fixture
def environ(tmp_path: Path) -> State:
    """A home of our own."""
    return {"HOME": str(tmp_path / "home")}


def folder(environ: State) -> Path:
    return Path(environ["HOME"]) / ".local/state/shoal/repositories"


def test_each_repository_is_listed_once(tmp_path: Path, environ: State) -> None:
    both = [made(tmp_path / "a"), made(tmp_path / "b\nü")]
    for paths in [*both, *both]:
        register(paths, environ)

    assert list_repositories(environ) == both
    assert len(list(folder(environ).iterdir())) == 2


def test_a_repository_that_has_gone_is_forgotten_and_a_moved_one_is_known_again(tmp_path: Path, environ: State) -> None:
    register(made(tmp_path / "a"), environ)
    (tmp_path / "a").rename(tmp_path / "moved")

    assert list_repositories(environ) == []
    assert list(folder(environ).iterdir()) == []
    register(StatePaths(tmp_path / "moved/.shoal"), environ)
    assert [paths.root for paths in list_repositories(environ)] == [tmp_path / "moved/.shoal"]


def test_the_place_of_the_list_is_the_users_own(
    tmp_path: Path, environ: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = made(tmp_path / "a")
    given = {**environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    register(paths, given)
    assert list_repositories(given) == [paths]
    assert list_repositories(environ) == []

    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # as of `sudo`, in a home that is not root's
    register(paths, given)
    assert list_repositories(given) == []


@pytest.mark.parametrize("content", [b"", b"/etc", b"relative/.shoal", b"/x/../.shoal", b"/\0/.shoal", b"/" * 9000])
def test_what_points_nowhere_is_not_believed(tmp_path: Path, environ: State, content: bytes) -> None:
    register(made(tmp_path / "a"), environ)
    (folder(environ) / "0123").write_bytes(content)
    (folder(environ) / "4567").symlink_to(tmp_path / "a/.shoal/ledger.db")
    os.mkfifo(folder(environ) / "89ab")

    assert [paths.root for paths in list_repositories(environ)] == [tmp_path / "a/.shoal"]


def test_a_state_folder_behind_a_link_is_not_believed(tmp_path: Path, environ: State) -> None:
    made(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/.shoal").symlink_to(tmp_path / "a/.shoal")
    register(StatePaths(tmp_path / "b/.shoal"), environ)

    assert list_repositories(environ) == []


def test_without_a_home_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in ("", "relative", str(tmp_path / "file" / "below")):
        nowhere = {"HOME": home, "XDG_STATE_HOME": str(tmp_path / "file" / "state")}
        register(made(tmp_path / f"a{len(home)}"), nowhere)
        assert list_repositories(nowhere) == []
