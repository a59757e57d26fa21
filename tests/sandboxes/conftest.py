"""Users who start sandboxes in these tests, and the sandboxes."""

from collections.abc import Iterator

import pytest

from shoal.sandboxes.kind import Sandbox
from tests.sandboxes.sandbox_runs import WHO, Person, person, wall


@pytest.fixture(scope="module", params=WHO)
def who(request: pytest.FixtureRequest) -> Iterator[Person]:
    """Root, and an ordinary user."""
    with person(request.param) as somebody:
        yield somebody


@pytest.fixture(scope="module")
def bubblewrap(who: Person) -> Sandbox:
    """The sandbox with namespaces."""
    return wall("bubblewrap", who)


@pytest.fixture(scope="module")
def landlock(who: Person) -> Sandbox:
    """The sandbox without namespaces."""
    return wall("landlock", who)


@pytest.fixture(scope="module")
def no_wall(who: Person) -> Sandbox:
    """No sandbox."""
    return wall("none", who)
