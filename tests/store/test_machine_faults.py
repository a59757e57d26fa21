"""The ledger when the disk fails to sync once, when another program has it to itself, and while it is copied."""

import asyncio
import contextlib
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shoal.errors import Broken
from shoal.model.events import StepStarted
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import list_runs, read_events, store_at

FAILING_SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int fails(void) {
    static int left = -1;
    if (left < 0) left = atoi(getenv("FAIL_SYNC"));
    return left > 0 && --left == 0 ? (errno = EIO, 1) : 0;
}
int fsync(int fd) { return fails() ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) { return fails() ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
"""
WRITES = """
import asyncio, sys
from pathlib import Path
from shoal.errors import Broken
from shoal.model.events import StepStarted
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import store_at

async def main():
    async with open_ledger(store_at(StatePaths.of(Path(sys.argv[1])))) as ledger:
        for number in range(8):
            try:
                await ledger.append(StepStarted(run="r", step="x", workers=number, on_failure="any"))
                print("kept", number, flush=True)
            except Broken:
                print("refused", number, flush=True)

try:
    asyncio.run(main())
except Broken:
    print("refused to open", flush=True)
"""


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    return StatePaths.of(tmp_path)


def step(number: int) -> StepStarted:
    return StepStarted(run="r", step="x", workers=number, on_failure="any")


def numbers(paths: StatePaths) -> list[int]:
    return [entry.event.workers for entry in read_events(paths) if isinstance(entry.event, StepStarted)]


if shutil.which("cc"):

    def test_a_sync_that_fails_once_is_an_error_and_never_an_acknowledgement(tmp_path: Path) -> None:
        source, library = tmp_path / "sync.c", tmp_path / "sync.so"
        source.write_text(FAILING_SYNC)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        refused = 0
        for place in range(1, 16):
            (folder := tmp_path / str(place)).mkdir()
            done = subprocess.run(
                [sys.executable, "-c", WRITES, str(folder)],
                env={"LD_PRELOAD": str(library), "FAIL_SYNC": str(place)},
                capture_output=True,
                text=True,
                check=True,
            )
            said = [line.split() for line in done.stdout.splitlines()]
            refused += any(word == "refused" for word, *_ in said)
            kept = [int(number) for word, number in (line for line in said if line[0] == "kept")]
            paths = StatePaths.of(folder)

            assert set(kept) <= set(numbers(paths)), done.stdout
            if paths.ledger.exists():
                with contextlib.closing(sqlite3.connect(paths.ledger)) as ledger:
                    assert ledger.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert refused > 3


async def test_a_program_that_has_the_ledger_to_itself_is_waited_for_by_the_first_reading_too(
    paths: StatePaths,
) -> None:
    async with open_ledger(store_at(paths)) as ledger:
        await ledger.append(step(1))
    found: list[list[str]] = []
    other = sqlite3.connect(paths.ledger, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")

    reading = threading.Thread(target=lambda: found.append(list_runs(paths)))
    reading.start()
    reading.join(0.5)
    is_waiting = reading.is_alive()
    other.execute("COMMIT")
    other.close()
    reading.join(30)

    assert is_waiting
    assert found == [["r"]]


async def test_a_copy_made_while_a_run_writes_is_whole(paths: StatePaths, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    async with open_ledger(store_at(paths)) as ledger:
        for number in range(5):
            await ledger.append(step(number))
            copy.unlink(missing_ok=True)
            # the command of docs/faults.md
            with contextlib.closing(sqlite3.connect(paths.ledger)) as connection:
                connection.execute(f"VACUUM INTO '{copy}'")

            with contextlib.closing(sqlite3.connect(copy)) as copied:
                assert copied.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                assert copied.execute("SELECT count(*) FROM events").fetchone() == (number + 1,)


async def test_a_ledger_that_cannot_be_written_is_refused_with_the_cause(paths: StatePaths) -> None:
    paths.create()
    paths.ledger.mkdir()  # which nobody can write, root neither

    with pytest.raises(Broken, match=r"ledger\.db cannot be written: unable to open database file; make it writable"):
        async with open_ledger(store_at(paths)):
            pass


async def test_a_write_whose_caller_is_cancelled_leaves_no_transaction_open(paths: StatePaths) -> None:
    """It is cancelled while it waits for its transaction; it may be kept or not, but the next one is written at once."""
    async with open_ledger(store_at(paths)) as ledger:
        await ledger.append(step(1))
        with contextlib.closing(sqlite3.connect(paths.ledger, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            cancelled = asyncio.ensure_future(ledger.append(step(2)))
            await asyncio.wait([cancelled], timeout=0.2)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            other.execute("COMMIT")
        async with asyncio.timeout(30):
            await ledger.append(step(3))
        with contextlib.closing(sqlite3.connect(paths.ledger, isolation_level=None, timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")  # nobody else is inside a transaction
            other.execute("ROLLBACK")

    assert cancelled.cancelled()
    assert numbers(paths) in ([1, 3], [1, 2, 3])
