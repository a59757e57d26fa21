"""What holds after every test of processes."""

from collections.abc import Iterator

import pytest

from tests.proc.acting import children, fds


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Whatever a test does, it leaves no child, dead or alive, and no descriptor."""
    fds_before, children_before = fds(), children()

    yield

    assert children() == children_before
    assert len(fds()) == len(fds_before)
