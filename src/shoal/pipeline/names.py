"""Names of steps, agents, personas and pipelines: they become branch names and folders."""

import functools
import re
from pathlib import Path

from shoal.model.agent import ENTRY_POINTS, EVERY

PATTERN = r"[a-z0-9][a-z0-9-]{0,47}"
LONGEST = 48

_NAME = re.compile(PATTERN)


def is_name(text: str) -> bool:
    """Return whether *text* may be a name."""
    return _NAME.fullmatch(text) is not None


def slug(text: str, *, otherwise: str = "step") -> str:
    """Make a valid name from any text."""
    dashed = re.sub(r"[^a-z0-9]+", "-", text[:1000].lower()).strip("-")
    return dashed[:LONGEST].rstrip("-") or otherwise


LABEL_WORDS = 5
LABEL_CHARS = 32
LONGEST_WORD = 20  # a longer one is an address, a path or a key
_FILLERS = frozenset(("a", "an", "the", "and", "or", "of", "in", "on", "to", "for", "with", "please", "so", "it"))


def make_label(prompt: str) -> str:
    """Name a task after the first words of its prompt, like `fix-login-test`; empty if there are none."""
    words = re.findall(r"[^\W_]+", prompt[:1000].lower())
    telling = [word for word in words if word.isascii() and word not in _FILLERS and len(word) <= LONGEST_WORD]
    label = ""
    for word in telling[:LABEL_WORDS]:
        longer = f"{label}-{word}" if label else word
        if len(longer) > LABEL_CHARS:
            break
        label = longer
    return label


OWN_FILE = "shoal.yaml"


def own_file(folder: Path) -> Path:
    """Return the file that applies in *folder*; if there is none, the path where it would be.

    Outside a repository, no other folder is searched: parents may belong to anybody.
    """
    for number, place in enumerate(_places(folder)):
        if (place / OWN_FILE).is_file():
            return folder.joinpath(*[".."] * number, OWN_FILE)  # as a person would write it, for messages
    return folder / OWN_FILE


def _places(folder: Path) -> list[Path]:
    """Return *folder* and its parents in the same repository, the nearest first."""
    here = folder.resolve()
    above = [here, *here.parents]
    top = next((number for number, place in enumerate(above) if (place / ".git").exists()), 0)
    return above[: top + 1]


OWN = ("command", "scripted", "python", *EVERY)


@functools.cache  # a file may name thousands, and each look takes milliseconds
def list_plugin_names() -> tuple[str, ...]:
    """List the adapters of other packages, as of the first call."""
    from importlib.metadata import entry_points

    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - {*OWN}))
