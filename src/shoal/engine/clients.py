"""Agent clients on this host: is one installed, how old is it, and does it have a login."""

import contextlib
import functools
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal import proc
from shoal.adapters.client import Client, Version
from shoal.adapters.kind import Adapter
from shoal.engine.credentials import login_files
from shoal.engine.lease import SYSTEM_PATH
from shoal.errors import ShoalError, Unavailable
from shoal.model.agent import AgentSpec
from shoal.model.command import Command

VERSION_SECONDS = 20.0
MANIFEST = "package.json"
LARGEST_MANIFEST = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look at this host shows of a client."""

    path: Path | None = None
    version: Version | None = None
    login: str | None = None
    """What it will log in with: a variable's name, or a file; `None` where there is neither."""


async def look(adapter: Adapter, client: Client, program: str, environ: Mapping[str, str]) -> Found:
    """Look for a client; nothing of the user's is changed by that."""
    found = shutil.which(program, path=environ.get("PATH", ""))
    login = _login(adapter, client, environ)
    if found is None:
        return Found(login=login)
    return Found(path=Path(found), version=await version(client, Path(found), environ), login=login)


async def assert_clients(specs: Iterable[tuple[Adapter, AgentSpec]], environ: Mapping[str, str]) -> None:
    """Refuse agents whose client is missing, too old or not logged in, in one line that says what to run."""
    wanted = {(spec.adapter, spec.command, tuple(sorted(spec.env))): (adapter, spec) for adapter, spec in specs}
    for adapter, spec in wanted.values():
        if adapter.client is not None:
            await _assert_client(adapter, adapter.client, spec, environ)


async def _assert_client(adapter: Adapter, client: Client, spec: AgentSpec, environ: Mapping[str, str]) -> None:
    program = spec.command[0] if spec.command else client.program
    found = await look(adapter, client, program, {**environ, **spec.env, "PATH": environ.get("PATH", "")})
    what = f"the agent client {adapter.name}"
    if found.path is None:
        raise Unavailable(what, f"{program!r} is not on PATH", f"install it: {client.install}")
    is_itself = Path(program).name == client.program  # a launcher's version says nothing
    if is_itself and client.is_too_old(found.version):
        is_, least = spelt(found.version), spelt(client.oldest)
        raise Unavailable(what, f"{found.path} is {is_}, and at least {least} is needed", f"run: {client.install}")
    if found.login is None and client.needs_login and not _has_key(client, spec):
        raise Unavailable(what, "it has no login here", client.login)


def spelt(version: Version | None) -> str:
    """Write a version as people do."""
    return ".".join(map(str, version)) if version else "of unknown version"


def _has_key(client: Client, spec: AgentSpec) -> bool:
    return any(spec.env.get(key) for key in client.keys)


def _login(adapter: Adapter, client: Client, environ: Mapping[str, str]) -> str | None:
    if key := next((name for name in client.keys if environ.get(name)), None):
        return f"${key}"
    return next((f"~/{file.relative_to(environ['HOME'])}" for file in login_files(adapter, environ)), None)


async def version(client: Client, path: Path, environ: Mapping[str, str]) -> Version | None:
    """Find a client's version: from the package that it lies in, which costs nothing, else by asking it."""
    real = path.resolve()
    return _packaged(real) or await _asked(client, path, real.stat().st_mtime_ns, environ)


@functools.lru_cache(maxsize=64)
def _packaged(real: Path) -> Version | None:
    """Read the manifest of the npm package that *real* is a file of."""
    if "node_modules" not in real.parts:
        return None
    for folder in real.parents:
        if folder.name == "node_modules":
            return None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            with (folder / MANIFEST).open("rb") as file:
                said = json.loads(file.read(LARGEST_MANIFEST))["version"]
            return tuple(int(part) for part in said.partition("-")[0].split("."))
    return None


_known: dict[tuple[Path, int], Version | None] = {}


async def _asked(client: Client, path: Path, changed: int, environ: Mapping[str, str]) -> Version | None:
    """Ask the program itself, once for each that we meet; it gets no home of the user's and no key."""
    if (path, changed) not in _known:
        said = b""
        with (
            contextlib.suppress(ShoalError, OSError, TimeoutError),
            tempfile.TemporaryDirectory(prefix="shoal-version-", ignore_cleanup_errors=True) as home,
        ):
            env = {"PATH": ":".join((str(path.parent), environ.get("PATH", ""), *SYSTEM_PATH)), "HOME": home}
            command = Command(argv=(str(path), *client.version_arguments), cwd=Path("/"), env=env)
            done = await proc.run(command, timeout=VERSION_SECONDS, limit=LARGEST_MANIFEST)
            said = done.stdout or done.stderr
        _known[path, changed] = client.version(said.decode(errors="replace"))
    return _known[path, changed]
