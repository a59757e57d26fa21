"""A PostgreSQL server for tests that need a user's own."""

from collections.abc import Iterator

import pytest

from tests.postgres import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Run a server for all tests of this process."""
    running = Server("max_connections=300")
    running.start()
    yield running
    running.close()
