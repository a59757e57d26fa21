"""What the machine itself takes for a session: its bare effects by a plain loop, without anything that Shoal decides.

A folder from a spare and back, small files, a mounted overlay, control groups with limits, a database of two rows, and
a process that is started and waited for; what is thrown away is removed by another program, as Shoal does it.
"""

# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH123
# By strings, as where Shoal does the same: objects for paths would be counted as the machine's.
import contextlib
import functools
import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from shoal.limits.mounts import look
from shoal.model.policy import Layers
from shoal.workspaces.mount import mount_overlay, unmount

FILES = ("input/prompt.md", "input/system_prompt.md", "git/HEAD", "git/packed-refs", "opened")
FOLDERS = ("own", "own/home", "own/tmp", "own/data", "input", "git", "git/objects", "git/objects/info", "git/refs")
LIMITS = {"memory": ("memory.limit_in_bytes", str(2**31)), "pids": ("pids.max", "512")}


def floor_ms(place: Path, sessions: int) -> float:
    """Give the milliseconds of this process's time that the bare effects of one session take."""
    for name in ("base", "trash", "databases", "workspaces"):
        (place / name).mkdir(parents=True)
    _spare(f"{place}/spare")
    image = _image()
    began = time.process_time()
    for number in range(sessions):
        _session(str(place), number, image)
    spent = time.process_time() - began
    subprocess.run(["rm", "-rf", "--", str(place)], check=True)
    return spent * 1000 / sessions


def _spare(folder: str) -> None:
    for name in ("", *FOLDERS):
        os.mkdir(f"{folder}/{name}")
    for name in (*FILES, "own/home/.gitconfig", "git/config", "git/index", "git/objects/info/alternates"):
        _write(f"{folder}/{name}", b"x" * 100)


def _session(place: str, number: int, image: bytes) -> None:
    box, target = f"{place}/box", f"{place}/workspaces/s{number}/worker_0"
    os.rename(f"{place}/spare", box)
    for folder in (f"{box}/upper", f"{box}/work", f"{place}/workspaces/s{number}", target):
        os.mkdir(folder)
    for name in FILES:
        _write(f"{box}/{name}", b"x" * 100)
    with _mounted(place, box, target), _grouped(f"floor-{os.getpid()}"):
        process = subprocess.Popen(["true"], stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, start_new_session=True)
        process.communicate()
    _kept(f"{place}/databases/s{number}.db", image)
    for name in ("upper", "work"):
        os.rename(f"{box}/{name}", f"{place}/trash/{name}-{number}")
    for folder in (target, f"{place}/workspaces/s{number}"):
        os.rmdir(folder)
    os.rename(box, f"{place}/spare")


@contextlib.contextmanager
def _mounted(place: str, box: str, target: str) -> Iterator[None]:
    """Mount an overlay where we may."""
    if os.geteuid():
        yield
        return
    mount_overlay(
        Layers(lower=(Path(place, "base"),), upper=Path(box, "upper"), work=Path(box, "work"), target=Path(target))
    )
    try:
        yield
    finally:
        unmount(Path(target))


@contextlib.contextmanager
def _grouped(name: str) -> Iterator[None]:
    """Make a group in each hierarchy of version 1 that lets us, set its limit, look who is in it, and remove it."""
    made: list[str] = []
    for controller, place in _places().items():
        folder = f"{place}/{name}"
        with contextlib.suppress(OSError):
            os.mkdir(folder)
            made.append(folder)
            if controller in LIMITS:
                _put(f"{folder}/{LIMITS[controller][0]}", LIMITS[controller][1].encode())
    try:
        yield
    finally:
        for folder in made:
            with open(f"{folder}/cgroup.procs") as file:
                file.read()
            os.rmdir(folder)


@functools.cache
def _places() -> dict[str, Path]:
    return dict(look().v1)


def _put(file: str, value: bytes) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    os.write(fd, value)
    os.close(fd)


def _write(file: str, content: bytes) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.write(fd, content)
    os.ftruncate(fd, len(content))
    os.close(fd)


def _kept(file: str, content: bytes) -> None:
    fd = os.open(f"{file}.new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.write(fd, content)
    os.fdatasync(fd)
    os.close(fd)
    os.link(f"{file}.new", file)
    os.unlink(f"{file}.new")


def _image() -> bytes:
    """Make the bytes of a database with a table and two rows."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, body TEXT)")
        connection.executemany("INSERT INTO events (body) VALUES (?)", [("a",), ("b",)])
        return connection.serialize()
