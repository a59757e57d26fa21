"""Everything is below `.shoal`, for this user only."""

import stat
from pathlib import Path

import pytest

from shoal.errors import BadInput, BadRepository
from shoal.store.paths import StatePaths


def test_folders_are_private_and_made_once(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)

    paths.create()
    (paths.sessions / "kept").touch()
    paths.create()

    folders = [path for path in (paths.root, *paths.root.iterdir()) if path.is_dir()]
    assert len(folders) == 10
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert (paths.sessions / "kept").exists()


def test_names_are_those_of_the_design(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path / ".shoal")

    assert paths.workspace("r", "s", 2) == tmp_path / ".shoal/workspaces/r/s/worker_2"
    assert paths.session_db("x") == tmp_path / ".shoal/sessions/x.db"
    assert paths.run_lock("r") == tmp_path / ".shoal/runs/r.lock"
    assert paths.ledger == tmp_path / ".shoal/ledger.db"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/etc", "a\0b"])
def test_no_name_leaves_its_folder(tmp_path: Path, name: str) -> None:
    paths = StatePaths.of(tmp_path)

    for place in (paths.session_db, paths.session_dir, paths.run_lock, lambda one: paths.workspace("r", one, 0)):
        with pytest.raises(BadInput):
            place(name)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / ".shoal").touch()

    with pytest.raises(BadRepository, match=r"\.shoal"):
        StatePaths.of(tmp_path).create()


def test_a_path_that_no_database_can_have_is_refused(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*("d" * 100 for _ in range(5)))
    deep.mkdir(parents=True)

    with pytest.raises(BadRepository, match="at most 400"):
        StatePaths.of(deep).create()

    assert list(deep.iterdir()) == []
