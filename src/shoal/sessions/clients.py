"""Agent clients on this host: whether one is installed, its version, and whether it has a login."""

import asyncio
import contextlib
import functools
import json
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shoal import proc
from shoal.adapters.client import Client, Version, this_host
from shoal.adapters.kind import Adapter
from shoal.adapters.registry import adapter as adapter_named
from shoal.adapters.registry import list_plugin_adapters
from shoal.errors import ShoalError, Unavailable
from shoal.model.agent import CLIENTS, AgentSpec
from shoal.model.command import Command
from shoal.model.policy import Policy
from shoal.proc import Exit, Stream
from shoal.proc.output import HeadBuffer
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.credentials import login_files
from shoal.sessions.sandboxed import open_sandboxed
from shoal.sessions.session_dir import SYSTEM_PATH
from shoal.sessions.toolchain import toolchain

VERSION_SECONDS = 20.0
MANIFEST = "package.json"
LARGEST_MANIFEST = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundClient:
    """A client as found on this host."""

    path: Path | None = None
    version: Version | None = None
    login: str | None = None
    """Its login: the name of a variable, or a file; `None` if it has none."""


async def find_client(adapter: Adapter, client: Client, program: str, environ: Mapping[str, str]) -> FoundClient:
    """Look for a client without changing anything of the user's."""
    search = environ.get("PATH", "")
    found = shutil.which(find_installed_name(client, program, search), path=search)
    login = _login(adapter, client, environ)
    if found is None:
        return FoundClient(login=login)
    return FoundClient(path=Path(found), version=await version(client, Path(found), environ), login=login)


def find_installed_name(client: Client | None, program: str, search: str) -> str:
    """Return the name under which *program* is on the path *search*: its own, or an alias of its package."""
    if client is None or program != client.program or shutil.which(program, path=search):
        return program
    return next((name for name in client.aliases if shutil.which(name, path=search)), program)


def ready_clients(environ: Mapping[str, str]) -> list[str]:
    """List the clients that are installed and have a login, without starting any."""
    search, found = environ.get("PATH", ""), []
    for name in CLIENTS:
        kind = adapter_named(name, this_host())
        client = kind.client
        if client is not None and shutil.which(find_installed_name(client, client.program, search), path=search):
            found += [name] if not client.needs_login or _login(kind, client, environ) else []
    return found


async def assert_clients(specs: Iterable[tuple[Adapter, AgentSpec, bool]], environ: Mapping[str, str]) -> None:
    """Refuse agents whose client is missing, too old or not logged in, in one line that says what to run.

    Each agent comes with whether it needs a login; on the gateway it needs none.
    """
    wanted = {
        (spec.adapter, spec.command, tuple(sorted(spec.env)), needs_login): (adapter, spec, needs_login)
        for adapter, spec, needs_login in specs
    }
    for adapter, spec, needs_login in wanted.values():
        if adapter.client is not None:
            await _assert_client(adapter, adapter.client, spec, environ, needs_login=needs_login)


async def _assert_client(
    adapter: Adapter, client: Client, spec: AgentSpec, environ: Mapping[str, str], *, needs_login: bool
) -> None:
    program = spec.command[0] if spec.command else client.program
    found = await find_client(adapter, client, program, {**environ, **spec.env, "PATH": environ.get("PATH", "")})
    what = f"the agent client {adapter.name}"
    if found.path is None:
        raise Unavailable(what, f"{program!r} is not on PATH", f"install it: {client.install}")
    is_itself = Path(program).name == client.program  # the version of a launcher says nothing
    if is_itself and client.is_too_old(found.version):
        is_, least = format_version(found.version), format_version(client.oldest)
        raise Unavailable(what, f"{found.path} is {is_}, but at least {least} is required", f"run: {client.install}")
    if needs_login and found.login is None and client.needs_login and not _has_key(client, spec):
        raise Unavailable(what, "it has no login here", client.login)


def format_version(version: Version | None) -> str:
    """Format a version for people."""
    return ".".join(map(str, version)) if version else "of unknown version"


def _has_key(client: Client, spec: AgentSpec) -> bool:
    return any(spec.env.get(key) for key in client.keys)


def _login(adapter: Adapter, client: Client, environ: Mapping[str, str]) -> str | None:
    if key := next((name for name in client.keys if environ.get(name)), None):
        return f"${key}"
    return next((f"~/{file.relative_to(environ['HOME'])}" for file in login_files(adapter, environ)), None)


async def version(client: Client, path: Path, environ: Mapping[str, str]) -> Version | None:
    """Find a client's version in the package that it belongs to, which is cheap, or by running it."""
    real = path.resolve()
    return _npm_version(real) or await _ask_version(client, path, real.stat().st_mtime_ns, environ)


