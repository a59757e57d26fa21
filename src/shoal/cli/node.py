"""`shoal node`: make other hosts able to run sessions."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.output import escape
from shoal.cli.render.messages import sentence
from shoal.errors import BadInput, ExitCode, ShoalError
from shoal.executors.node_install import WheelSource, install_node, uninstall_node


class NodeAction(StrEnum):
    """What to do with a host."""

    INSTALL = "install"
    UNINSTALL = "uninstall"


Work = Callable[[str], Awaitable[None]]
Action = Annotated[NodeAction | None, typer.Argument(help="What to do with the hosts.")]
Hosts = Annotated[
    list[str] | None, typer.Argument(metavar="HOST...", help="Hosts as ssh knows them: `build1`, `me@build2`.")
]
Python = Annotated[
    str | None, typer.Option("--python", metavar="PATH", help="The Python of the host, 3.11 or newer; default: found.")
]
Wheels = Annotated[
    Path | None, typer.Option("--wheels", metavar="DIR", help="Send these wheels; for hosts without a package index.")
]
SendWheels = Annotated[
    bool, typer.Option("--send-wheels", help="Download what the host's Python needs here, and send it.")
]
Stdio = Annotated[bool, typer.Option("--stdio", help="Be a node: `shoal run --on` starts this on the host.")]


def command(
    action: Action = None,
    hosts: Hosts = None,
    python: Python = None,
    wheels: Wheels = None,
    send_wheels: SendWheels = False,
    stdio: Stdio = False,
) -> int:
    """Install Shoal on another host by ssh, or remove it.

    `shoal run --on HOST` then runs agents there.
    `shoal node install HOST` makes a virtual environment in `~/.local/share/shoal/node` and needs nothing there but
    ssh and Python. Run it again after an update; nodes that run keep the version they have.
    """
    if stdio:
        from shoal.nodes.process import serve_stdio  # imports all that runs sessions

        asyncio.run(serve_stdio(os.environ))
        return ExitCode.SUCCESS
    if action is None or not hosts:
        raise BadInput("name what to do, and the hosts: shoal node install HOST")
    if wheels is not None and send_wheels:
        raise BadInput("--wheels and --send-wheels exclude each other")
    source = WheelSource(folder=wheels, is_sent=send_wheels)
    install: Work = partial(_install, python=python, source=source)
    work = install if action is NodeAction.INSTALL else partial(_uninstall, python=python)
    return asyncio.run(_do_all(list(dict.fromkeys(hosts)), work))


async def _do_all(hosts: Sequence[str], work: Work) -> int:
    """Do it on all hosts at once; a host that fails is named, and holds up no other."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_try(host, work)) for host in hosts]
    return max(task.result() for task in tasks)


async def _try(host: str, work: Work) -> int:
    try:
        await work(host)
    except ShoalError as error:
        output.print_err(sentence(error))
        return error.exit_code
    return ExitCode.SUCCESS


async def _install(host: str, *, python: str | None, source: WheelSource) -> None:
    def print_step(step: str) -> None:
        output.print_err(f"{escape(host)}: {escape(step)}")

    node = await install_node(host, os.environ, python=python, wheels=source, on_step=print_step)
    how = "installed" if node.is_new else "already has"
    output.print_out(f"{escape(host)}: {how} shoal {node.version} ({node.build}), with Python {node.python.version}")
    held = ", ".join(node.offer.sandboxes)
    output.print_out(
        f"{escape(host)}: runs {node.offer.capacity} agents at once, sandbox: {escape(held) or 'none works'}"
    )
    for sandbox, why in node.offer.missing.items() if not held else ():
        output.print_err(f"{escape(host)}: {escape(sandbox)}: {escape(why)}")
    for build in node.removed:
        output.print_out(f"{escape(host)}: removed the unused {escape(build)}")


async def _uninstall(host: str, *, python: str | None) -> None:
    builds = await uninstall_node(host, os.environ, python=python)
    output.print_out(f"{escape(host)}: removed {escape(', '.join(builds))}" if builds else f"{escape(host)}: had none")
