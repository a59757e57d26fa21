"""A program that sets up a sandbox without namespaces and then becomes, or watches over, what it was given.

    launcher.py abi                                         print the Landlock ABI of this kernel
    launcher.py scope -- argv...                            no signals and abstract sockets to the outside; then exec
    launcher.py none ORDER INFO -- argv...                  run argv and leave nothing of it behind
    launcher.py landlock ORDER INFO FILTER -- argv...       the same, behind Landlock and seccomp

ORDER, INFO and FILTER are numbers of descriptors: an order of NUL-separated words (key, value, key, value, ...),
a pipe for `{"child-pid": N}`, and a seccomp program. Run as `python -I -S`, it imports only what it cannot do without:
json alone would double the start (10 ms), signal's enums add 6.

It stands in three processes. The keeper is the one that was started; it dies with the coordinator. The reaper is its
child, in a session of its own, so that whoever kills the keeper's group does not kill the reaper. The agent is
the reaper's child. Both keeper and reaper adopt orphans and end them, and each dies with the one above it.
"""

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal

EXIT_BROKEN = 125
EXIT_NOT_RUN = 126
EXIT_NOT_FOUND = 127

PDEATHSIG, SET_SECCOMP, CAPBSET_DROP, SUBREAPER, NO_NEW_PRIVS, CAP_AMBIENT = 1, 22, 24, 36, 38, 47
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
SCOPE_ABI = 6
OLDEST_ABI = 3  # without the right to truncate, any file of the user's could be emptied

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_BLOCK, TRUNCATE, IOCTL_DEV = 1 << 6, 1 << 11, 1 << 14, 1 << 15
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
TCP = 0b11

WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
DEATH_SECONDS = 0.05  # how long to wait for a killed process before looking for more of them

libc = ctypes.CDLL(None, use_errno=True)


class LauncherError(Exception):
    """The sandbox could not be set up."""


def main(argv: list[str]) -> None:
    """Run the command that the first argument names."""
    mode, *rest = argv
    words = rest.index("--") if "--" in rest else len(rest)
    descriptors, command = [int(word) for word in rest[:words] if word.isdigit()], rest[words + 1 :]
    if mode == "abi":
        os.write(1, f"{abi()}\n".encode())
    elif mode == "scope":
        must(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        restrict(0, 0, SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS, [])
        become(command, dict(os.environb))
    elif mode in ("none", "landlock"):
        order = LaunchOrder(descriptors[0])
        keep(order, descriptors[1], descriptors[2] if mode == "landlock" else None, command)
    else:
        sys.exit(f"launcher: no mode {mode!r}")


class LaunchOrder:
    """What was asked for."""

    def __init__(self, fd: int) -> None:
        words = contents(fd).split(b"\0")[:-1]
        self.pairs = list(zip(words[0::2], words[1::2], strict=True))
        self.token = self.single(b"token")
        self.cwd = self.single(b"cwd")
        self.network = self.single(b"network")
        self.env = dict(value.split(b"=", 1) for value in self.all(b"env"))

    def all(self, key: bytes) -> list[bytes]:
        """Return every value of *key*."""
        return [value for name, value in self.pairs if name == key]

    def single(self, key: bytes) -> bytes:
        """Return the one value of *key*."""
        (value,) = self.all(key)
        return value


def contents(fd: int) -> bytes:
    """Read a descriptor to its end and close it."""
    with os.fdopen(fd, "rb") as file:
        return file.read()


# The three processes.


def keep(order: LaunchOrder, info: int, filter_fd: int | None, command: list[str]) -> None:
    """Run as the keeper: start the reaper, forward TERM to it, and end as it ends."""
    program = contents(filter_fd) if filter_fd is not None else None
    for number in WATCHED:
        signal.signal(number, signal.SIG_DFL)  # nohup ignores hang-ups, so they would never be seen
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    must(libc.prctl(SUBREAPER, 1, 0, 0, 0), "subreaper")
    must(libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0), "death signal")
    keeper = os.getpid()
    reaper = os.fork()
    if reaper == 0:
        os.close(info)
        reap(order, program, command, keeper)
    try:
        # If the coordinator died before we asked to die with it, nobody holds the other end of this pipe.
        os.write(info, f'{{"child-pid": {reaper}}}\n'.encode())
    except BrokenPipeError:
        os.kill(reaper, signal.SIGKILL)
    os.close(info)
    status = wait_for_child(reaper, lambda: os.kill(reaper, signal.SIGTERM))
    end_all()
    end_as(status)


