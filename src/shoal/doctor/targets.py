"""Targets on the host for an attacker, which record whether they were reached, and the scratch folder for them."""

import asyncio
import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal import proc
from shoal.errors import Broken
from shoal.limits.cgroups import Fleet, is_left_on_disk
from shoal.limits.kind import kill_each
from shoal.model.command import Command
from shoal.model.gateway import CONNECT_PORT, PORT
from shoal.proc.process import is_ended
from shoal.workspaces.mount import list_mounts, unmount
from shoal.workspaces.remove import remove_all

IDLE = "while :; do sleep 9; done"
PATIENCE = 1.0
LOOK = 0.02
BACKLOG = 16
LONGEST_SOCKET = 107
README = "README.md"


class Listener:
    """A listening socket that records whether anything connected or sent to it."""

    def __init__(self, family: int, kind: int, address: str | tuple[str, int]) -> None:
        self.socket = socket.socket(family, kind)
        self.socket.setblocking(False)
        self.socket.bind(address)
        self._is_stream = kind == socket.SOCK_STREAM
        if self._is_stream:
            self.socket.listen(BACKLOG)

    def is_reached(self) -> bool:
        """Return whether anything connected."""
        with contextlib.suppress(BlockingIOError):
            if self._is_stream:
                self.socket.accept()[0].close()
            else:
                self.socket.recv(1)
            return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackTargets:
    """All targets; *secret* is in what must not be read, and *mark* is what the attacker leaves."""

    folder: Path
    home: tuple[Path, ...]
    """The user's home, if there is one."""
    git: Path
    mark: str
    secret: str
    decoy: int
    decoy_fd: int
    ears: Mapping[str, tuple[Listener, ...]]
    terminal: tuple[int, str] | None
    signals: list[int]
    before: str
    """A digest of the repository's configuration and hooks before the attack."""
    readme: bytes

    @property
    def canaries(self) -> tuple[Path, ...]:
        """The files outside the sandbox that the attacker tries to create."""
        places = (self.folder, *self.home, SHORT, Path("/dev/shm"))  # noqa: S108
        return tuple(dict.fromkeys(place / f".{self.mark}" for place in places))

    def plan(self, tries: tuple[str, ...]) -> dict[str, object]:
        """Return the attacker's plan: where everything is, but not the secret."""
        return {
            "tries": tries,
            "mark": self.mark,
            "secret": str(self.folder / "secret"),
            "write": [str(path) for path in (*self.canaries, self.git.parent / README)],
            "decoy": self.decoy,
            "coordinator": os.getpid(),
            "gateway": [PORT, CONNECT_PORT],
            "port": self.ears["tcp"][0].socket.getsockname()[1],
            "udp_port": self.ears["tcp"][1].socket.getsockname()[1],
            "socket": self.ears["socket"][0].socket.getsockname(),
            "abstract": self.mark,
            "terminal": self.terminal[1] if self.terminal else "/dev/tty",
            "git": str(self.git),
            "canary": str(self.folder / "canary"),
        }

    async def inspect(self) -> dict[str, str]:
        """Return what the host saw of each try after the attacker's sandbox has ended."""
        found = dict(self._list_reached())
        written = [path for path in self.canaries if path.exists()]
        if readme(self.git) != self.readme:
            written.append(self.git.parent)
        if written:
            found["write"] = f"written: {', '.join(map(str, written))}"
        if is_ended(self.decoy_fd):
            found["signal"] = "a process of the host was killed"
        elif self.signals:
            found["signal"] = "this process was signalled"
        if mounts := [path for path in list_mounts(self.git.parent) if path.name == "mounted"]:
            found["mount"] = f"mounted: {mounts[0]}"
        if self._has_terminal_input():
            found["terminal"] = "something was written to the terminal"
        if (self.folder / "canary").exists():
            found["git"] = "a planted program ran on the host"
        elif fingerprint(self.git) != self.before:
            found["git"] = "the repository was changed"
        if not await wait_until_gone(self.mark):
            found["linger"] = "it still runs after the sandbox has ended"
        return found

    def _list_reached(self) -> Iterator[tuple[str, str]]:
        for name, ears in self.ears.items():
            if any(ear.is_reached() for ear in ears):
                yield name, "reached: the host's listener was connected to"

    def _has_terminal_input(self) -> bool:
        if self.terminal is None:
            return False
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self.terminal[0], 64))
        return False

    def clear(self) -> None:
        """Remove what an attacker may have left outside the scratch folder, mounted, or running."""
        kill_each(lambda: running(self.mark))
        for path in self.canaries:
            path.unlink(missing_ok=True)
        for path in list_mounts(self.git.parent):
            if path.name == "mounted":
                unmount(path)


