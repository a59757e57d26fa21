"""Runs a program of PostgreSQL that ends with the thread that started it, even when that is killed.

usage: server_program.py PARENT PROGRAM [ARGUMENT ...]

PostgreSQL refuses to run as root, and as a user without a name. Then our files belong to an ordinary user in a user
namespace of its own, so no other user of this host is needed, and none can read them.
"""

import ctypes
import os
import pwd
import signal
import sys

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1


def main(parent: int, argv: list[str]) -> None:
    """Become the program."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getuid() == 0 or os.getuid() not in {user.pw_uid for user in pwd.getpwall()}:
        become_ordinary(libc)
    # SIGQUIT ends a server and its children at once; set last, because a change of user unsets it
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        sys.exit("its parent has already ended")
    os.execv(argv[0], argv)  # noqa: S606 - the path of a program of PostgreSQL


def become_ordinary(libc: ctypes.CDLL) -> None:
    """Become an ordinary user in a namespace in which our files are that user's."""
    user, group = os.getuid(), os.getgid()
    inside = max(entry.pw_uid for entry in pwd.getpwall())
    if libc.unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, line in (("setgroups", "deny"), ("uid_map", f"{inside} {user} 1"), ("gid_map", f"{inside} {group} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(descriptor, line.encode())
        os.close(descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
