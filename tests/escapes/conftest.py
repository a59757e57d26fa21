"""Every attack runs in bubblewrap in `make test`, and in Landlock in `make test-deep`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.escapes.scene import Scene, made

WALLS = ["bubblewrap", pytest.param("landlock", marks=pytest.mark.deep)]


@pytest.fixture(params=WALLS)
def wall(request: pytest.FixtureRequest) -> str:
    """The sandbox under attack."""
    return str(request.param)


@pytest.fixture
def scene(repo: Path, wall: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A repository, an attacker's target, and the checks."""
    yield from made(repo, wall, tmp_path, monkeypatch)
