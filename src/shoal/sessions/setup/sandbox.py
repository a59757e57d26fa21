"""Run set-up commands in a sandbox, with the session's environment, in its workspace."""

import contextlib
import re
import secrets
import shlex
from collections.abc import Iterator
from dataclasses import replace

from shoal.errors import SetupFailed, Unavailable
from shoal.gateway.find_upstreams import without_keys
from shoal.model.command import Command
from shoal.model.events import AgentActed, Output
from shoal.model.policy import NETWORKS, Network, Policy
from shoal.model.setup import OWN_NAMES, ROOT_NAMES, Setup
from shoal.proc import Exit
from shoal.sessions.agent_process import Ending, WatchResult, watch_process
from shoal.sessions.context import RunContext
from shoal.sessions.model_access import session_upstreams
from shoal.sessions.output_log import OutputLog
from shoal.sessions.policy import environment, identity_covers, network_of, session_bounds, setup_network
from shoal.sessions.sandboxed import open_sandboxed
from shoal.sessions.setup.project import INCLUDE, root_covers
from shoal.sessions.toolchain import Toolchain, show_folders, toolchain
from shoal.sessions.worker import Session

STREAM = "setup"
CONFINED = (
    "it had no network, because it ran on the work of earlier agents with only the rights of this step's agent; "
    "`allow_executable_config: true` on the step allows `setup.network`"
)
TAIL_LINES = 8
TAIL_CHARS = 2000
_UNREACHED = re.compile(r"resolve|network|connect|ENOTFOUND|EAI_AGAIN|getaddrinfo", re.IGNORECASE)
# Each command in its own shell; those of other tools are usually written for bash.
SCRIPT = """
shell=/bin/sh
[ "$0" = set-up ] || shell=$(command -v bash) || shell=/bin/sh
for command; do printf '+ %.200s\\n' "$command"; "$shell" -c "$command" || exit; done
"""


async def run_commands(session: Session, setup: Setup) -> bool:
    """Run the commands; `False` if asked to stop. Raises `SetupFailed` if one fails."""
    context = session.context
    command, policy = _setup_command(session, setup)
    log = OutputLog(context.run, session.id, lambda event: log_setup_event(context, event), context.mask, context.flood)
    with context.enforcer.group(f"{session.id}-setup", session.worker.limits) as group:
        bounds = session_bounds(session, group)
        with contextlib.closing(log):
            async with open_sandboxed(
                context.sandbox, command, policy, sink=log.feed, join=group.wrap, guard=context.guard
            ) as process:
                seen = await watch_process(process, bounds, setup.timeout, session.stop, context.grace)
    if seen.ending is Ending.STOP:
        return False
    if seen.ending is not Ending.BY_ITSELF or seen.exit.code != 0:
        raise SetupFailed(_why(setup, seen, log, policy.network))
    return True


def log_setup_event(context: RunContext, event: Output | AgentActed) -> None:
    """Write set-up's output into the session's log, marked as such."""
    context.ledger.note(replace(event, stream=STREAM) if isinstance(event, Output) else event)


def _setup_command(session: Session, setup: Setup) -> tuple[Command, Policy]:
    context, worker, workspace, directory = session.context, session.worker, session.workspace, session.directory
    agent = worker.adapter.invocation(worker.task, session.paths).argv[0]
    tools = find_tools(context, setup, agent)
    network = setup.network or setup_network(worker.task, worker.adapter)
    env = {**NETWORKS[network].env, **environment(session, tools.path), **worker.task.agent.env, **worker.task.env}
    if NETWORKS[network_of(worker.task, worker.adapter)].has_listener:  # what the gateway holds, no sandbox gets
        client = worker.adapter.client
        env = without_keys(env, session_upstreams(context.upstreams, worker.task, client, context.environ))
    if not setup.is_each:
        env = {name: text for name, text in env.items() if name not in OWN_NAMES | directory.database_names}
    policy = context.policy(
        token=secrets.token_hex(8),
        read=(*directory.shown, *tools.read, *show_folders(context.toolchains).read),
        write=(workspace.path, directory.git, directory.own),
        covers=(*identity_covers(session), *root_covers(context)),
        layers=workspace.layers,
        network=network,
    )
    argv = ("/bin/sh", "-c", SCRIPT, setup.source or "set-up", *setup.commands)
    return Command(argv=argv, cwd=workspace.path, env=env), policy


def find_tools(context: RunContext, setup: Setup, *others: str) -> Toolchain:
    """Find the programs that commands begin with, and *others*, as far as they are on the user's PATH."""
    search, found = context.environ.get("PATH", ""), []
    for program in dict.fromkeys((*others, *_programs(setup))):
        with contextlib.suppress(Unavailable):  # a shell builtin, or a program that an earlier command installs
            found.append(toolchain(program, search=search, private=context.private))
    read = dict.fromkeys(shown for toolchain in found for shown in toolchain.read)
    return Toolchain(tuple(read), tuple(dict.fromkeys(folder for toolchain in found for folder in toolchain.path)))


def _programs(setup: Setup) -> Iterator[str]:
    for command in setup.commands:
        for line in command.replace("&&", "\n").replace(";", "\n").splitlines():
            with contextlib.suppress(ValueError):
                words = shlex.split(line, comments=True)
                yield from words[:1]


def _why(setup: Setup, seen: WatchResult, log: OutputLog, network: Network) -> str:
    tail = (log.output + log.errors).strip()[-TAIL_CHARS:].splitlines()[-TAIL_LINES:]
    lines = [f"setup failed: {_end(setup, seen)}{f' ({setup.source})' if setup.source else ''}", *tail]
    if setup.named & ROOT_NAMES and "No such file" in "".join(tail):
        lines.append(f"files of your checkout that set-up may read are named in {INCLUDE}; it sees no others")
    if setup.is_confined:
        lines.append(CONFINED)
    elif not NETWORKS[network].shares_host and _UNREACHED.search("".join(tail)):
        lines.append("it had no network; `setup: {run: …, network: host}` gives it one")
    return "\n".join(lines)


def _end(setup: Setup, seen: WatchResult) -> str:
    if seen.ending is Ending.TIME:
        return f"it was still running after {setup.timeout:g} s"
    if seen.ending is Ending.LIMIT:
        return f"it exceeded its {seen.limit} limit"
    return _exit(seen.exit)


def _exit(end: Exit) -> str:
    return f"it was killed by signal {end.signal}" if end.signal is not None else f"it exited with {end.code}"
