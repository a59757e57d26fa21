"""A PostgreSQL server for tests, as a user has one: it can be stopped, killed and started again."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from shoal.databases.own_server import PROGRAM, assert_programs


class Server:
    """A server on a socket in a folder with a short path."""

    def __init__(self, *settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self.programs = assert_programs(os.environ)
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = [word for setting in settings for word in ("-c", setting)]
        (self.folder / "word").write_text("word")
        self._run("initdb", "-D", str(self._files), "-U", "boss", "-A", "scram-sha-256", f"--pwfile={self.folder}/word")

    @property
    def url(self) -> str:
        """The address of its first database."""
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "boss") -> str:
        """Return the address of a database."""
        return f"postgresql://{user}:word@/{database}?host={self.folder}"

    @property
    def _files(self) -> Path:
        return self.folder / "files"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = ("-k", str(self.folder), "-c", "listen_addresses=", "-c", "fsync=off", *self._settings)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._argv("postgres", "-D", str(self._files), *words), stdout=log, stderr=log
            )
        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < end
                time.sleep(0.05)
            else:
                return

    def stop(self, signum: signal.Signals = signal.SIGINT) -> None:
        """End it; SIGINT disconnects everybody, SIGQUIT is a crash that it recovers from."""
        if self.process is not None:
            self.process.send_signal(signum)
            self.process.wait(60)
            self.process = None

    def close(self) -> None:
        """End it and remove its files."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Execute *statement* as its administrator."""
        with psycopg.connect(self.url_of(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return [] if cursor.description is None else list(cursor.fetchall())

    def shape(self) -> list[tuple[object, ...]]:
        """List its databases and roles."""
        return self.execute("SELECT datname FROM pg_database UNION ALL SELECT rolname FROM pg_roles ORDER BY 1")

    def _run(self, *words: str) -> None:
        subprocess.run(self._argv(*words), check=True, capture_output=True)

    def _argv(self, name: str, *words: str) -> Sequence[str]:
        return [sys.executable, "-I", "-S", str(PROGRAM), str(os.getpid()), self.programs.path(name), *words]
