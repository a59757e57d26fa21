"""The project's own file: found from any folder of its repository, and never outside."""

from pathlib import Path

from shoal.pipeline.names import own_file


def project(top: Path, *, is_repository: bool = True) -> Path:
    """Make a folder two below one that has the file, and give it."""
    (top / "a" / "b").mkdir(parents=True)
    (top / "shoal.yaml").touch()
    if is_repository:
        (top / ".git").mkdir()
    return top / "a" / "b"


def test_it_is_found_from_a_folder_below_and_named_as_a_person_would(tmp_path: Path) -> None:
    below = project(tmp_path)

    assert own_file(below) == below / ".." / ".." / "shoal.yaml"
    assert own_file(below).is_file()
    assert own_file(tmp_path) == tmp_path / "shoal.yaml"


def test_the_nearest_one_counts(tmp_path: Path) -> None:
    below = project(tmp_path)
    (tmp_path / "a" / "shoal.yaml").touch()

    assert own_file(below) == below / ".." / "shoal.yaml"


def test_another_repositorys_file_is_not_taken(tmp_path: Path) -> None:
    below = project(tmp_path)
    (below / ".git").write_text("gitdir: elsewhere\n")

    assert own_file(below) == below / "shoal.yaml"


def test_outside_of_a_repository_what_lies_above_may_be_anybodys(tmp_path: Path) -> None:
    below = project(tmp_path, is_repository=False)

    assert own_file(below) == below / "shoal.yaml"


def test_a_link_leads_to_the_folder_that_it_means(tmp_path: Path) -> None:
    below = project(tmp_path / "real")
    (tmp_path / "link").symlink_to(below)

    assert own_file(tmp_path / "link").resolve() == tmp_path / "real" / "shoal.yaml"
