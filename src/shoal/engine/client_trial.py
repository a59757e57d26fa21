"""Trying installed clients behind the wall: does what their command resolves to run there at all."""

import asyncio
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.adapters.client import Client, Version
from shoal.adapters.host import this_host
from shoal.adapters.kind import Adapter
from shoal.adapters.registry import adapter, brought
from shoal.engine.behind import boxed
from shoal.engine.clients import VERSION_SECONDS, Found, look
from shoal.engine.lease import SYSTEM_PATH
from shoal.engine.toolchain import toolchain
from shoal.errors import ShoalError, Unavailable
from shoal.model.client_names import CLIENTS
from shoal.model.command import Command
from shoal.model.policy import Policy
from shoal.proc import Exit, Stream
from shoal.proc.kept import Head
from shoal.sandboxes.kind import Sandbox

SAID_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one kind of client stands on this host."""

    agent: str
    client: Client
    found: Found
    trouble: str | None = None
    """Why it does not run behind the wall, where it was tried."""

    @property
    def is_ready(self) -> bool:
        """Say whether a task could be given to it now."""
        found, client = self.found, self.client
        has_login = found.login is not None or not client.needs_login
        return found.path is not None and not client.is_too_old(found.version) and has_login and not self.trouble


async def standings(sandbox: Sandbox | None, environ: Mapping[str, str]) -> list[Standing]:
    """Look for every client that there is an adapter for, and try those that are here behind *sandbox*."""
    host = this_host()
    found: list[Standing] = []
    for name in (*CLIENTS, *brought()):
        try:
            kind = adapter(name, host)
        except Unavailable as error:  # what is wrong with one package keeps nobody from the others
            found.append(_broken(name, error))
            continue
        if kind.client is not None:
            found.append(await _standing(kind, kind.client, sandbox, environ))
    return found


def _broken(name: str, error: Unavailable) -> Standing:
    client = Client(program=name, install=error.remedy, login=error.remedy)
    return Standing(agent=name, client=client, found=Found(), trouble=str(error))


async def _standing(kind: Adapter, client: Client, sandbox: Sandbox | None, environ: Mapping[str, str]) -> Standing:
    found = await look(kind, client, client.program, environ)
    standing = Standing(agent=kind.name, client=client, found=found)
    if found.path is None or sandbox is None:
        return standing
    try:
        trouble, version = await _tried(client, found.path, sandbox, environ)
    except (ShoalError, OSError) as error:
        trouble, version = str(error), None
    return replace(standing, trouble=trouble, found=replace(found, version=found.version or version))


async def _tried(
    client: Client, path: Path, sandbox: Sandbox, environ: Mapping[str, str]
) -> tuple[str | None, Version | None]:
    """Ask it for its version where an agent would stand, and say what is wrong with the answer."""
    home = Path(environ.get("HOME") or "/nowhere")
    tools = toolchain(str(path), search=environ.get("PATH", ""), private=(home,))
    said = {stream: Head(SAID_BYTES) for stream in Stream}
    with tempfile.TemporaryDirectory(prefix="shoal-client-") as scratch:
        env = {"PATH": ":".join((*map(str, tools.path), *SYSTEM_PATH)), "HOME": scratch, "TMPDIR": scratch}
        command = Command(argv=(str(path), *client.version_arguments), cwd=Path(scratch), env=env)
        Path(scratch).chmod(0o777)  # the agent is another user in its box
        policy = Policy(token=secrets.token_hex(8), read=tools.read, write=(Path(scratch),))
        sink = lambda stream, data: said[stream].feed(data)  # noqa: E731 - of one line, like the others
        try:
            async with asyncio.timeout(VERSION_SECONDS), boxed(sandbox, command, policy, sink=sink) as box:
                ended = await box.wait()
        except TimeoutError:
            return f"it does not tell its version within {VERSION_SECONDS:g} s", None
    words = (said[Stream.STDOUT].content() + said[Stream.STDERR].content()).decode(errors="replace")
    return _trouble(ended, words), client.version(words)


def _trouble(ended: Exit, words: str) -> str | None:
    if ended.code == 0:
        return None
    last = words.strip().splitlines()[-1:] or ["it said nothing"]
    return f"it does not run behind the wall: {last[0][:200]}"
