"""A host reached by OpenSSH: the commands that run there, and what its errors mean."""

import contextlib
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal import proc
from shoal.errors import BadInput, Broken
from shoal.executors.carriers.kind import NodeUnavailable
from shoal.model.command import Command, OpenInput
from shoal.model.nodes import HOST

CONNECT_SECONDS = 20
ALIVE_SECONDS, ALIVE_COUNT = 5, 3
"""A connection over which nothing came for their product is dead."""
PERSIST_SECONDS = 30
CLOSE_SECONDS = 5.0
MAX_SOCKET_FOLDER_CHARS = 45  # a socket's path has 107 characters, and ssh adds 58
NODE_FOLDER = ".local/share/shoal/node"
"""Where `shoal node install` puts Shoal, below the home on the host."""
NOT_INSTALLED = "shoal-is-not-installed"
SSH_FAILED = 255

# The user's configuration decides who and where; these keep it from asking, and from anything but bytes.
OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": str(CONNECT_SECONDS),
    "ServerAliveInterval": str(ALIVE_SECONDS),
    "ServerAliveCountMax": str(ALIVE_COUNT),
    "ControlMaster": "auto",
    "ControlPersist": str(PERSIST_SECONDS),
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "EscapeChar": "none",
    "ForkAfterAuthentication": "no",
    "StdinNull": "no",
    "LogLevel": "ERROR",
}


@dataclass(frozen=True, slots=True)
class SshHost:
    """A host as the user names it, `host` or `user@host`, and the folder for the socket of its shared connection."""

    place: str
    environ: Mapping[str, str]
    sockets: Path

    def command(self, script: str, *arguments: str, stdin: bytes | Path | OpenInput = b"") -> Command:
        """Return the command that runs *script* there by `sh`, with *arguments* as `$1` and so on.

        *script* is one line without a `'`, so that every login shell passes it on as it is.
        """
        assert "'" not in script and "\n" not in script  # noqa: S101, PT018 - scripts are ours
        remote = " ".join(("exec /bin/sh -c", f"'{script}'", "shoal", *map(shlex.quote, arguments)))
        return Command(
            argv=(*self._ssh(), "--", self._destination(), remote), cwd=Path("/"), env=self.environ, stdin=stdin
        )

    def _ssh(self) -> tuple[str, ...]:
        options = OPTIONS | {"ControlPath": f"{self.sockets}/%C"}
        return ("ssh", "-T", "-a", "-x", *(f"-o{name}={value}" for name, value in options.items()))

    def _destination(self) -> str:
        return self.place.replace("[", "").replace("]", "")

    async def close(self) -> None:
        """End the shared connection, where one is open."""
        argv = (*self._ssh(), "-Oexit", "--", self._destination())
        with contextlib.suppress(TimeoutError):
            await proc.run(Command(argv=argv, cwd=Path("/"), env=self.environ), timeout=CLOSE_SECONDS)


@contextlib.asynccontextmanager
async def open_ssh_host(place: str, environ: Mapping[str, str]) -> AsyncIterator[SshHost]:
    """Yield *place* as a host, with a connection that all commands share."""
    if not HOST.fullmatch(place):  # an option in its place would run a program here
        raise BadInput(f"{place!r:.80} is no name of a host; give `host` or `user@host`")
    if shutil.which("ssh", path=environ.get("PATH", os.defpath)) is None:
        raise NodeUnavailable(place, "there is no ssh here to reach it", "install the OpenSSH client")
    with _open_socket_folder() as folder:
        host = SshHost(place, environ, folder)
        try:
            yield host
        finally:
            await host.close()


@contextlib.contextmanager
def _open_socket_folder() -> Iterator[Path]:
    """Make a folder of ours with a short path; those of killed processes are removed."""
    top = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < MAX_SOCKET_FOLDER_CHARS // 2 else "/tmp")  # noqa: S108
    mine = _make_private(top / f"shoal-ssh-{os.getuid()}")
    for other in mine.iterdir():
        if not Path("/proc", other.name.partition("-")[0]).exists():
            shutil.rmtree(other, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=mine))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are in it
            mine.rmdir()


def _make_private(path: Path) -> Path:
    """Make *path* a folder that only this user enters; another user may have been there first."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Broken(f"{path} is not a folder of this user's alone; remove it")
    return path


def explain_ssh(place: str, stderr: bytes) -> tuple[str, str]:
    """Say why a command on *place* failed by what ssh printed, and what mends it."""
    text = stderr.decode(errors="replace").strip()
    if NOT_INSTALLED in text:
        return "Shoal is not installed there", f"run: shoal node install {place}"
    last = text.splitlines()[-1].strip()[:MAX_WHY_CHARS] if text else "the connection ended without a word"
    for sign, remedy in REMEDIES.items():
        if sign in text:
            return last, remedy.format(place=place)
    return last, f"try: ssh {place} true"


MAX_WHY_CHARS = 300
# ssh says what is wrong in words only; its exit code is the same for all.
REMEDIES = {
    "IDENTIFICATION HAS CHANGED": (
        "its key is not the one that you know: ask who runs it; if the key is right, remove the old one with"
        " `ssh-keygen -R`"
    ),
    "Host key verification failed": "connect once by hand to accept its key: ssh {place} true",
    "Permission denied": "make a login without a password work, with ssh-copy-id or ssh-add: ssh {place} true",
    "Too many authentication failures": "name the key for it in ~/.ssh/config, with IdentitiesOnly: ssh {place} true",
    "Could not resolve hostname": "check its name, or give it a HostName in ~/.ssh/config",
    "Connection refused": "start sshd there, or give its Port in ~/.ssh/config",
    "No route to host": "check that the host is up and reachable: ssh {place} true",
    "timed out": "check that the host is up and reachable: ssh {place} true",
    "not responding": "check that the host is up and reachable: ssh {place} true",
    "Bad configuration option": "mend your ssh configuration",
}
