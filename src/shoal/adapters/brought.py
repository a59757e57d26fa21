"""Adapters that other packages bring: what is wrong with one is told in one line, with the package's name."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from shoal.adapters.client import Client
from shoal.adapters.kind import Adapter, Invocation, Place, Reader
from shoal.errors import ShoalError, Unavailable
from shoal.model.assignment import Assignment
from shoal.model.client_names import ENTRY_POINTS
from shoal.model.policy import Network

PARTS = {"name": str, "default_network": Network, "client": Client | None}
METHODS = ("invocation", "reader")


@dataclass(frozen=True, slots=True)
class Brought:
    """An adapter of another package, by the name of its entry point."""

    name: str
    package: str
    made: Adapter

    @property
    def default_network(self) -> Network:
        """Return the network that it names."""
        return self.made.default_network

    @property
    def client(self) -> Client | None:
        """Return what it says of its client."""
        return self.made.client

    def invocation(self, task: Assignment, place: Place) -> Invocation:
        """Ask it for the command."""
        with blaming(self.name, self.package):
            return self.made.invocation(task, place)

    def reader(self) -> Reader | None:
        """Ask it for who reads."""
        with blaming(self.name, self.package):
            return self.made.reader()


def points() -> Mapping[str, EntryPoint]:
    """Find the entry points of all packages that are installed, by their names."""
    return {one.name: one for one in entry_points(group=ENTRY_POINTS)}


def loaded(point: EntryPoint) -> Adapter:
    """Ask the package of *point* for its adapter; raises `Unavailable`."""
    package = point.dist.name if point.dist else point.module
    with blaming(point.name, package):
        made = point.load()()
        assert_adapter(made)
    return Brought(point.name, package, made)


def assert_adapter(made: object) -> None:
    """Raise TypeError where *made* has not the form of an adapter."""
    for part, kind in PARTS.items():
        if not isinstance(getattr(made, part), kind):
            raise TypeError(f"its `{part}` is {getattr(made, part)!r}")
    for method in METHODS:
        if not callable(getattr(made, method)):
            raise TypeError(f"its `{method}` is no method")


@contextmanager
def blaming(name: str, package: str) -> Iterator[None]:
    """Turn whatever another package raises into one line that names it."""
    try:
        yield
    except ShoalError:
        raise
    except (Exception, SystemExit) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        remedy = f"tell its authors, or remove it: pip uninstall {package}"
        raise Unavailable(f"the adapter {name!r} of the package {package}", why, remedy) from error
