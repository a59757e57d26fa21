"""A scene for each client: a repository of its own, and a model of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.testing.model import ModelServer
from tests.clients.real import Real, Scene

MakeScene = Callable[[Real], Scene]


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A model on loopback that does what prompts say."""
    with ModelServer() as server:
        yield server


@pytest.fixture
def scene(repo: Path, model: ModelServer) -> MakeScene:
    """Make the scene of a client."""
    return lambda real: Scene(real, repo, model)