def reap(order: LaunchOrder, program: bytes | None, command: list[str], keeper: int) -> None:
    """Run as the reaper: start the agent, and end all its descendants when it or the keeper is gone."""
    os.setsid()
    must(libc.prctl(SUBREAPER, 1, 0, 0, 0), "subreaper")
    must(libc.prctl(PDEATHSIG, signal.SIGTERM, 0, 0, 0), "death signal")
    reaper = os.getpid()
    agent = os.fork()
    if agent == 0:
        act(order, program, command, reaper)
    quietly(os.setpgid, agent, agent)  # parent and child both do, since either may come first

    def on_stop() -> None:
        if os.getppid() == keeper:
            quietly(os.killpg, agent, signal.SIGTERM)
        else:
            end_all()
            os._exit(EXIT_BROKEN)

    if os.getppid() != keeper:
        on_stop()
    status = wait_for_child(agent, on_stop)
    end_all()
    end_as(status)


def act(order: LaunchOrder, program: bytes | None, command: list[str], reaper: int) -> None:
    """Run as the agent: enter the sandbox, report that it holds, and exec the command."""
    try:
        quietly(os.setpgid, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        must(libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0), "death signal")
        if os.getppid() != reaper:
            os._exit(EXIT_BROKEN)
        os.chdir(order.cwd)
        if program is not None:
            confine(order, program)
        os.write(2, b"shoal-wall-ok %s\n" % order.token)
        become(command, order.env)
    except (LauncherError, OSError) as error:
        os.write(2, b"shoal-wall-broken %s %s\n" % (order.token, str(error).encode(errors="replace")))
    finally:
        os._exit(EXIT_BROKEN)


def quietly(call: "Callable[[int, int], None]", pid: int, number: int) -> None:
    """Call a function on a process that may be gone."""
    try:
        call(pid, number)
    except (PermissionError, ProcessLookupError):
        return


def become(command: list[str], env: dict[bytes, bytes]) -> None:
    """Exec *command*, and restore the signals that Python ignores."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    failure: OSError = FileNotFoundError(2, "not found")
    for path in candidates(os.fsencode(command[0]), env.get(b"PATH", os.defpath.encode())):
        try:
            os.execve(path, command, env)  # noqa: S606 - that is what it is for
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    os.write(2, f"{command[0]}: {failure.strerror}\n".encode(errors="replace"))
    os._exit(EXIT_NOT_FOUND if isinstance(failure, FileNotFoundError) else EXIT_NOT_RUN)


def candidates(program: bytes, search: bytes) -> list[bytes]:
    """Return the possible paths of *program*; os.execvpe would import a module that the sandbox hides."""
    if b"/" in program:
        return [program]
    return [os.path.join(folder, program) for folder in search.split(b":")]  # noqa: PTH118


def wait_for_child(child: int, on_stop: "Callable[[], None]") -> int:
    """Wait for *child*, reaping orphans on the way; call *on_stop* for each signal that asks to stop."""
    while True:
        if signal.sigwait(WATCHED) != signal.SIGCHLD:
            on_stop()
            continue
        while (found := reap_child(os.WNOHANG)) and found[0]:
            if found[0] == child:
                return found[1]


def reap_child(options: int) -> tuple[int, int] | None:
    """Reap one child; `None` when there are no children."""
    try:
        return os.waitpid(-1, options)
    except ChildProcessError:
        return None


def end_all() -> None:
    """Kill every descendant; those of another user cannot be killed."""
    beyond: set[int] = set()
    while has_children() and (found := {pid: top for pid, top in descendants().items() if pid not in beyond}):
        # Stop them first: a stopped process cannot fork while we look for the others.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            beyond |= {pid for pid, parent in found.items() if not send_signal(pid, parent, number)}
        if found.keys() - beyond:
            signal.sigtimedwait({signal.SIGCHLD}, DEATH_SECONDS)


def has_children() -> bool:
    """Reap ended children, and return whether any process is left: no children means no descendants."""
    while found := reap_child(os.WNOHANG):
        if not found[0]:
            return True
    return False


def send_signal(pid: int, parent: int, number: int) -> bool:
    """Send a signal unless the pid was reused; `False` if not permitted."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if parent_of(str(pid)) == parent:
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    finally:
        os.close(fd)
    return True


