"""The session directory: private folders, ports, database, identity files, and the variables that name them."""

import contextlib
import fcntl
import functools
import itertools
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.databases.session_database import SessionDatabase
from shoal.errors import Broken

PORTS_PER_SESSION = 10
FIRST_PORT = 12_000
BLOCKS = 2_000  # up to port 32,000: the kernel assigns those above to anybody
_blocks = itertools.cycle([(os.getpid() * 7 + turn) % BLOCKS for turn in range(BLOCKS)])
"""Each session tries the block after the last one taken, so that many sessions need not try all taken ones."""

TMP = "tmp"
"""Its TMPDIR, on disk; `/tmp` in the sandbox is another, in memory."""
PROGRAMS = "bin/"
"""What is in this folder of the inputs can be run."""
SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True, slots=True)
class User:
    """The agent's user in its sandbox."""

    uid: int
    gid: int


@dataclass(frozen=True, kw_only=True)
class SessionDir:
    """The private files of a session; without slots, so that each path is made once."""

    path: Path
    disk: Path
    """The folder with all that the agent can write: the same folder, or a disk of its own below it."""
    session: str
    port: int
    database_name: str | None = None
    shared: SessionDatabase | None = None
    """What it has on the server that all sessions share, with `database_strategy: shared`."""

    @functools.cached_property
    def own(self) -> Path:
        """The folder that the agent may write, which contains everything below."""
        return self.disk / "own"

    @functools.cached_property
    def git(self) -> Path:
        """The agent's own gitdir, mounted separately: in a folder that the agent can write, it could become a link."""
        return self.disk / "git"

    @functools.cached_property
    def home(self) -> Path:
        """Its HOME, with the XDG folders below."""
        return self.own / "home"

    @functools.cached_property
    def database(self) -> Path:
        """Its own SQLite database, which the host never opens."""
        return self.own / self._database

    @property
    def _database(self) -> str:
        return f"data/agent_{self.database_name or self.session}.db"

    @functools.cached_property
    def inputs(self) -> Path:
        """What it gets to read: prompts, permissions, and files that cover others (passwd, group, `.git`)."""
        return self.path / "input"

    @property
    def shown(self) -> tuple[Path, ...]:
        """The folders that its sandbox shows read-only: what it gets to read, and the socket of its database."""
        return (self.inputs,) if self.shared is None else (self.inputs, self.shared.folder)

    @functools.cached_property
    def opened(self) -> Path:
        """A file whose time is when the agent was started."""
        return self.path / "opened"

    @functools.cached_property
    def unopened(self) -> Path:
        """A mark that a workspace is set up, and that no agent is let in before `opened` is there too."""
        return self.path / "unopened"

    @property
    def is_opened(self) -> bool:
        """Say whether what lies in the workspace may be the agent's work; before that it is set-up's."""
        return self.opened.exists() or not self.unopened.exists()

    @property
    def database_names(self) -> frozenset[str]:
        """The variables that name what it has on a database server."""
        return frozenset() if self.shared is None else frozenset(self.shared.environment())

    def environment(self) -> dict[str, str]:
        """Return the variables that name it, as agents and their tools expect them."""
        own, home, inputs = str(self.own), str(self.home), str(self.inputs)
        url = f"sqlite:///{own}/{self._database}"
        tmp = f"{own}/{TMP}"
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
            **(self.shared.environment() if self.shared else {"SHOAL_DATABASE_URL": url, "DATABASE_URL": url}),
            "COMPOSE_PROJECT_NAME": f"shoal-{self.session}",
            "SHOAL_SESSION": self.session,
            "SHOAL_PROMPT_FILE": f"{inputs}/prompt.md",
            "SHOAL_SYSTEM_PROMPT_FILE": f"{inputs}/system_prompt.md",
        }


@contextlib.contextmanager
def hold_session_dir(
    path: Path,
    session: str,
    prompts: Mapping[str, str | bytes],
    user: User | None,
    *,
    disk: Path,
    database: str | None = None,
    written: dict[str, bytes] | None = None,
) -> Iterator[SessionDir]:
    """Fill the session directory and hold its ports; the caller made the folder and removes it.

    In a reused directory, only what differs from what was *written* then is written. *user* is `None` for a sandbox
    that cannot cover files with others.
    """
    with _ports_held() as port:
        directory = SessionDir(path=path, disk=disk, session=session, port=port, database_name=database)
        own, inputs = str(directory.own), str(directory.inputs)
        if not os.path.exists(own):  # noqa: PTH110 - strings here and below, which take half the time
            for folder in (own, *(f"{own}/{name}" for name in ("home", TMP, "data")), inputs):
                os.mkdir(folder)  # noqa: PTH102
        there = {} if written is None else written
        contents = {
            **{
                title: text if isinstance(text, bytes) else text.encode(errors="replace")
                for title, text in prompts.items()
            },
            **(
                {title: text.encode(errors="surrogateescape") for title, text in _covers(directory, user).items()}
                if user
                else {}
            ),
        }
        for title, content in contents.items():
            if there.get(title) != content:
                if "/" in title:
                    (directory.inputs / title).parent.mkdir(parents=True, exist_ok=True)
                _write(f"{inputs}/{title}", content, 0o755 if title.startswith(PROGRAMS) else 0o644)
        there.update(contents)
        yield directory


def _covers(directory: SessionDir, user: User) -> dict[str, str]:
    """Return the files that the sandbox puts over those that every sandbox has."""
    return {
        "passwd": f"agent:x:{user.uid}:{user.gid}:agent:{directory.home}:/bin/sh\n",
        "group": f"agent:x:{user.gid}:\n",
        "git": f"gitdir: {directory.git}\n",
    }


def _write(file: str, content: bytes, mode: int) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        os.write(fd, content)
        os.ftruncate(fd, len(content))  # truncated afterwards: ext4 flushes a file at once that was emptied before
    finally:
        os.close(fd)


@contextlib.contextmanager
def _ports_held() -> Iterator[int]:
    """Hold a block of ten ports against every other Shoal of this user, by a lock that the kernel frees on a kill."""
    folder = _own_folder()
    for block in itertools.islice(_blocks, BLOCKS):
        fd = os.open(f"{folder}/{block}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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
    raise Broken(f"all {BLOCKS} blocks of ports are in use")


def own_folder() -> Path:
    """Return the folder with a short path that all Shoals of this user share: locks, and sockets of databases."""
    return Path(_own_folder())


def _own_folder() -> str:
    """Return the folder that all Shoals of this user share, which contains only locks."""
    folder = f"{tempfile.gettempdir()}/shoal-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)  # noqa: PTH102
    seen = os.lstat(folder)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise Broken(f"{folder} belongs to another user; remove it")
    return folder
