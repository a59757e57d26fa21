"""What the acceptance tests share: the command, run as a person would run it."""

from pathlib import Path

import pytest

from tests.cli.conftest import Shoal, shoal_in


@pytest.fixture
def shoal(repo: Path) -> Shoal:
    """The command, in the repository."""
    return shoal_in(repo)
