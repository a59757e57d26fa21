"""What is leased to one session: its folders, ports, database, identity files, and the environment that names them."""

import contextlib
import fcntl
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Broken

PORTS_PER_SESSION = 10
FIRST_PORT = 12_000
BLOCKS = 2_000  # up to 32,000: above that lie the ports that the kernel gives to anybody
_blocks = itertools.cycle([(os.getpid() * 7 + turn) % BLOCKS for turn in range(BLOCKS)])
"""Each session tries the one after the last that was had, so that many of them need not try all that are held."""

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True, slots=True)
class User:
    """Who an agent is in its box."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The private folder of a session and what lies in it."""

    box: Path
    disk: Path
    """Where all lies that the agent can write: the same folder, or a disk of its own below it."""
    session: str
    port: int
    database_name: str | None = None

    @property
    def own(self) -> Path:
        """The folder that the agent may write, and in which all of the following lies."""
        return self.disk / "own"

    @property
    def git(self) -> Path:
        """The agent's own gitdir, a mount by itself: in a folder that the agent may write it could become a link."""
        return self.disk / "git"

    @property
    def home(self) -> Path:
        """Its HOME, with the XDG folders below."""
        return self.own / "home"

    @property
    def tmp(self) -> Path:
        """Its TMPDIR, on disk; `/tmp` in the box is another, in memory."""
        return self.own / "tmp"

    @property
    def database(self) -> Path:
        """Its own SQLite database, which the host never opens."""
        return self.own / "data" / f"agent_{self.database_name or self.session}.db"

    @property
    def inputs(self) -> Path:
        """What it is given to read: prompts, permissions, and files to lay over others (passwd, group, `.git`)."""
        return self.box / "input"

    @property
    def opened(self) -> Path:
        """A mark whose time is the moment at which the agent was let in."""
        return self.box / "opened"

    def environment(self) -> dict[str, str]:
        """Name what is leased, in the words agents and their tools know."""
        url = f"sqlite:///{self.database}"
        home, tmp, inputs = str(self.home), str(self.tmp), str(self.inputs)
        return {
            "HOME": home,
            "TMPDIR": tmp,
            "XDG_CONFIG_HOME": f"{home}/.config",
            "XDG_CACHE_HOME": f"{home}/.cache",
            "XDG_DATA_HOME": f"{home}/.local/share",
            "XDG_STATE_HOME": f"{home}/.local/state",
            "XDG_RUNTIME_DIR": tmp,
            "USER": "agent",
            "LOGNAME": "agent",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "SHOAL_PORT": str(self.port),
            "SHOAL_DATABASE_URL": url,
            "DATABASE_URL": url,
            "COMPOSE_PROJECT_NAME": f"shoal-{self.session}",
            "SHOAL_SESSION": self.session,
            "SHOAL_PROMPT_FILE": f"{inputs}/prompt.md",
            "SHOAL_SYSTEM_PROMPT_FILE": f"{inputs}/system_prompt.md",
        }


@contextlib.contextmanager
def leased(
    box: Path, session: str, prompts: Mapping[str, str | bytes], user: User, *, disk: Path, database: str | None = None
) -> Iterator[Lease]:
    """Fill the session's private folder and hold its ports; who made the folder removes it."""
    with _ports_held() as port:
        lease = Lease(box=box, disk=disk, session=session, port=port, database_name=database)
        inputs = lease.inputs
        for folder in (lease.own, lease.home, lease.tmp, lease.database.parent, inputs):
            folder.mkdir()
        for title, text in prompts.items():
            if "/" in title:
                (inputs / title).parent.mkdir(parents=True, exist_ok=True)
            _write(inputs / title, text if isinstance(text, bytes) else text.encode(errors="replace"))
        passwd = f"agent:x:{user.uid}:{user.gid}:agent:{lease.home}:/bin/sh\n"
        _write(inputs / "passwd", passwd.encode(errors="surrogateescape"))
        _write(inputs / "group", f"agent:x:{user.gid}:\n".encode())
        _write(inputs / "git", f"gitdir: {lease.git}\n".encode(errors="surrogateescape"))
        yield lease


def _write(file: Path, content: bytes) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)  # a third of what Path takes
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _ports_held() -> Iterator[int]:
    """Hold a block of ten ports against every other Shoal of this user, by a lock that a kill frees."""
    folder = _ports_folder()
    for block in itertools.islice(_blocks, BLOCKS):
        fd = os.open(folder / str(block), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        try:
            yield FIRST_PORT + block * PORTS_PER_SESSION
        finally:
            os.close(fd)
        return
    raise Broken(f"all {BLOCKS} blocks of ports are leased")


def _ports_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise Broken(f"{folder} belongs to somebody else; remove it")
    return folder
