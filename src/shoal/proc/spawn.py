"""Start a child: its descriptors, its arguments, and the error if it cannot start."""

import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from subprocess import DEVNULL, Popen

from shoal.errors import BadInput, Blocked, Broken, ShoalError, Unavailable
from shoal.model.command import Argument, Command, InheritedBytes, OpenInput, ProcessLimits, ReportPipe, SharedSocket

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
SCARCE = {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
NOT_TO_BE_HAD = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOEXEC, errno.ELOOP}


class Stream(StrEnum):
    """One of a child's two output streams."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class Child:
    """A started child and our ends of its pipes, all of them the caller's to close."""

    popen: Popen[bytes]
    pidfd: int
    outputs: dict[Stream, int]
    reports: dict[str, int]
    sockets: dict[str, socket.socket]
    stdin: int | None = None
    """Our end of a standard input that stays open."""


def spawn(command: Command) -> Child:
    """Start *command* in a session of its own; when that fails nothing is left open."""
    with contextlib.ExitStack() as kept, contextlib.ExitStack() as lent:
        try:
            child = _spawn(command, _Wiring(kept, lent))
        except OSError as error:
            raise _refusal(command, error) from error
        except ValueError as error:  # a NUL or a lone surrogate in an argument or a variable
            raise BadInput(f"{command.argv[0]!r} cannot be started with these arguments: {error}") from error
        kept.pop_all()
        return child


def _spawn(command: Command, wiring: "_Wiring") -> Child:
    argv = [wiring.argument(argument) for argument in command.argv]
    outputs = {stream: wiring.pipe() for stream in Stream}
    # No preexec_fn: it would cost the vfork path (0.1 ms against 17 ms with 1 GiB resident).
    popen = Popen(
        argv,
        stdin=wiring.input(command.stdin) if command.stdin else DEVNULL,
        stdout=outputs[Stream.STDOUT].theirs,
        stderr=outputs[Stream.STDERR].theirs,
        cwd=command.cwd,
        env=command.env,
        close_fds=True,
        pass_fds=wiring.inherited,
        start_new_session=True,
    )
    _limit(popen.pid, command.limits)
    ours = {stream: pipe.ours for stream, pipe in outputs.items()}
    reports = {name: pipe.ours for name, pipe in wiring.reports.items()}
    return Child(
        popen=popen,
        pidfd=_pidfd(popen),
        outputs=ours,
        reports=reports,
        sockets=wiring.sockets,
        stdin=wiring.stdin,
    )


def _limit(pid: int, limits: ProcessLimits) -> None:
    """Limit a child right after exec, before it could use anything."""
    wanted = ((resource.RLIMIT_DATA, limits.memory_bytes), (resource.RLIMIT_CPU, limits.cpu_seconds))
    for kind, most in wanted:
        if most is not None:
            _, hard = resource.getrlimit(kind)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(pid, kind, (most, most))


def _pidfd(popen: Popen[bytes]) -> int:
    try:
        return os.pidfd_open(popen.pid)
    except OSError:
        os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()
        raise


@dataclass(frozen=True, slots=True)
class _Pipe:
    """A pipe that the child writes and we read."""

    ours: int
    theirs: int


class _Wiring:
    """The descriptors of one start: *kept* holds our ends, *lent* those that are the child's alone."""

    def __init__(self, kept: contextlib.ExitStack, lent: contextlib.ExitStack) -> None:
        self._kept = kept
        self._lent = lent
        self.inherited: list[int] = []
        self.reports: dict[str, _Pipe] = {}
        self.sockets: dict[str, socket.socket] = {}
        self.stdin: int | None = None

    def argument(self, argument: Argument) -> str:
        """Return one argument as the child will see it."""
        match argument:
            case InheritedBytes(content):
                return self._inherit(self._memfd(content))
            case ReportPipe(name):
                if name not in self.reports:
                    self.reports[name] = self.pipe()
                return self._inherit(self.reports[name].theirs)
            case SharedSocket(name):
                return self._inherit(self._share(name))
            case _:
                return argument

    def input(self, stdin: bytes | Path | OpenInput) -> int:
        """Open the child's standard input."""
        if isinstance(stdin, bytes):
            return self.readable(stdin)
        if isinstance(stdin, OpenInput):
            return self._live()
        fd = os.open(stdin, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._lent.callback(os.close, fd)
        return fd

    def pipe(self) -> _Pipe:
        """Make a pipe whose reading end, and only that, does not block."""
        ours, theirs = os.pipe()
        self._kept.callback(os.close, ours)
        self._lent.callback(os.close, theirs)
        os.set_blocking(ours, False)
        return _Pipe(ours=ours, theirs=theirs)

    def readable(self, content: bytes) -> int:
        """Hold *content* in a read-only descriptor: unlike a pipe it needs no writer while the child is slow."""
        fd = os.open(f"/proc/self/fd/{self._memfd(content)}", os.O_RDONLY | os.O_CLOEXEC)
        self._lent.callback(os.close, fd)
        return fd

    def _live(self) -> int:
        """Make a pipe that the child reads and we write, whose writing end does not block."""
        theirs, ours = os.pipe()
        self._kept.callback(os.close, ours)
        self._lent.callback(os.close, theirs)
        os.set_blocking(ours, False)
        self.stdin = ours
        return theirs

    def _share(self, name: str) -> int:
        """Make a pair of sockets that keep messages apart."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._kept.callback(ours.close)
        self._lent.callback(theirs.close)
        ours.setblocking(False)
        self.sockets[name] = ours
        return theirs.fileno()

    def _memfd(self, content: bytes) -> int:
        fd = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._lent.callback(os.close, fd)
        while content:
            content = content[os.write(fd, content) :]
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        return fd

    def _inherit(self, fd: int) -> str:
        self.inherited.append(fd)
        return str(fd)


def _refusal(command: Command, error: OSError) -> ShoalError:
    program = str(command.argv[0])
    why = error.strerror or str(error)
    if error.errno in SCARCE:
        return Blocked(f"{program} could not be started in {command.cwd}: {why}")
    if error.filename != program or error.errno not in NOT_TO_BE_HAD:
        return Broken(f"{program} could not be started in {command.cwd}: {why}")
    if error.errno == errno.ENOENT:
        return Unavailable(program, "no such program, or its interpreter is missing", "install it, or mend its PATH")
    return Unavailable(program, why, "make it an executable file that this user may run")


PER_SESSION = 16
OWN = 96
WANTED = 65_536


def raise_file_limit() -> int:
    """Raise our limit of open files as far as allowed, and return how many sessions it is enough for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < WANTED:
        soft = min(hard, WANTED) if hard != resource.RLIM_INFINITY else WANTED
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, (soft - OWN) // PER_SESSION)
