"""The project's own file: the nearest `shoal.yaml`, from a folder up to the top of its repository."""

from pathlib import Path

OWN_FILE = "shoal.yaml"


def own_file(folder: Path) -> Path:
    """Give the file for who works in *folder*: where it would lie in the folder itself, if there is none.

    Outside of a repository no other folder is looked at: what lies above may be anybody's.
    """
    for number, place in enumerate(_places(folder)):
        if (place / OWN_FILE).is_file():
            return folder.joinpath(*[".."] * number, OWN_FILE)  # as a person would write it, for messages
    return folder / OWN_FILE


def _places(folder: Path) -> list[Path]:
    """Name *folder* and those above it in the same repository, the nearest first."""
    here = folder.resolve()
    above = [here, *here.parents]
    top = next((number for number, place in enumerate(above) if (place / ".git").exists()), 0)
    return above[: top + 1]
