"""A program that waits for the end of a process, and then ends everybody in the groups below the folders it was given.

    watcher.py PID FOLDER...

It waits for the end of its input, too: that comes even where the process had ended before it could be looked at.

Run as `python -I -S`, so it imports nothing of ours. Who is only about to join finds no group there any more.
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


def main(pid: int, folders: list[str]) -> None:
    """Wait, then clear each folder."""
    wait(pid)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and sum(map(cleared, folders)) < len(folders):
        time.sleep(PAUSE)


def wait(pid: int) -> None:
    """Wait for the first of both: who was forked off that process holds the other end of our input as well."""
    ends = select.poll()
    ends.register(0, select.POLLIN)
    try:
        ends.register(os.pidfd_open(pid), select.POLLIN)
    except OSError:
        return
    while not any(fd != 0 or not os.read(0, 1024) for fd, _ in ends.poll()):
        pass


def cleared(fleet: str) -> bool:
    """Kill who is below *fleet* and remove what is empty; `False` while there is more to do."""
    try:
        groups = [entry.path for entry in os.scandir(fleet) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return True
    for group in (*groups, fleet):
        if not removed(group):
            for file, value in AIDS:
                put(f"{group}/{file}", value)
            kill(group)
    return not os.path.exists(fleet)  # noqa: PTH110


def removed(group: str) -> bool:
    """Remove a group that is empty."""
    try:
        os.rmdir(group)  # noqa: PTH106
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def put(file: str, value: bytes) -> None:
    """Write to a control file, if there is such a one."""
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
    """Kill who is in it, and nobody who was given the number of one that is gone."""
    for pid in members(group):
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if pid in members(group):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        except OSError:
            pass
        finally:
            os.close(fd)


def members(group: str) -> list[int]:
    """Read who is in it."""
    try:
        with open(f"{group}/cgroup.procs", "rb") as file:  # noqa: PTH123
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
