"""The Landlock sandbox, tested from inside."""

import os
import socket
from pathlib import Path

import pytest

from shoal.errors import Unavailable
from shoal.model.policy import Layers, Network, Policy
from shoal.sandboxes.kind import Sandbox
from tests.sandboxes.sandbox_runs import TOKEN, Person, boxed, facts, python

LOOK = r"""
import ctypes, errno, json, os, socket, sys
pid, secret, abstract, port = int(sys.argv[1]), sys.argv[2], "\0" + sys.argv[3], int(sys.argv[4])
def tried(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    return errno.errorcode.get(ctypes.get_errno(), 0) if libc.syscall(*words) < 0 else "done"
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines())
def connect(*address, **kind):
    return lambda: socket.socket(**kind).connect(*address)
FILES = (("/etc/passwd", "r"), ("/etc/shadow", "r"), (secret, "r"), (secret, "w"), (secret, "a"), ("/tmp/x", "w"),
         ("/dev/shm/x", "w"), ("/usr/x", "w"), ("/dev/null", "w"), ("x", "w"), ("/proc/sys/kernel/core_pattern", "w"),
         (f"/proc/{pid}/environ", "r"))
print(json.dumps({
    "caps": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")], "bound": status["CapBnd"],
    "status": [status["NoNewPrivs"], status["Seccomp"]],
    "files": {path + ":" + mode: tried(lambda: open(path, mode).close()) for path, mode in FILES},
    "truncate": tried(lambda: os.truncate(secret, 0)),
    "list": tried(lambda: os.listdir("/")), "listed": tried(lambda: os.listdir(os.path.dirname(secret))),
    "unlink": tried(lambda: os.unlink(secret)), "steal": tried(lambda: os.rename(secret, "mine")),
    "link": tried(lambda: os.link(secret, "mine")),
    "kill": tried(lambda: os.kill(pid, 0)), "prlimit": call(302, pid, 7, bytes(16), 0),
    "mount": call(165, b"none", b"/tmp", b"tmpfs", 0, 0), "unshare": call(272, 0x10000000),
    "tcp": tried(connect(("127.0.0.1", port))), "bind": tried(lambda: socket.socket().bind(("127.0.0.1", 0))),
    "udp": tried(lambda: socket.socket(2, 2)), "mptcp": tried(lambda: socket.socket(2, 1, 262)),
    "six": tried(lambda: socket.socket(10, 1)), "abstract": tried(connect(abstract, family=1)),
    "pair": tried(socket.socketpair)}))
"""


def seen(who: Person, sandbox: Sandbox, network: Network) -> dict[str, object]:
    secret = who.made("secrets/key", "secret")
    name = f"shoal-{os.getpid()}-{who.name}-{network}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        argv = python(LOOK, os.getpid(), secret, name, server.getsockname()[1])
        found = facts(boxed(sandbox, who, argv, Policy(network=network, hidden=(secret, secret.parent))))
    assert secret.read_text() == "secret"
    return found


def test_files_outside_are_shut(who: Person, landlock: Sandbox) -> None:
    found = seen(who, landlock, Network.NONE)
    files = found["files"]
    assert isinstance(files, dict)

    assert {path for path, outcome in files.items() if outcome == "done"} == {"/etc/passwd:r", "/dev/null:w", "x:w"}
    outside = ("truncate", "list", "listed", "unlink", "steal", "link")
    assert {found[name] for name in outside} <= {"EACCES", "EXDEV", "EPERM"}


def test_no_privilege_is_left(who: Person, landlock: Sandbox) -> None:
    found = seen(who, landlock, Network.NONE)

    assert found["caps"] == ["0" * 16] * 4
    assert found["status"] == ["1", "2"]
    assert who.uid != 0 or found["bound"] == "0" * 16
    calls = ("kill", "prlimit", "mount", "unshare")
    assert {name: found[name] for name in calls} == dict.fromkeys(calls, "EPERM")


def test_without_network_no_socket_can_be_made(who: Person, landlock: Sandbox) -> None:
    found = seen(who, landlock, Network.NONE)

    for kind in ("tcp", "bind", "udp", "mptcp", "six", "abstract"):
        assert found[kind] in ("EACCES", "EPROTONOSUPPORT"), kind
    assert found["pair"] == "done"


def test_with_the_hosts_network_abstract_sockets_and_signals_stay_shut(who: Person, landlock: Sandbox) -> None:
    found = seen(who, landlock, Network.HOST)

    assert (found["tcp"], found["udp"], found["mptcp"]) == ("done", "done", "EPROTONOSUPPORT")
    assert (found["abstract"], found["kill"]) == ("EPERM", "EPERM")


def test_what_it_cannot_do_is_refused(who: Person, landlock: Sandbox, no_wall: Sandbox) -> None:
    layers = Layers(lower=(Path("/a"),), upper=None, work=None, target=who.folder)

    for sandbox in (landlock, no_wall):
        with pytest.raises(Unavailable, match="worktree"):
            boxed(sandbox, who, ("true",), Policy(layers=layers))
    with pytest.raises(Unavailable, match="hiding"):
        boxed(landlock, who, ("true",), Policy(hidden=(Path("/usr/src/repo/.git/config"),)))
    with pytest.raises(Unavailable, match="hiding"):
        boxed(landlock, who, ("true",), Policy(hidden=(who.folder / "work/x",)))


def test_a_path_that_is_not_there_breaks_the_wall(who: Person, landlock: Sandbox) -> None:
    done = boxed(landlock, who, ("echo", "reached"), Policy(read=(Path("/nowhere"),)))

    assert (done.code, done.out) == (125, "")
    assert done.err.startswith(f"shoal-wall-broken {TOKEN} ")


def test_a_shown_secret_is_found(who: Person, landlock: Sandbox) -> None:
    """A link is what can make a hidden path readable after all: Landlock goes by the file, not by its name."""
    real = who.made("real/key", "secret")
    link = who.folder / "link"
    if not link.is_symlink():
        link.symlink_to(real.parent)

    done = boxed(landlock, who, ("echo", "reached"), Policy(read=(real.parent,), hidden=(link / "key",)))

    assert (done.code, done.out) == (125, "")
    assert done.err == f"shoal-wall-broken {TOKEN} hidden {link}/key\n"


@pytest.mark.parametrize("script", ["git init -q r && cd r && git status", "node -e 'console.log(1)'", "echo a | cat"])
def test_ordinary_programs_work(who: Person, landlock: Sandbox, script: str) -> None:
    done = boxed(landlock, who, ("sh", "-ec", script), HOME=str(who.folder / "work"))

    assert (done.code, done.said) == (0, "")
