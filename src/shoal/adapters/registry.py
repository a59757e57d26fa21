"""Which kinds of agent there are: to add one is to write its file and its line here."""

from collections.abc import Callable

from shoal.adapters.command import Command
from shoal.adapters.function import Function
from shoal.adapters.host import Host
from shoal.adapters.kind import Adapter
from shoal.adapters.python import Python
from shoal.adapters.scripted import Scripted
from shoal.errors import UnknownName

ADAPTERS: dict[str, Callable[[Host], Adapter]] = {
    "command": lambda host: Command(),
    "function": lambda host: Function(python=host.own_python, program=host.programs / "function_agent.py"),
    "python": lambda host: Python(),
    "scripted": lambda host: Scripted(python=host.python, program=host.programs / "scripted_agent.py"),
}


def adapter(name: str, host: Host) -> Adapter:
    """Return the adapter called *name*, fit for *host*; raise `UnknownName` with the nearest."""
    if name not in ADAPTERS:
        raise UnknownName("adapter", name, ADAPTERS)
    return ADAPTERS[name](host)
