"""The kinds of agent by name: to add one, write its module and its line here."""

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from shoal.adapters.client import AdapterHost, Client
from shoal.adapters.gateway_settings import UsesGateway
from shoal.adapters.kind import Adapter, Invocation, Reader, SessionPaths
from shoal.errors import ShoalError, Unavailable, UnknownName
from shoal.model.agent import ACP, ENTRY_POINTS, AgentSpec
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Ask the adapter for the command."""
        with blaming(self.name, self.package):
            return self.made.invocation(task, place)

    def reader(self) -> Reader | None:
        """Ask the adapter for a reader."""
        with blaming(self.name, self.package):
            return self.made.reader()


def points() -> Mapping[str, "EntryPoint"]:
    """Find the entry points of all installed packages, by name."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def load_adapter(point: "EntryPoint") -> Adapter:
    """Ask the package of *point* for its adapter; raises `Unavailable`."""
    package = point.dist.name if point.dist else point.module
    with blaming(point.name, package):
        made = point.load()()
        assert_adapter(made)
    return Brought(point.name, package, made)


def assert_adapter(made: object) -> None:
    """Raise TypeError if *made* does not implement `Adapter`."""
    for part, kind in PARTS.items():
        if not isinstance(getattr(made, part), kind):
            raise TypeError(f"its `{part}` is {getattr(made, part)!r}")
    for method in METHODS:
        if not callable(getattr(made, method)):
            raise TypeError(f"its `{method}` is no method")


@contextmanager
def blaming(name: str, package: str) -> Iterator[None]:
    """Turn any error of another package into one line that names it."""
    try:
        yield
    except ShoalError:
        raise
    except (Exception, SystemExit) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        remedy = f"tell its authors, or remove it: pip uninstall {package}"
        raise Unavailable(f"the adapter {name!r} of the package {package}", why, remedy) from error


def load(module: str, name: str) -> Callable[[AdapterHost], Adapter]:
    """Return what makes the adapter *name* of our *module*, which is imported only then: a run needs few of them."""

    def make(host: AdapterHost) -> Adapter:
        kind: Callable[[], Adapter] = getattr(importlib.import_module(f"shoal.adapters.{module}"), name)
        return kind()

    return make


def _make_function(host: AdapterHost) -> Adapter:
    from shoal.adapters.function import Function

    return Function(python=host.own_python, program=host.programs / "function_agent.py")


def _make_scripted(host: AdapterHost) -> Adapter:
    from shoal.adapters.scripted import Scripted

    return Scripted(python=host.python, program=host.programs / "scripted_agent.py")


ADAPTERS: dict[str, Callable[[AdapterHost], Adapter]] = {
    "aider": load("aider", "Aider"),
    "copilot": load("copilot", "Copilot"),
    "gemini": load("gemini", "Gemini"),
    "opencode": load("opencode", "Opencode"),
    "claude": load("claude", "Claude"),
    "codex": load("codex", "Codex"),
    "acp": load("acp", "Acp"),
    "command": load("command", "CommandAdapter"),
    "function": _make_function,
    "goose": load("goose", "Goose"),
    "python": load("python", "Python"),
    "scripted": _make_scripted,
}


SPEAKERS = {
    "goose": "goose",
    "claude-agent-acp": "claude",
    "claude-code-acp": "claude",
    "codex-acp": "codex",
    "gemini": "gemini",
    "copilot": "copilot",
    "opencode": "opencode",
}
"""Programs that speak ACP, and whose login each of them uses."""


def adapter(name: str, host: AdapterHost) -> Adapter:
    """Return the adapter called *name*, fit for *host*; raise `UnknownName` with the nearest.

    An adapter of another package is a callable without arguments that gives one, found by its entry point; where that
    is not installed, this raises `Unavailable` with the package.
    """
    if name in ADAPTERS:
        return ADAPTERS[name](host)
    return _load_plugin(name)


def adapter_of(spec: AgentSpec, host: AdapterHost) -> Adapter:
    """Return the adapter that is fit for *spec*: an ACP agent that we know as a client has the login of that."""
    made = adapter(spec.adapter, host)
    own = _find_speaker(spec, host) if spec.adapter == ACP else None
    if own is None or own.client is None:
        return made
    from shoal.adapters.acp import CLIENT, Acp

    same = ("keys", "settings", "logins", "upstreams", "held_login", "elsewhere", "settings_files")
    client = replace(CLIENT, **{name: getattr(own.client, name) for name in same})
    if not isinstance(own, UsesGateway):
        return Acp(client=client)
    return Acp(client=client, speaker=own, default_network=own.default_network)


def _find_speaker(spec: AgentSpec, host: AdapterHost) -> Adapter | None:
    names = (PurePath(word).name.removesuffix(".js") for word in spec.command)
    known = next((SPEAKERS[name] for name in names if name in SPEAKERS), None)
    return None if known is None else adapter(known, host)


def list_plugin_adapters() -> tuple[str, ...]:
    """List the adapters of other packages; they cannot replace ours."""
    return tuple(sorted({*points()} - {*ADAPTERS}))


@functools.cache
def _load_plugin(name: str) -> Adapter:
    found = points()
    if name not in found:
        raise UnknownName("adapter", name, (*ADAPTERS, *found))
    return load_adapter(found[name])
