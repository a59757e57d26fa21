"""Conflict markers that are left in files: whoever resolves a conflict has to take them all away."""

from collections import Counter
from collections.abc import Iterator, Sequence

from shoal.git.merge import Bench

MARKER = "^(<{7,}|>{7,}|={7}|[|]{7,})([[:space:]]|$)"
AT_ONCE = 200
LOOK = ("grep", "-a", "-z", "--no-color", "--no-line-number", "--no-column", "--no-recurse-submodules", "--no-textconv")


async def left_in(bench: Bench, commit: str, paths: Sequence[str], sides: Sequence[str]) -> tuple[str, ...]:
    """Name those of *paths* that have more lines like markers in *commit* than in both *sides* together.

    A line of a text about git, or below a heading, looks like a marker too: what was there before may stay.
    """
    had: Counter[tuple[str, str]] = Counter()
    for side in sides:
        had += await _markers(bench, side, paths)
    extra = (await _markers(bench, commit, paths)) - had
    return tuple(sorted({path for path, _ in extra}))


async def _markers(bench: Bench, commit: str, paths: Sequence[str]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for first in range(0, len(paths), AT_ONCE):
        some = paths[first : first + AT_ONCE]
        done = await bench.git(*LOOK, "-E", "-e", MARKER, commit, "--", *some, accept=(0, 1))
        said = done.stdout.decode(errors="surrogateescape")
        found.update((name.removeprefix(f"{commit}:"), line) for name, line in _lines(said))
    return found


def _lines(said: str) -> Iterator[tuple[str, str]]:
    """Take apart `commit:path NUL line`; a path may have line ends in it, and a line may not."""
    while said:
        name, _, rest = said.partition("\0")
        line, _, said = rest.partition("\n")
        yield name, line
