"""The PostgreSQL store where it differs from files: a server that goes, many writers, and who lives elsewhere."""

import asyncio
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from shoal.errors import BadInput, Blocked, Broken, Unavailable
from shoal.model.events import StepStarted
from shoal.model.store import StoreSettings
from shoal.store.choice import choose_store, read_choice
from shoal.store.following import find_live
from shoal.store.kind import EventRow
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.postgres import PostgresStore
from shoal.store.reader import read_events, store_at
from tests.outside import wait_until
from tests.postgres import Server


def step(number: int, run: str = "r") -> StepStarted:
    return StepStarted(run=run, step=f"step-{number}", workers=1, on_failure="fail_fast")


@pytest.fixture
def fragile() -> Iterator[Server]:
    """Run a server that the test may stop."""
    running = Server()
    running.start()
    yield running
    running.close()


class Relay:
    """Relays connections to a server, and cuts one after the server has carried out a statement in `cuts`."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.cuts: list[bytes] = []
        self._server = str(server.folder / ".s.PGSQL.5432")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """Stop, once all connections have ended."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server)
            while True:
                ready, _, _ = select.select([client, server], [], [])
                data = ready[0].recv(65536)
                cut = next((word for word in self.cuts if word in data), None) if ready[0] is client else None
                if not data:
                    return
                (server if ready[0] is client else client).sendall(data)
                if cut is not None:
                    self.cuts.remove(cut)
                    server.recv(65536)  # it is done, and the answer is lost
                    return


@pytest.mark.parametrize("cut", [b"COMMIT", b"INSERT INTO events", b"FOR UPDATE", b"BEGIN"])
def test_events_whose_commit_was_not_heard_are_kept_once(server: Server, tmp_path: Path, cut: bytes) -> None:
    sockets = Path(tempfile.mkdtemp(dir="/tmp"))  # a short path
    relay = Relay(server, sockets)
    store = PostgresStore(server.url.replace(str(server.folder), str(sockets)), str(tmp_path))
    log = store.ledger()
    first = log.write([EventRow.of(step(0), 1.0)], ["r"])
    rows = [EventRow.of(step(number), 1.0) for number in (1, 2)]
    relay.cuts.append(cut)

    with pytest.raises(Blocked, match="does not answer"):
        log.write(rows)
    numbers = log.write(rows)
    again = log.write(rows)  # the same facts on purpose are other events

    found = list(store.read_events())
    assert [entry.seq for entry in found] == [*first, *numbers, *again]
    assert [entry.event for entry in found] == [step(0), step(1), step(2), step(1), step(2)]
    log.close()
    store.close()
    relay.close()
    shutil.rmtree(sockets)


async def test_a_server_that_restarts_is_waited_for_and_nothing_is_lost(fragile: Server, tmp_path: Path) -> None:
    reasons: list[str] = []
    waiting, over = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear(reason: str) -> None:
        reasons.append(reason)
        loop.call_soon_threadsafe((waiting if reason else over).set)

    store = PostgresStore(fragile.url, str(tmp_path))
    async with open_ledger(store, on_blocked=hear) as ledger:
        await ledger.claim("r")
        await ledger.append(step(1))
        await asyncio.to_thread(fragile.stop, signal.SIGQUIT)
        async with asyncio.TaskGroup() as group, asyncio.timeout(60):
            group.create_task(ledger.append(step(2)))
            await waiting.wait()
            await asyncio.to_thread(fragile.start)
            await over.wait()
        assert list(store.find_live()) == ["r"]

    assert "does not answer" in reasons[0]
    assert reasons[1:] == [""]
    assert [entry.event for entry in store.read_events()] == [step(1), step(2)]
    await asyncio.to_thread(wait_until, lambda: store.find_live() == {})  # the server notices that we are gone
    store.close()