def descendants() -> dict[int, int]:
    """Find all descendants with their parents, zombies included."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := parent_of(name)):
            below.setdefault(parent, []).append(int(name))
    found: dict[int, int] = {}
    rest = [os.getpid()]
    while rest:
        parent = rest.pop()
        children = below.get(parent, [])
        found.update(dict.fromkeys(children, parent))
        rest += children
    return found


def parent_of(pid: str) -> int:
    """Read a process's parent; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def end_as(status: int) -> None:
    """End with the same exit code or by the same signal."""
    if os.WIFSIGNALED(status):
        import resource  # rarely reached

        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


# The sandbox.


def confine(order: LaunchOrder, program: bytes) -> None:
    """Apply no_new_privs, Landlock and seccomp, drop all capabilities, and check that they hold."""
    version = abi()
    if version < OLDEST_ABI:
        raise LauncherError(f"Landlock ABI {version} is older than {OLDEST_ABI}")
    for kind, most in (value.split(b"=") for value in order.all(b"rlimit")):
        must(libc.setrlimit(int(kind), (ctypes.c_ulong * 2)(int(most), int(most))), "limits per user")
    must(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    handled = (1 << (16 if version >= 5 else 15)) - 1
    scopes = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if version >= SCOPE_ABI else 0
    tcp = TCP if order.network == b"none" and version >= 4 else 0
    rules = [(path, READ) for path in order.all(b"read")]
    rules += [(path, handled & ~(MAKE_CHAR | MAKE_BLOCK)) for path in order.all(b"write")]
    rules += [(path, DEVICE & handled) for path in order.all(b"device")]
    restrict(handled, tcp, scopes, rules)
    drop_capabilities()
    install(program)
    check_sandbox(order)


def abi() -> int:
    """Ask for the Landlock version; 0 without Landlock."""
    return max(0, int(libc.syscall(CREATE_RULESET, None, 0, 1)))


def restrict(files: int, tcp: int, scopes: int, rules: list[tuple[bytes, int]]) -> None:
    """Enter a Landlock domain that denies *files*, *tcp* and *scopes*, except for the rights that *rules* grant."""
    attributes = (ctypes.c_uint64 * 3)(files, tcp, scopes)
    size = 24 if scopes else 16 if tcp else 8
    ruleset = must(libc.syscall(CREATE_RULESET, attributes, size, 0), "Landlock")
    for path, rights in rules:
        allow(ruleset, path, rights)
    must(libc.syscall(RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def allow(ruleset: int, path: bytes, rights: int) -> None:
    """Grant *rights* on a file, or below a folder."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    is_folder = (os.fstat(fd).st_mode & 0o170000) == 0o040000
    granted = rights if is_folder else rights & ON_FILES
    beneath = granted.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder)  # a packed struct
    must(libc.syscall(ADD_RULE, ruleset, 1, beneath, 0), os.fsdecode(path))
    os.close(fd)


def drop_capabilities() -> None:
    """Drop every capability, including those that root would regain by exec."""
    libc.prctl(CAP_AMBIENT, 4, 0, 0, 0)
    for number in range(64):
        libc.prctl(CAPBSET_DROP, number, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    must(libc.capset(header, (ctypes.c_uint32 * 6)()), "capabilities")


def install(program: bytes) -> None:
    """Install a seccomp filter."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    filter_ = Program(len(program) // 8, program)
    must(libc.prctl(SET_SECCOMP, 2, ctypes.byref(filter_), 0, 0), "seccomp")


def check_sandbox(order: LaunchOrder) -> None:
    """Check the sandbox from inside."""
    content = contents(os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC))
    status = dict(line.split(b":\t", 1) for line in content.splitlines() if b":\t" in line)
    wanted = {b"NoNewPrivs": 1, b"Seccomp": 2, b"CapPrm": 0, b"CapEff": 0, b"CapInh": 0, b"CapAmb": 0}
    if os.geteuid() == 0:  # only root may empty the bounding set, and only root could get anything out of it
        wanted[b"CapBnd"] = 0
    for name, number in wanted.items():
        if int(status[name], 16) != number:
            raise LauncherError(name.decode())
    for path in (b"/", *order.all(b"hidden")):
        if opens(path):
            raise LauncherError(f"hidden {os.fsdecode(path)}")
    if order.network == b"none" and libc.socket(2, 1, 0) >= 0:
        raise LauncherError("network")


def opens(path: bytes) -> bool:
    """Return whether a file or folder can be read."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def must(result: int, what: str) -> int:
    """Raise when a call of the C library failed."""
    if result < 0:
        raise LauncherError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