@contextlib.asynccontextmanager
async def open_targets(folder: Path, git: Path, environ: Mapping[str, str]) -> AsyncIterator[AttackTargets]:
    """Set up all targets below *folder*, and remove them on exit, whatever was done to them."""
    mark, secret = f"shoal-doctor-{secrets.token_hex(6)}", secrets.token_hex(12)
    folder.mkdir()
    (folder / "secret").write_text(secret)
    argv = ("/bin/sh", "-c", IDLE, f"decoy-{secret}")
    decoy = Command(argv=argv, cwd=Path("/"), env={"PATH": "/usr/bin:/bin", "TOKEN": secret})
    with contextlib.ExitStack() as undo:
        ears, terminal, signals = _ears(folder, mark, undo), _terminal(undo), _signals(undo)
        async with proc.open_process(decoy, sink=lambda _stream, _data: None, grace=0) as process:
            decoy_fd = os.pidfd_open(process.pid)
            undo.callback(os.close, decoy_fd)
            bait = AttackTargets(
                folder=folder,
                home=(Path(environ["HOME"]),) if environ.get("HOME") else (),
                git=git,
                mark=mark,
                secret=secret,
                decoy=process.pid,
                decoy_fd=decoy_fd,
                ears=ears,
                terminal=terminal,
                signals=signals,
                before=fingerprint(git),
                readme=readme(git),
            )
            try:
                yield bait
            finally:
                bait.clear()


def fingerprint(git: Path) -> str:
    """Digest a repository's configuration and hooks."""
    digest = hashlib.sha256()
    for path in (git / "config", git / "HEAD", *sorted((git / "hooks").glob("*"))):
        digest.update(str(path).encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()


def readme(git: Path) -> bytes:
    """Read the file of the checkout that the attacker tries to overwrite."""
    return (git.parent / README).read_bytes()


async def wait_until_gone(mark: str) -> bool:
    """Wait briefly until no process has *mark* in its command; return whether none is left."""
    try:
        async with asyncio.timeout(PATIENCE):
            while running(mark):  # noqa: ASYNC110 - the exit of an unrelated process is not an event of ours
                await asyncio.sleep(LOOK)
    except TimeoutError:
        return False
    return True


def running(mark: str) -> list[int]:
    """Find the processes that have *mark* in their command."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
    return found


def _ears(folder: Path, mark: str, undo: contextlib.ExitStack) -> dict[str, tuple[Listener, ...]]:
    def ear(family: int, kind: int, address: str | tuple[str, int]) -> Listener:
        made = Listener(family, kind, address)
        undo.enter_context(made.socket)
        return made

    path = folder / "ear"
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        path = Path(tempfile.mkdtemp(prefix=prefix(), dir=SHORT)) / "ear"
        undo.callback(shutil.rmtree, path.parent)
    return {
        "tcp": (
            ear(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            ear(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        ),
        "socket": (ear(socket.AF_UNIX, socket.SOCK_STREAM, str(path)),),
        "abstract": (ear(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{mark}"),),
    }


def _terminal(undo: contextlib.ExitStack) -> tuple[int, str] | None:
    """Open a terminal that represents the user's; `None` if none is available."""
    try:
        master, slave = os.openpty()
    except OSError:
        return None
    for fd in (master, slave):
        undo.callback(os.close, fd)
    os.set_blocking(master, False)
    return master, os.ttyname(slave)


def _signals(undo: contextlib.ExitStack) -> list[int]:
    """Listen for a harmless signal that nothing else sends us."""
    signals: list[int] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGURG, signals.append, signal.SIGURG)
    undo.callback(loop.remove_signal_handler, signal.SIGURG)
    return signals


MARK = "-doctor-"
SHORT = Path("/tmp")  # noqa: S108 - for sockets, whose paths must be short; names in it cannot be guessed


@contextlib.asynccontextmanager
async def scratch_folder() -> AsyncIterator[Path]:
    """Make a folder named after its owner, so that it is recognised as an orphan if the owner was killed."""
    for place in {Path(tempfile.gettempdir()), SHORT}:
        await _remove_orphans(place)
    folder = Path(tempfile.mkdtemp(prefix=prefix())).resolve()
    try:
        yield folder
    finally:
        await _clear(folder)


def prefix() -> str:
    """Return how the names of this process's folders begin."""
    return f"{Fleet.ours().name}{MARK}"


async def _remove_orphans(place: Path) -> None:
    for folder in place.glob(f"shoal-*{MARK}*"):
        owner, _, _ = folder.name.partition(MARK)
        if is_left_on_disk(owner) and folder.lstat().st_uid == os.getuid() and not folder.is_symlink():
            with contextlib.suppress(Broken):  # the next one tries again; nothing here depends on it
                await _clear(folder)


async def _clear(folder: Path) -> None:
    for mount in list_mounts(folder.resolve()):
        unmount(mount)
    await remove_all(folder)
