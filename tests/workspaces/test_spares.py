"""Spares: kept while their run lives, removed by anyone afterwards, and never while in use."""

from pathlib import Path

from shoal.workspaces.remove import Trash
from shoal.workspaces.spares import BEGINNING, Spares


def folder(place: Path, name: str) -> Path:
    """Make a folder with a file in it."""
    made = place / name
    made.mkdir()
    (made / "file").write_text(name)
    return made


def test_what_is_put_away_is_taken_again_as_it_is(tmp_path: Path) -> None:
    spares = Spares(tmp_path / "trash")
    first = folder(tmp_path, "first")

    assert spares.keep_spare(first, "one use", {"file": b"text"})
    assert not first.exists()
    assert spares.take(tmp_path / "second", "another use") is None
    assert spares.take(tmp_path / "second", "one use") == {"file": b"text"}
    assert spares.take(tmp_path / "third", "one use") is None, "each serves once"

    assert (tmp_path / "second" / "file").read_text() == "first"
    spares.close()


async def test_another_shoal_leaves_the_spares_of_a_living_run_alone(tmp_path: Path) -> None:
    ours, another = Trash(tmp_path / "trash"), Trash(tmp_path / "trash")
    ours.spares.keep_spare(folder(tmp_path, "first"), "use", {})

    another.throw(folder(tmp_path, "thrown"))
    await another.empty()

    assert ours.spares.take(tmp_path / "second", "use") == {}
    assert (tmp_path / "second" / "file").exists()
    assert [path.name[: len(BEGINNING)] for path in (tmp_path / "trash").iterdir()] == [BEGINNING]
    ours.spares.close()


async def test_the_spares_of_a_dead_run_are_removed(tmp_path: Path) -> None:
    dead, living = Trash(tmp_path / "trash"), Trash(tmp_path / "trash")
    dead.spares.keep_spare(folder(tmp_path, "first"), "use", {})
    dead.spares.close()  # as the kernel does for who was killed

    await living.empty()

    assert list((tmp_path / "trash").iterdir()) == []
    assert not dead.spares.keep_spare(folder(tmp_path, "late"), "use", {}), "nothing is kept once the run is over"
