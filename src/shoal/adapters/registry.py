"""Which kinds of agent there are: to add one is to write its file and its line here."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

from shoal.adapters.acp import CLIENT, Acp
from shoal.adapters.aider import Aider
from shoal.adapters.brought import loaded, points
from shoal.adapters.claude import Claude
from shoal.adapters.codex import Codex
from shoal.adapters.command import Command
from shoal.adapters.copilot import Copilot
from shoal.adapters.function import Function
from shoal.adapters.gemini import Gemini
from shoal.adapters.goose import Goose
from shoal.adapters.host import Host
from shoal.adapters.kind import Adapter
from shoal.adapters.opencode import Opencode
from shoal.adapters.python import Python
from shoal.adapters.scripted import Scripted
from shoal.errors import UnknownName
from shoal.model.agent import AgentSpec

ADAPTERS: dict[str, Callable[[Host], Adapter]] = {
    "aider": lambda host: Aider(),
    "copilot": lambda host: Copilot(),
    "gemini": lambda host: Gemini(),
    "opencode": lambda host: Opencode(),
    "claude": lambda host: Claude(),
    "codex": lambda host: Codex(),
    "acp": lambda host: Acp(),
    "command": lambda host: Command(),
    "function": lambda host: Function(python=host.own_python, program=host.programs / "function_agent.py"),
    "goose": lambda host: Goose(),
    "python": lambda host: Python(),
    "scripted": lambda host: Scripted(python=host.python, program=host.programs / "scripted_agent.py"),
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


def adapter(name: str, host: Host) -> Adapter:
    """Return the adapter called *name*, fit for *host*; raise `UnknownName` with the nearest.

    An adapter of another package is a callable without arguments that gives one, found by its entry point; where that
    cannot be had, this raises `Unavailable` with the package.
    """
    if name in ADAPTERS:
        return ADAPTERS[name](host)
    return _brought(name)


def adapter_of(spec: AgentSpec, host: Host) -> Adapter:
    """Return the adapter that is fit for *spec*: an ACP agent that we know as a client has the login of that."""
    made = adapter(spec.adapter, host)
    client = own.client if isinstance(made, Acp) and (own := _spoken(spec, host)) else None
    if client is None:
        return made
    return Acp(client=replace(CLIENT, keys=client.keys, settings=client.settings, logins=client.logins))


def _spoken(spec: AgentSpec, host: Host) -> Adapter | None:
    names = (PurePath(word).name.removesuffix(".js") for word in spec.command)
    known = next((SPEAKERS[name] for name in names if name in SPEAKERS), None)
    return None if known is None else adapter(known, host)


def brought() -> tuple[str, ...]:
    """Name the adapters that other packages bring; ours cannot be replaced by one."""
    return tuple(sorted({*points()} - {*ADAPTERS}))


@functools.cache
def _brought(name: str) -> Adapter:
    found = points()
    if name not in found:
        raise UnknownName("adapter", name, (*ADAPTERS, *found))
    return loaded(found[name])