@functools.lru_cache(maxsize=64)
def _npm_version(real: Path) -> Version | None:
    """Read the manifest of the npm package that contains *real*."""
    if "node_modules" not in real.parts:
        return None
    for folder in real.parents:
        if folder.name == "node_modules":
            return None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            with (folder / MANIFEST).open("rb") as file:
                text = json.loads(file.read(LARGEST_MANIFEST))["version"]
            return tuple(int(part) for part in text.partition("-")[0].split("."))
    return None


_known: dict[tuple[Path, int], Version | None] = {}


async def _ask_version(client: Client, path: Path, changed: int, environ: Mapping[str, str]) -> Version | None:
    """Ask the program itself, once per program; it gets no home of the user and no key."""
    if (path, changed) not in _known:
        printed = b""
        with (
            contextlib.suppress(ShoalError, OSError, TimeoutError),
            tempfile.TemporaryDirectory(prefix="shoal-version-", ignore_cleanup_errors=True) as home,
        ):
            env = {"PATH": ":".join((str(path.parent), environ.get("PATH", ""), *SYSTEM_PATH)), "HOME": home}
            command = Command(argv=(str(path), *client.version_arguments), cwd=Path("/"), env=env)
            done = await proc.run(command, timeout=VERSION_SECONDS, limit=LARGEST_MANIFEST)
            printed = done.stdout or done.stderr
        _known[path, changed] = client.version(printed.decode(errors="replace"))
    return _known[path, changed]


OUTPUT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus:
    """The state of an agent client on this host."""

    agent: str
    client: Client
    found: FoundClient
    trouble: str | None = None
    """Why it does not run in the sandbox, if it was tried."""

    @property
    def is_ready(self) -> bool:
        """Return whether it could run a task now."""
        found, client = self.found, self.client
        has_login = found.login is not None or not client.needs_login
        return found.path is not None and not client.is_too_old(found.version) and has_login and not self.trouble


async def check_clients(sandbox: Sandbox | None, environ: Mapping[str, str]) -> list[ClientStatus]:
    """Look for the client of every adapter, and try the installed ones in *sandbox*."""
    host = this_host()
    found: list[ClientStatus] = []
    for name in (*CLIENTS, *list_plugin_adapters()):
        try:
            kind = adapter_named(name, host)
        except Unavailable as error:  # a fault in one package does not hide the others
            found.append(_unavailable_status(name, error))
            continue
        if kind.client is not None:
            found.append(await _check_client(kind, kind.client, sandbox, environ))
    return found


def _unavailable_status(name: str, error: Unavailable) -> ClientStatus:
    client = Client(program=name, install=error.remedy, login=error.remedy)
    return ClientStatus(agent=name, client=client, found=FoundClient(), trouble=str(error))


async def _check_client(
    kind: Adapter, client: Client, sandbox: Sandbox | None, environ: Mapping[str, str]
) -> ClientStatus:
    found = await find_client(kind, client, client.program, environ)
    standing = ClientStatus(agent=kind.name, client=client, found=found)
    if found.path is None or sandbox is None:
        return standing
    try:
        trouble, version = await _try_client(client, found.path, sandbox, environ)
    except (ShoalError, OSError) as error:
        trouble, version = str(error), None
    return replace(standing, trouble=trouble, found=replace(found, version=found.version or version))


async def _try_client(
    client: Client, path: Path, sandbox: Sandbox, environ: Mapping[str, str]
) -> tuple[str | None, Version | None]:
    """Ask it for its version inside the sandbox, and return what is wrong with the answer."""
    home = Path(environ.get("HOME") or "/nowhere")
    tools = toolchain(str(path), search=environ.get("PATH", ""), private=(home,))
    buffers = {stream: HeadBuffer(OUTPUT_BYTES) for stream in Stream}
    with tempfile.TemporaryDirectory(prefix="shoal-client-") as scratch:
        env = {"PATH": ":".join((*map(str, tools.path), *SYSTEM_PATH)), "HOME": scratch, "TMPDIR": scratch}
        command = Command(argv=(str(path), *client.version_arguments), cwd=Path(scratch), env=env)
        Path(scratch).chmod(0o777)  # the agent is another user in its sandbox
        policy = Policy(token=secrets.token_hex(8), read=tools.read, write=(Path(scratch),))
        sink = lambda stream, data: buffers[stream].feed(data)  # noqa: E731 - of one line, like the others
        try:
            async with (
                asyncio.timeout(VERSION_SECONDS),
                open_sandboxed(sandbox, command, policy, sink=sink) as sandboxed,
            ):
                ended = await sandboxed.wait()
        except TimeoutError:
            return f"it did not print its version within {VERSION_SECONDS:g} s", None
    words = (buffers[Stream.STDOUT].content() + buffers[Stream.STDERR].content()).decode(errors="replace")
    return _trouble(ended, words), client.version(words)


def _trouble(ended: Exit, words: str) -> str | None:
    if ended.code == 0:
        return None
    last = words.strip().splitlines()[-1:] or ["it printed nothing"]
    return f"it does not run in the sandbox: {last[0][:200]}"
