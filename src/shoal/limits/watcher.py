"""A program that waits for the end of a process, and then kills everything that the process left behind.

    watcher.py PID FOLDER...

Its input names processes to kill, one per line: the pid, and its start time (field 22 of `/proc/PID/stat`), which tells
it from a later process with the same pid. Killing the first process of a namespace kills everything in it. Then all
processes in the control groups below the folders are killed. The end of its input has the same effect as the end of
the process, which may have ended before it could be watched.

Run as `python -I -S`, so it imports nothing of ours. A process that is about to join finds its group removed.
"""

import os
import select
import signal
import sys
import time

SECONDS = 10.0
PAUSE = 0.005
# For version 1 and version 2: no fork can outrun the signals, and the kernel kills all at once.
AIDS = (("pids.max", b"0"), ("cgroup.kill", b"1"))
# With version 1, frozen processes die when they are thawed.
THAWS = (("freezer.state", b"THAWED"), ("cgroup.freeze", b"0"))


def main(pid: int, folders: list[str]) -> None:
    """Wait, then end the watched processes and clear each folder."""
    for watched in wait(pid):
        send_kill(watched)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and sum(map(clear_fleet, folders)) < len(folders):
        time.sleep(PAUSE)


def wait(pid: int) -> list[int]:
    """Wait for either, and return the processes to end; children forked from *pid* hold our input open too."""
    os.set_blocking(0, False)
    watch_list = WatchList()
    ends = select.poll()
    ends.register(0, select.POLLIN)
    try:
        coordinator = os.pidfd_open(pid)
    except OSError:
        watch_list.read()
        return list(watch_list.watched)
    ends.register(coordinator, select.POLLIN)
    while True:
        ready = [fd for fd, _ in ends.poll()]
        is_over = not watch_list.read() or coordinator in ready
        for fd in watch_list.watched.intersection(ready):
            ends.unregister(fd)
            watch_list.watched.remove(fd)
            os.close(fd)
        if is_over:
            return list(watch_list.watched)
        for fd in watch_list.fresh():
            ends.register(fd, select.POLLIN)


class WatchList:
    """The input so far: *watched* are descriptors of the processes to end."""

    def __init__(self) -> None:
        self.watched: set[int] = set()
        self._new: list[int] = []
        self._rest = b""

    def read(self) -> bool:
        """Read the available input; `False` at its end."""
        while True:
            try:
                chunk = os.read(0, 65536)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._take(*map(int, line.split()))

    def fresh(self) -> list[int]:
        """Return the descriptors added since the last call."""
        new, self._new = self._new, []
        return new

    def _take(self, pid: int, began: int) -> None:
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        if began_at(pid) == began:
            self.watched.add(fd)
            self._new.append(fd)
        else:
            os.close(fd)


def began_at(pid: int) -> int | None:
    """Return when a process started; `None` if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return None


def send_kill(pidfd: int) -> None:
    """Kill a process that may be gone."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return


def clear_fleet(fleet: str) -> bool:
    """Kill the processes below *fleet* and remove empty groups; `False` while there is more to do."""
    try:
        groups = [entry.path for entry in os.scandir(fleet) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return True
    for group in (*groups, fleet):
        if not remove_group(group):
            for file, value in AIDS:
                write_control(f"{group}/{file}", value)
            kill(group)
            for file, value in THAWS:
                write_control(f"{group}/{file}", value)
    return not os.path.exists(fleet)  # noqa: PTH110


def remove_group(group: str) -> bool:
    """Remove a group that is empty."""
    try:
        os.rmdir(group)  # noqa: PTH106
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def write_control(file: str, value: bytes) -> None:
    """Write to a control file if it exists."""
    try:
        fd = os.open(file, os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(fd, value)
    except OSError:
        pass
    finally:
        os.close(fd)


def kill(group: str) -> None:
    """Kill its processes by pidfd, so that no process with a reused pid is hit."""
    for pid in members(group):
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            continue
        if pid in members(group):
            send_kill(fd)
        os.close(fd)


def members(group: str) -> list[int]:
    """Read its pids."""
    try:
        with open(f"{group}/cgroup.procs", "rb") as file:  # noqa: PTH123
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
