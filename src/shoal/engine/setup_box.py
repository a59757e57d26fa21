"""The box of set-up: its commands behind the wall, with the session's environment, in its workspace."""

import asyncio
import contextlib
import re
import secrets
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from shoal.engine.agent_box import bounded, environment, place_of
from shoal.engine.behind import boxed
from shoal.engine.grants import network_of
from shoal.engine.job import Job
from shoal.engine.lease import Lease
from shoal.engine.setup_project import INCLUDE, root_covers
from shoal.engine.site import Site
from shoal.engine.toolchain import Toolchain, given, toolchain
from shoal.engine.watch import Ending, Watched, watched
from shoal.engine.words import Words
from shoal.errors import SetupFailed, Unavailable
from shoal.model.command import Command
from shoal.model.events import AgentActed, Output
from shoal.model.policy import Bind, Network, Policy
from shoal.model.setup import OWN_NAMES, ROOT_NAMES, Setup
from shoal.proc import Exit
from shoal.workspaces.kind import Workspace

STREAM = "setup"
TAIL_LINES = 8
TAIL_SIGNS = 2000
_UNREACHED = re.compile(r"resolve|network|connect|ENOTFOUND|EAI_AGAIN|getaddrinfo", re.IGNORECASE)
# Each command in a shell of its own; other tools' ones are written for bash, as a rule.
SCRIPT = """
shell=/bin/sh
[ "$0" = set-up ] || shell=$(command -v bash) || shell=/bin/sh
for command; do printf '+ %.200s\\n' "$command"; "$shell" -c "$command" || exit; done
"""


async def commands_run(
    site: Site, job: Job, setup: Setup, workspace: Workspace, lease: Lease, stop: asyncio.Event
) -> bool:
    """Run the commands to their end; `False` when told to stop. Raises `SetupFailed` for every other end."""
    command, policy = _box(site, job, setup, workspace, lease)
    words = Words(site.run, job.session, lambda event: told(site, event), site.mask, site.flood)
    with site.enforcer.group(f"{job.session}-setup", job.limits) as group:
        bounds = bounded(site, job, workspace, lease, group)
        with contextlib.closing(words):
            async with boxed(site.sandbox, command, policy, sink=words.feed, join=group.wrap) as box:
                seen = await watched(box, bounds, setup.timeout, stop, site.grace)
    if seen.ending is Ending.STOP:
        return False
    if seen.ending is not Ending.BY_ITSELF or seen.exit.code != 0:
        raise SetupFailed(_why(setup, seen, words, policy.network))
    return True


def told(site: Site, event: Output | AgentActed) -> None:
    """Put what set-up says into the log of the session, marked as such."""
    site.ledger.note(replace(event, stream=STREAM) if isinstance(event, Output) else event)


def _box(site: Site, job: Job, setup: Setup, workspace: Workspace, lease: Lease) -> tuple[Command, Policy]:
    agent = job.adapter.invocation(job.task, place_of(workspace, lease)).argv[0]
    tools = tools_of(site, setup, agent)
    env = {
        **environment(site, job, workspace, lease, tools.path),
        **job.task.agent.env,
        **job.task.env,
    }
    if not setup.is_each:
        env = {name: text for name, text in env.items() if name not in OWN_NAMES}
    covers = (
        Bind(lease.inputs / "passwd", Path("/etc/passwd")),
        Bind(lease.inputs / "group", Path("/etc/group")),
        Bind(lease.inputs / "git", workspace.path / ".git"),
        *root_covers(site),
    )
    policy = site.policy(
        token=secrets.token_hex(8),
        read=(lease.inputs, *tools.read, *given(site.toolchains).read),
        write=(workspace.path, lease.git, lease.own),
        covers=covers,
        layers=workspace.layers,
        network=setup.network or network_of(job.task, job.adapter),
    )
    argv = ("/bin/sh", "-c", SCRIPT, setup.source or "set-up", *setup.commands)
    return Command(argv=argv, cwd=workspace.path, env=env), policy


def tools_of(site: Site, setup: Setup, *others: str) -> Toolchain:
    """Find the programs that commands begin with, and *others*, as far as they are on the user's PATH."""
    search, found = site.environ.get("PATH", ""), []
    for program in dict.fromkeys((*others, *_programs(setup))):
        with contextlib.suppress(Unavailable):  # a word of the shell's, or a program that an earlier command makes
            found.append(toolchain(program, search=search, private=site.private))
    read = dict.fromkeys(shown for one in found for shown in one.read)
    return Toolchain(tuple(read), tuple(dict.fromkeys(folder for one in found for folder in one.path)))


def _programs(setup: Setup) -> Iterator[str]:
    for command in setup.commands:
        for line in command.replace("&&", "\n").replace(";", "\n").splitlines():
            with contextlib.suppress(ValueError):
                words = shlex.split(line, comments=True)
                yield from words[:1]


def _why(setup: Setup, seen: Watched, words: Words, network: Network) -> str:
    said = (words.output + words.errors).strip()[-TAIL_SIGNS:].splitlines()[-TAIL_LINES:]
    lines = [f"setup failed: {_end(setup, seen)}{f' ({setup.source})' if setup.source else ''}", *said]
    if setup.named & ROOT_NAMES and "No such file" in "".join(said):
        lines.append(f"files of your checkout that set-up may read are named in {INCLUDE}; it sees no others")
    if network is Network.NONE and _UNREACHED.search("".join(said)):
        lines.append("it had no network; `setup: {run: …, network: host}` gives it one")
    return "\n".join(lines)


def _end(setup: Setup, seen: Watched) -> str:
    if seen.ending is Ending.TIME:
        return f"it was still running after {setup.timeout:g} s"
    if seen.ending is Ending.LIMIT:
        return f"it passed its limit of {seen.limit}"
    return _exit(seen.exit)


def _exit(end: Exit) -> str:
    return f"it was ended by signal {end.signal}" if end.signal is not None else f"it exited with {end.code}"
