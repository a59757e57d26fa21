"""Which system calls a sandbox may make: BPF programs, built by libseccomp through ctypes; nothing here loads them."""

import ctypes
import errno
import functools
import os
import socket
import termios
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

LIBRARY = "libseccomp.so.2"  # never find_library, which runs gcc and ldconfig

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
ON_FOREIGN_ARCHITECTURE = 2
OPTIMIZE = 8
BINARY_TREE = 2

NOT_EQUAL, EQUAL, AT_LEAST, MASKED_EQUAL = 1, 4, 5, 7
LOW_32 = 0xFFFFFFFF  # the kernel ignores the upper half of an int argument, and so must a comparison

FORBIDDEN = (
    *("mount", "umount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("mount_setattr", "open_tree_attr", "chroot", "setns", "bpf", "perf_event_open", "userfaultfd", "keyctl"),
    *("add_key", "request_key", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("create_module", "query_module", "get_kernel_syms", "reboot", "swapon", "swapoff", "acct", "quotactl"),
    *("quotactl_fd", "open_by_handle_at", "name_to_handle_at", "iopl", "ioperm", "syslog", "settimeofday", "stime"),
    *("clock_settime", "clock_adjtime", "adjtimex", "vhangup", "nfsservctl", "lookup_dcookie", "uselib", "sysfs"),
    *("ustat", "_sysctl", "sethostname", "setdomainname", "fanotify_init", "pidfd_getfd"),
)
# Programs try these first and do without where they are unknown; glibc falls back to clone, whose flags can be seen.
# The kernel counts io_setup's requests for the whole machine (fs.aio-max-nr), whoever makes them.
UNKNOWN = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup")
# Calls younger than the library; from 403 on the numbers are the same on every architecture.
NUMBERS = {"quotactl_fd": 443, "open_tree_attr": 467, "mount_setattr": 442}

CLONE_NEW = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
CLONE_NEWTIME = 0x80  # for unshare only: in clone these bits are the exit signal
# A lease, or a delegation, makes whoever opens the file on the host wait for the agent (45 s); it needs no right to
# write. Their numbers and that of dnotify are the same on every architecture.
FCNTL_COMMANDS = {"F_SETLEASE": 1024, "F_NOTIFY": 1026, "F_SETDELEG": 1040}
# The first process of the sandbox dies with the coordinator unless somebody reaches into it; always pid 1 inside.
# `/proc/1/mem` is shut by a read-only `/proc`. Debuggers can still trace every other process.
FIRST_PROCESS = 1
INTO_A_PROCESS = {"ptrace": 1, "process_vm_writev": 0, "process_vm_readv": 0}
# Without an IPC namespace these outlive the run and are shared with every process of the user; an object of the
# user's needs no `get` call to be reached, so all are denied.
SHARED_OBJECTS = (
    *("shmget", "shmat", "shmctl", "shmdt", "msgget", "msgsnd", "msgrcv", "msgctl", "semget", "semop", "semtimedop"),
    *("semctl", "mq_open", "mq_unlink"),
)
# Which argument names a process: without a process namespace only 0, the caller itself, is safe.
OF_A_PROCESS = {
    **{"sched_setscheduler": 0, "sched_setparam": 0, "sched_setattr": 0, "sched_setaffinity": 0},
    **{"setpriority": 1, "ioprio_set": 1},
}
PRIO_USER, IOPRIO_WHO_USER = 2, 3  # 0 then means all processes of the user
MPTCP = 262
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)


class Strength(StrEnum):
    """How strict a filter is: with namespaces it can allow more."""

    NAMESPACED = "namespaced"
    """In namespaces."""
    CONFINED = "confined"
    """With Landlock, on the host's network."""
    CUT_OFF = "cut off"
    """With Landlock and no network: no new sockets except pairs, so no docker and no ssh-agent either."""


class ArgumentTest(ctypes.Structure):
    """A `struct scmp_arg_cmp`."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class Denial(NamedTuple):
    """A call, by name, that fails with *error* when all comparisons hold."""

    name: str
    error: int
    when: tuple[ArgumentTest, ...] = ()


@functools.cache
def program(strength: Strength) -> bytes:
    """Build the filter for this architecture; a call of any other kills the process.

    Raises OSError where libseccomp is missing or refuses.
    """
    library = ctypes.CDLL(LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(ALLOW)))
    try:
        _must(library.seccomp_attr_set(context, ON_FOREIGN_ARCHITECTURE, ctypes.c_uint32(KILL_PROCESS)))
        library.seccomp_attr_set(context, OPTIMIZE, ctypes.c_uint32(BINARY_TREE))  # from 2.5 on; only speed
        for denial in denials(strength):
            _deny(library, context, denial)
        return _export_program(library, context)
    finally:
        library.seccomp_release(context)


def denials(strength: Strength) -> Iterator[Denial]:
    """Yield the denied calls."""
    yield from (Denial(name, errno.EPERM) for name in FORBIDDEN)
    yield from (Denial(name, errno.ENOSYS) for name in UNKNOWN)
    for flag in CLONE_NEW:
        yield from (Denial(name, errno.EPERM, (has(0, flag),)) for name in ("clone", "unshare"))
    yield Denial("unshare", errno.EPERM, (has(0, CLONE_NEWTIME),))
    for request in (termios.TIOCSTI, termios.TIOCLINUX):
        yield Denial("ioctl", errno.EPERM, (equals(1, request),))
    for call in ("fcntl", "fcntl64"):
        yield from (Denial(call, errno.EPERM, (equals(1, number),)) for number in FCNTL_COMMANDS.values())
    for call, argument in INTO_A_PROCESS.items():
        yield Denial(call, errno.EPERM, (equals(argument, FIRST_PROCESS),))
    yield from _sockets()
    if strength is not Strength.NAMESPACED:
        yield from _without_namespaces()
    if strength is Strength.CUT_OFF:
        yield Denial("socket", errno.EACCES, (ArgumentTest(0, AT_LEAST, 0),))


def _without_namespaces() -> Iterator[Denial]:
    """Yield the calls that Landlock leaves open and namespaces would close."""
    yield from (Denial(name, errno.EPERM) for name in SHARED_OBJECTS)
    yield from (Denial(name, errno.EPERM, (ArgumentTest(at, NOT_EQUAL, 0),)) for name, at in OF_A_PROCESS.items())
    yield Denial("setpriority", errno.EPERM, (equals(0, PRIO_USER), ArgumentTest(1, EQUAL, 0)))
    yield Denial("ioprio_set", errno.EPERM, (equals(0, IOPRIO_WHO_USER), ArgumentTest(1, EQUAL, 0)))
    yield Denial("prlimit64", errno.EPERM, (ArgumentTest(0, NOT_EQUAL, 0), ArgumentTest(2, NOT_EQUAL, 0)))
    # Modes of files outside can still be changed: at least no program can be made to run as another user.
    for call, argument in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)):
        yield from (Denial(call, errno.EPERM, (has(argument, bit),)) for bit in (0o4000, 0o2000))


def _sockets() -> Iterator[Denial]:
    highest = max(FAMILIES)
    for family in set(range(highest)) - set(FAMILIES):
        yield Denial("socket", errno.EAFNOSUPPORT, (ArgumentTest(0, EQUAL, family),))
    yield Denial("socket", errno.EAFNOSUPPORT, (ArgumentTest(0, AT_LEAST, highest + 1),))
    yield Denial("socket", errno.EPROTONOSUPPORT, (equals(2, MPTCP),))
    # Of netlink only the reading of interfaces and routes, which getifaddrs needs.
    netlink = ArgumentTest(0, EQUAL, socket.AF_NETLINK)
    yield Denial("socket", errno.EPROTONOSUPPORT, (netlink, ArgumentTest(2, AT_LEAST, 1)))


def equals(argument: int, number: int) -> ArgumentTest:
    """Compare: the argument, which the kernel takes for an int, is *number*."""
    return ArgumentTest(argument, MASKED_EQUAL, LOW_32, number)


def has(argument: int, flag: int) -> ArgumentTest:
    """Compare: *flag* is set in the argument."""
    return ArgumentTest(argument, MASKED_EQUAL, flag, flag)


def _deny(library: ctypes.CDLL, context: ctypes.c_void_p, denial: Denial) -> None:
    number = library.seccomp_syscall_resolve_name(denial.name.encode())
    if number == -1:
        number = NUMBERS.get(denial.name, -1)
    if number == -1:  # a call that neither the library nor any kernel of this architecture has
        return
    comparisons = (ArgumentTest * len(denial.when))(*denial.when)
    action = ctypes.c_uint32(ERRNO | denial.error)
    _must(library.seccomp_rule_add_array(context, action, number, len(denial.when), comparisons))


def _export_program(library: ctypes.CDLL, context: ctypes.c_void_p) -> bytes:
    fd = os.memfd_create("seccomp")
    try:
        _must(library.seccomp_export_bpf(context, fd))
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _must(result: int) -> None:
    if result < 0:
        raise OSError(-result, f"libseccomp: {os.strerror(-result)}")
