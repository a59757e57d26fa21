"""A dashboard of a scratch repository, opened."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shoal, shoal_in
from tests.dashboard.serving import PIPELINE, Dashboard, serving


@pytest.fixture
def shoal(repo: Path) -> Shoal:
    """The command, in the repository."""
    return shoal_in(repo)


@pytest.fixture
def dashboard(repo: Path) -> Iterator[Dashboard]:
    """A dashboard whose link was opened."""
    (repo / "shoal.yaml").write_text(PIPELINE)
    with serving(repo) as served:
        served.open()
        yield served
