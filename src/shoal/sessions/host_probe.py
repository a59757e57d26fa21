"""Find out by trying which sandbox and which kind of workspace this host supports."""

import asyncio
import contextlib
import functools
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from shoal import proc
from shoal.errors import Broken, ShoalError, Unavailable, first_error
from shoal.limits.cgroups import Fleet
from shoal.model.command import Command
from shoal.model.policy import Layers, Policy
from shoal.proc.free_space import free_floor
from shoal.sandboxes.host import SandboxHost, Trial, inspect_host
from shoal.sandboxes.kind import Sandbox
from shoal.sandboxes.registry import find, trials
from shoal.sessions.sandboxed import open_sandboxed
from shoal.store.paths import TRIAL, StatePaths
from shoal.workspaces import registry
from shoal.workspaces.kind import Kind, WorkspaceHost
from shoal.workspaces.quota import assert_available, unwritten_bytes
from shoal.workspaces.remove import Trash, remove_all

HOST = Path("/dev")
FOLDER = HOST / "shoal"  # file systems for temporary files may refuse devices; this one never does
NAMES = ("null", "zero", "full", "random", "urandom", "tty")
NOBODY = 65534
MODE = stat.S_IFCHR | 0o666


def device_nodes() -> tuple[Path, ...]:
    """Return device nodes that belong to nobody, made once per boot; none if they are unnecessary or impossible.

    A sandbox started by root has no capabilities, and so cannot change what belongs to somebody else.
    """
    if not owns_host_nodes():
        return ()
    with contextlib.suppress(OSError):
        if not _are_whole():
            _make()
        return tuple(FOLDER / name for name in NAMES)
    return ()


def owns_host_nodes() -> bool:
    """Return whether the host's nodes belong to the current user."""
    return (HOST / "null").stat().st_uid == os.geteuid()


def _are_whole() -> bool:
    def facts(path: Path) -> tuple[int, int, int]:
        found = path.lstat()
        return found.st_mode, found.st_uid, found.st_rdev

    with contextlib.suppress(OSError):
        return all(facts(FOLDER / name) == (MODE, NOBODY, (HOST / name).stat().st_rdev) for name in NAMES)
    return False


def _make() -> None:
    """Make them in a temporary folder and rename it: another Shoal may do the same, and readers find all or none."""
    aside = Path(tempfile.mkdtemp(prefix=".shoal-", dir=HOST))
    try:
        for name in NAMES:
            node = aside / name
            os.mknod(node, MODE, (HOST / name).stat().st_rdev)
            node.chmod(0o666)  # mknod respects the umask
            os.chown(node, NOBODY, NOBODY)
        aside.chmod(0o755)
        if FOLDER.exists():
            FOLDER.rename(aside / "old")
        with contextlib.suppress(OSError):  # another Shoal was faster
            aside.rename(FOLDER)
        shutil.rmtree(FOLDER / "old", ignore_errors=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    if not _are_whole():
        raise OSError(f"{FOLDER} was changed after it was made")


MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
TRIAL_SECONDS = 45.0  # milliseconds, except on a host with a hundred busy processes


async def probe_sandbox(name: str, environ: Mapping[str, str]) -> Sandbox:
    """Return the sandbox called *name* after a trial; never another kind."""
    return find(name, await _probe(name, environ.get("PATH", os.defpath)))


async def _probe(name: str, search: str) -> SandboxHost:
    host = _host(search)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {kind: group.create_task(_trial(command)) for kind, command in trials(host, name).items()}
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return host.with_trials({kind: task.result() for kind, task in tasks.items()})


async def _trial(command: Command) -> Trial:
    try:
        done = await proc.run(command, timeout=TRIAL_SECONDS)
    except TimeoutError:
        raise Broken(f"the sandbox did not start within {TRIAL_SECONDS:g} s; the host may be overloaded") from None
    return Trial(code=done.exit.code, stdout=done.stdout, stderr=done.stderr)


@functools.cache
def _host(search: str) -> SandboxHost:
    return inspect_host(search, device_nodes())


async def kind_of_workspace(strategy: str, sandbox: Sandbox, paths: StatePaths, *, stays: bool = False) -> Kind:
    """Return the requested kind of workspace; `auto` is overlay, or worktree where overlay is not available.

    With *stays*, the workspace must outlive its agent, so it is never an overlay, which exists only while mounted.
    """
    trial = paths.session_dirs / f"{TRIAL}{Fleet.ours().name}"
    host = WorkspaceHost(pool=paths.pool, trial=trial, try_layers=functools.partial(_try_layers, sandbox))
    try:
        return await registry.find(strategy, host, stays=stays)
    finally:
        if trial.exists():
            trash = Trash(paths.root / "trash")
            trash.throw(trial)  # immediately: a cancellation can interrupt a removal
            await trash.empty()


def assert_room(paths: StatePaths) -> None:
    """Raise `Broken` if one more session would use the host's last free disk space."""
    # What the disk has yet to take is in memory: where there is room for that much, nobody has to count.
    if free_floor(paths.root, coming_bytes=MEMORY_BYTES) is None:
        return
    if short := free_floor(paths.root, coming_bytes=unwritten_bytes(paths.session_dirs)):
        raise Broken(f"{short}; free some space, or run `shoal clean`")


async def assert_exact_disk(sandbox: Sandbox, paths: StatePaths) -> None:
    """Try a disk of fixed size; raise `Unavailable` if no agent could be limited to one."""
    if not sandbox.confines:
        why = "without a sandbox an agent can write to every disk"
        raise Unavailable("`disk: exact`", why, "use the bubblewrap sandbox, or set `disk: polled`")
    place = paths.session_dirs / f"{TRIAL}{Fleet.ours().name}"
    try:
        await assert_available(place)
    finally:
        await remove_all(place)


async def _try_layers(sandbox: Sandbox, layers: Layers) -> bool:
    """Try to edit and delete in an overlay that a sandbox mounts."""
    if not sandbox.mounts:
        return False
    target = layers.target
    script = 'echo x > "$1/new" && echo x > "$1/file" && rm "$1/file"'
    env = {"PATH": "/usr/bin:/bin"}
    command = Command(argv=("/bin/sh", "-c", script, "sh", str(target)), cwd=target, env=env)
    policy = Policy(write=(target,), layers=layers, token=secrets.token_hex(8), uid=os.getuid(), gid=os.getgid())
    try:
        async with open_sandboxed(sandbox, command, policy, sink=lambda _stream, _data: None) as sandboxed:
            return (await sandboxed.wait()).code == 0
    except ShoalError:
        return False