def test_a_reader_that_follows_misses_no_event_of_writers_at_once(server: Server, tmp_path: Path) -> None:
    program = (
        "import sys; from shoal.store.kind import EventRow; from shoal.store.postgres import PostgresStore\n"
        "log = PostgresStore(sys.argv[1], sys.argv[2]).ledger()\n"
        "for number in range(200): log.write([EventRow(float(number), sys.argv[3], None, 'Dreamt', '{}')] * 3)\n"
        "log.write([EventRow(1.0, sys.argv[3], None, 'RunEnded', '{}')]); log.close()"
    )
    words = [sys.executable, "-c", program, server.url, str(tmp_path)]
    writers = [subprocess.Popen([*words, f"run-{number}"]) for number in range(4)]
    followed, after = [], 0
    query = "SELECT seq FROM shoal.events WHERE repository = %s AND seq > %s ORDER BY seq"
    with psycopg.connect(server.url, autocommit=True) as connection:
        while any(writer.poll() is None for writer in writers):
            with contextlib.suppress(psycopg.errors.UndefinedTable):
                new = [seq for (seq,) in connection.execute(query, (str(tmp_path), after))]
                followed += new
                after = new[-1] if new else after
        followed += [seq for (seq,) in connection.execute(query, (str(tmp_path), after))]
        count = connection.execute("SELECT count(*) FROM shoal.events WHERE repository = %s", (str(tmp_path),))
        assert count.fetchone() == (4 * 601,)

    assert [writer.wait() for writer in writers] == [0] * 4
    assert len(followed) == 4 * 601


def test_a_follower_wakes_when_something_is_written(server: Server, tmp_path: Path) -> None:
    store = PostgresStore(server.url, str(tmp_path))
    log = store.ledger()
    log.write([])
    store.wait(0.01)  # now it listens
    log.write([EventRow.of(step(1), 1.0)])

    store.wait(60)  # the test's own limit is shorter

    assert len(list(store.read_events())) == 1
    log.close()
    store.close()


async def test_a_run_of_a_live_process_is_known_to_others_until_that_is_killed(server: Server, tmp_path: Path) -> None:
    program = (
        "import sys; from shoal.store.postgres import PostgresStore\n"
        "log = PostgresStore(sys.argv[1], sys.argv[2]).ledger(); log.write([], ['r']); print('owned', flush=True)\n"
        "sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, server.url, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        store = PostgresStore(server.url, str(tmp_path))
        assert store.find_live() == {"r": os.uname().nodename}
        owner.kill()
    async with asyncio.timeout(30):
        while store.find_live():
            await asyncio.sleep(0.01)
    store.close()


def test_repositories_on_one_server_are_kept_apart(server: Server, tmp_path: Path) -> None:
    one, other = PostgresStore(server.url, f"{tmp_path}/1"), PostgresStore(server.url, f"{tmp_path}/2")
    log = one.ledger()
    log.write([EventRow.of(step(1), 1.0)], ["r"])
    log.close()

    assert (other.list_runs(), list(other.read_events())) == ([], [])
    assert len(list(one.read_events())) == 1
    one.close()
    other.close()


def test_a_repository_names_its_ledger_without_the_password(server: Server, tmp_path: Path) -> None:
    paths, environ = StatePaths.of(tmp_path), {"LEDGER": server.url}
    paths.create()
    choose_store(paths, StoreSettings(url_from="LEDGER", repository="shared"), environ)
    choose_store(paths, None, {})

    choice = read_choice(paths)

    assert choice is not None
    assert (choice.url_from, choice.repository) == ("LEDGER", "shared")
    assert "word" not in paths.store_choice.read_text()
    with pytest.raises(BadInput, match="keep `repository: shared`"):
        choose_store(paths, StoreSettings(url_from="LEDGER", repository="other"), environ)
    with pytest.raises(Unavailable, match="set LEDGER to"):
        store_at(paths)


def test_a_ledger_of_files_is_not_hidden_by_a_server(tmp_path: Path) -> None:
    paths = StatePaths.of(tmp_path)
    log = store_at(paths).ledger()
    log.write([EventRow.of(step(1), 1.0)])
    log.close()

    with pytest.raises(BadInput, match="which another store would hide"):
        choose_store(paths, StoreSettings(url_from="LEDGER"), {"LEDGER": "postgresql://nowhere"})

    assert len(list(read_events(paths))) == 1
    assert find_live(paths) == {}


def test_a_server_that_refuses_us_is_an_error_at_once(server: Server, tmp_path: Path) -> None:
    store = PostgresStore(server.url.replace(":word@", ":wrong@"), str(tmp_path))

    with pytest.raises(Broken, match="password authentication failed"):
        list(store.read_events())
