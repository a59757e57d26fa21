"""The bubblewrap sandbox, tested from inside, as root and as an ordinary user."""

import json
import os
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.model.command import Command
from shoal.model.policy import Bind, Network, Policy
from shoal.sandboxes.bubblewrap import FLAGS, Bubblewrap
from shoal.sandboxes.kind import Sandbox
from tests.sandboxes.sandbox_runs import (
    PYTHON,
    SEARCH,
    TOKEN,
    Person,
    Ran,
    boxed,
    facts,
    has_ended,
    python,
    ran,
    started,
)

LOOK = r"""
import ctypes, errno, json, os, socket, sys
fds = sorted(os.listdir("/proc/self/fd"))
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {"mount": (165, b"none", b"/tmp", b"tmpfs", 0, 0), "umount2": (166, b"/usr", 2),
           "pivot_root": (155, b"/", b"/"), "remount": (165, b"none", b"/", b"", 4096 | 32, 0),
           "unshare": (272, 0x10000000), "setns": (308, 0, 0),
           "clone": (56, 0x10000000 | 17, 0), "clone3": (435, 0, 0), "bpf": (321, 0, 0, 0), "keyctl": (250, 0, 0),
           "open_by_handle_at": (304, 0, 0, 0), "io_uring_setup": (425, 1, 0),
           "open_tree_attr": (467, 0, b"/", 0, 0, 0),
           "perf_event_open": (298, 0, 0, 0, 0, 0), "userfaultfd": (323, 0), "chroot": (161, b"/")}
def call(*words):
    ctypes.set_errno(0)
    return errno.errorcode.get(ctypes.get_errno(), 0) if libc.syscall(*words) < 0 else "done"
def tried(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
def opened(path): return lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines())
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
PATHS = ("/x", "/usr/x", "/dev/x", "/etc/x", "/var/x", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches",
         "/proc/self/oom_score_adj", "/tmp/x", "/var/tmp/x", "/dev/shm/x", "/dev/null", "x")
NAMESPACES = ("user", "pid", "ipc", "uts", "net", "cgroup", "mnt")
SOCKETS = ((1, 1), (2, 1), (10, 2), (16, 3), (17, 3), (38, 5), (40, 1))
words = open("/proc/self/environ").read().split("\0")[:-1]
print(json.dumps({
    "status": {key: status[key] for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")},
    "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in NAMESPACES},
    "calls": {name: call(*words) for name, words in NUMBERS.items()},
    "writes": {path: tried(opened(path)) for path in PATHS},
    "sizes": {path: os.statvfs(path).f_blocks * os.statvfs(path).f_frsize for path in PRIVATE},
    "inject": [call(16, 0, ctypes.c_ulong(high | request), b"x") for high in (0, 1 << 32) for request in (0x5412, 0x541C)],
    "tty": tried(lambda: os.open("/dev/tty", os.O_RDWR)),
    "families": {family: tried(lambda: socket.socket(family, kind).close()) for family, kind in SOCKETS},
    "mptcp": tried(lambda: socket.socket(2, 1, 262)), "audit": tried(lambda: socket.socket(16, 3, 9)),
    "raw": tried(lambda: socket.socket(2, 3, 1)),
    "hostname": socket.gethostname(), "ids": [os.getuid(), os.getgid()], "pid": os.getpid(), "sid": os.getsid(0),
    "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()), "root": sorted(os.listdir("/")),
    "etc": sorted(os.listdir("/etc")), "fds": fds,
    "interfaces": [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]],
    "init": open("/proc/1/environ").read(), "env": dict(word.split("=", 1) for word in words),
    "kill": tried(lambda: os.kill(int(sys.argv[1]), 0)),
    "nested": os.spawnlp(os.P_WAIT, "unshare", "unshare", "-Ur", "true")}))
"""


@pytest.fixture(scope="module")
def seen(who: Person, bubblewrap: Sandbox) -> dict[str, object]:
    """What a script found inside the sandbox."""
    return facts(boxed(bubblewrap, who, python(LOOK, os.getpid()), SECRET="s3cr3t", LD_LIBRARY_PATH="/nowhere"))


def test_no_privilege_is_left(seen: dict[str, object]) -> None:
    none = "0" * 16
    assert seen["status"] == {
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), none),
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }


def test_every_namespace_is_its_own(seen: dict[str, object]) -> None:
    ours = {path.name: str(path.readlink()) for path in Path("/proc/self/ns").iterdir()}
    theirs = seen["namespaces"]
    assert isinstance(theirs, dict)

    assert [name for name in theirs if theirs[name] == ours[name]] == []
    assert (seen["hostname"], seen["ids"], seen["interfaces"]) == ("shoal", [1000, 1000], ["lo"])
    assert seen["processes"] == ["1", str(seen["pid"])]
    assert seen["nested"] != 0
    assert seen["kill"] == "ESRCH"


def test_user_namespaces_are_off_even_without_the_filter(who: Person, bubblewrap: Bubblewrap) -> None:
    def nested(*flags: str) -> int:
        argv = (str(bubblewrap.bwrap), *flags, "--ro-bind", "/", "/", "--proc", "/proc", "--", "unshare", "-U", "true")
        return ran(Command(argv=argv, cwd=Path("/"), env={"PATH": SEARCH}), who).code

    assert nested(*FLAGS) != 0
    assert nested(*(flag for flag in FLAGS if flag != "--disable-userns")) == 0


def test_calls_that_could_undo_the_wall_are_refused(seen: dict[str, object]) -> None:
    unknown = {"clone3", "io_uring_setup"}
    calls = seen["calls"]
    assert isinstance(calls, dict)

    assert calls == {name: "ENOSYS" if name in unknown else "EPERM" for name in calls}


def test_only_private_places_can_be_written(seen: dict[str, object]) -> None:
    writes = seen["writes"]
    assert isinstance(writes, dict)

    assert {path for path, outcome in writes.items() if outcome == "done"} == {
        *("/tmp/x", "/var/tmp/x", "/dev/shm/x", "/dev/null", "x")
    }
    assert not Path("/tmp/x").exists()
    assert seen["sizes"] == dict.fromkeys(("/tmp", "/var/tmp", "/dev/shm"), 2**30)


def test_the_root_holds_only_what_is_allowed(seen: dict[str, object]) -> None:
    root, etc = seen["root"], seen["etc"]
    assert isinstance(root, list)
    assert isinstance(etc, list)

    assert set(root) <= {*("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "proc", "dev", "tmp", "var")}
    assert {"shadow", "gitconfig", "ssh", "passwd", "resolv.conf", "sudoers", "cron.d", "npmrc"} & set(etc) == set()
    assert seen["fds"] == ["0", "1", "2", "3"]


def test_the_terminal_is_out_of_reach(seen: dict[str, object]) -> None:
    assert seen["tty"] == "ENXIO"
    # Asked of what is no terminal at all: the kernel alone would say ENOTTY.
    assert seen["inject"] == ["EPERM"] * 4
    assert seen["sid"] != 0, "the session is not one of the box's own"


def test_odd_sockets_are_refused(seen: dict[str, object]) -> None:
    no = "EAFNOSUPPORT"
    assert seen["families"] == {"1": "done", "2": "done", "10": "done", "16": "done", "17": no, "38": no, "40": no}
    assert (seen["mptcp"], seen["audit"], seen["raw"]) == ("EPROTONOSUPPORT", "EPROTONOSUPPORT", "EPERM")


def test_the_environment_is_exactly_the_given_one(seen: dict[str, object]) -> None:
    assert seen["env"] == {"PATH": SEARCH, "SECRET": "s3cr3t", "LD_LIBRARY_PATH": "/nowhere"}
    assert "s3cr3t" not in str(seen["init"])


def test_an_empty_environment_stays_empty(who: Person, bubblewrap: Sandbox) -> None:
    command = Command(argv=("/usr/bin/env",), cwd=Path("/"))

    assert ran(bubblewrap.wrap(command, Policy(token=TOKEN)), who).out == ""


def test_no_variable_reaches_the_hosts_side(who: Person, bubblewrap: Sandbox) -> None:
    command = Command(argv=("true",), cwd=Path("/"), env={"SECRET": "s3cr3t", "LD_PRELOAD": "/tmp/evil.so"})
    wrapped = bubblewrap.wrap(command, Policy(token=TOKEN))

    assert not {"SECRET", "LD_PRELOAD"} & set(wrapped.env)
    assert "s3cr3t" not in repr(wrapped)
    assert wrapped.cwd == Path("/")


@pytest.mark.parametrize("env", [{"A": "1\0--bind\0/\0/"}, {"A-B": "1"}, {"A=B": "1"}, {"": "1"}])
def test_a_variable_cannot_become_a_flag(who: Person, bubblewrap: Sandbox, env: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        bubblewrap.wrap(Command(argv=("true",), cwd=Path("/"), env=env), Policy(token=TOKEN))


def test_arguments_arrive_as_they_are(who: Person, bubblewrap: Sandbox) -> None:
    odd = ("--", "$(id)", "a\nb", "", "-n", "'\"\\", "\x1b[2J", "*", "é\udcff")

    done = boxed(bubblewrap, who, python("import json, sys; print(json.dumps(sys.argv[1:]))", *odd), PATH="/usr/bin")

    assert json.loads(done.out) == list(odd)
    assert done.said == ""


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 77", 77), ("kill -9 $$", 137), ("nope", 127)])
def test_the_exit_code_comes_out(who: Person, bubblewrap: Sandbox, script: str, code: int) -> None:
    assert boxed(bubblewrap, who, ("sh", "-c", script)).code == code


def test_a_capability_for_the_seal_reads_what_mode_000_hides(who: Person, bubblewrap: Sandbox) -> None:
    secret = who.made("sealed/secret", "read me")
    secret.chmod(0)
    policy = Policy(read=(secret.parent,), uid=who.uid, gid=who.uid)
    command = ("sh", "-c", f"cat {secret}; true >> {secret}; grep CapEff /proc/self/status >&2")

    without = boxed(bubblewrap, who, command, policy)
    with_it = boxed(bubblewrap, who, command, replace(policy, capabilities=("CAP_DAC_READ_SEARCH",)))

    assert without.out == ""
    assert with_it.out == "read me"
    assert with_it.said.splitlines()[-1] == "CapEff:\t0000000000000004"
    with pytest.raises(BadInput):
        boxed(bubblewrap, who, command, replace(policy, capabilities=("CAP_SYS_ADMIN",)))


def test_covers_hold(who: Person, bubblewrap: Sandbox) -> None:
    pointer, passwd = (
        who.made("frame/git", "gitdir: ours\n"),
        who.made("frame/passwd", "agent:x:1000:1000::/:/bin/sh\n"),
    )
    work = who.made("work")
    policy = Policy(covers=(Bind(passwd, Path("/etc/passwd")), Bind(pointer, work / ".git")))
    script = (
        "rm -f .git; mv .git x; mv x .git; ln -sf /usr .git; echo no > .git; umount .git; cat .git; id -un; rmdir /etc"
    )

    done = boxed(bubblewrap, who, ("sh", "-c", script), policy)

    assert done.out == "gitdir: ours\nagent\n"
    assert pointer.read_text() == "gitdir: ours\n"


def test_sockets_of_the_host_are_out_of_reach(who: Person, bubblewrap: Sandbox) -> None:
    path = who.made("secrets") / "host.sock"
    name = f"\0shoal-{os.getpid()}-{who.name}"
    script = (
        "import socket, sys\nfor name in (sys.argv[1], '\\0' + sys.argv[2]):\n"
        " try: socket.socket(1).connect(name)\n except OSError as e: print(type(e).__name__)\n else: print('in')"
    )
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as pathname:
        for listener, address in ((abstract, name), (pathname, str(path))):
            listener.bind(address)
            listener.listen()
        path.chmod(0o777)
        said = [
            boxed(bubblewrap, who, python(script, path, name[1:]), Policy(network=network)).out.split()
            for network in Network
        ]

    offline = ["FileNotFoundError", "ConnectionRefusedError"]
    assert said == [offline, ["FileNotFoundError", "PermissionError"], offline]


def test_the_hosts_network_is_there_only_when_asked_for(who: Person, bubblewrap: Sandbox) -> None:
    script = (
        "import os, socket, sys; found = socket.socket().connect_ex(('127.0.0.1', int(sys.argv[1]))); "
        "print(found, os.path.exists('/etc/resolv.conf'))"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = python(script, server.getsockname()[1])
        said = {network: boxed(bubblewrap, who, argv, Policy(network=network)).out.split() for network in Network}

    assert said[Network.NONE] == ["111", "False"]
    assert said[Network.HOST] == ["0", str(Path("/etc/resolv.conf").exists())]


def test_the_box_dies_with_its_parent(who: Person, bubblewrap: Sandbox) -> None:
    """Even what left its session: the kernel ends the namespace, and the pipe it held closes."""
    command = Command(
        argv=("sh", "-c", "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM HUP; echo up; sleep 300' & wait"),
        cwd=Path("/"),
        env={"PATH": SEARCH},
    )
    with started(bubblewrap.wrap(command, Policy(token=TOKEN)), who) as (child, info):
        assert child.stdout
        assert child.stdout.readline() == b"up\n"
        pid = json.loads(os.read(info, 9999))["child-pid"]
        pidfd = os.pidfd_open(pid)
        child.send_signal(signal.SIGKILL)

        assert child.stdout.read() == b""
    assert has_ended(pidfd)


WORKS = {
    "sh": "echo a | cat",
    "threads": f"{PYTHON} -c 'import threading as t; x = t.Thread(target=print, args=[1]); x.start(); x.join()'",
    "processes": f"{PYTHON} -c 'import multiprocessing as m; print(m.Pool(2).map(abs, [-1]))'",
    "git": "git init -q r && cd r && git -c user.name=a -c user.email=a commit -qm x --allow-empty && git log",
    "gcc": "printf 'int main(){return 0;}' > a.c && gcc a.c && ./a.out && echo made",
    "make": "printf 'all:\\n\\t@echo made\\n' > Makefile && make -s",
    "node": "node -e 'console.log(require(`os`).networkInterfaces(), `${require(`child_process`).execSync(`pwd`)}`)'",
    "debugger": (
        f"{PYTHON} -c 'import ctypes, os, signal; pid = os.fork() or signal.pause(); "
        "assert ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0; print(os.waitpid(pid, 0)); os.kill(pid, 9)'"
    ),
}  # fmt: skip


INSTALLED = [name for name in WORKS if name not in ("git", "gcc", "make", "node") or Path("/usr/bin", name).exists()]


@pytest.mark.parametrize("program", INSTALLED)
def test_ordinary_programs_work(who: Person, bubblewrap: Sandbox, program: str) -> None:
    done = boxed(bubblewrap, who, ("sh", "-ec", WORKS[program]), HOME="/tmp")

    assert (done.code, done.said) == (0, "")
    assert done.out


def broken(who: Person, sandbox: Bubblewrap, cut: tuple[str, ...], paste: tuple[str, ...] = ()) -> Ran:
    """Run a sandbox with flags removed, or others in their place."""
    command = Command(argv=("echo", "reached"), cwd=Path("/"), env={"PATH": SEARCH})
    argv = sandbox.wrap(command, Policy(token=TOKEN)).argv
    at = next(index for index in range(len(argv)) if argv[index : index + len(cut)] == cut)
    return ran(replace(command, argv=(*argv[:at], *paste, *argv[at + len(cut) :])), who)


@pytest.mark.parametrize(
    ("cut", "paste", "why"),
    [
        (("--unshare-net",), (), "network"),
        (("--unshare-pid",), (), "pid namespace"),
        (("--cap-drop", "ALL"), ("--cap-add", "CAP_KILL"), "Cap"),
        (("--remount-ro", "/"), (), "writable /"),
        (("--remount-ro", "/dev"), (), "writable /dev"),
    ],
)
def test_a_wall_without_one_of_its_flags_is_found_broken(
    who: Person, bubblewrap: Bubblewrap, cut: tuple[str, ...], paste: tuple[str, ...], why: str
) -> None:
    done = broken(who, bubblewrap, cut, paste)

    assert done.code == 125
    assert done.err.startswith(f"shoal-wall-broken {TOKEN} {why}")
    assert done.out == ""


def test_a_wall_without_seccomp_or_with_open_proc_is_found_broken(who: Person, bubblewrap: Bubblewrap) -> None:
    argv = bubblewrap.wrap(Command(argv=("true",), cwd=Path("/")), Policy(token=TOKEN)).argv
    filter_ = argv[argv.index("--seccomp") : argv.index("--seccomp") + 2]

    assert "seccomp" in broken(who, bubblewrap, filter_).err  # type: ignore[arg-type]
    if who.uid == 0:  # for root, bubblewrap leaves /proc/sys writable: core_pattern would be a way out
        assert "core_pattern" in broken(who, bubblewrap, ("--remount-ro", "/proc")).err


def test_a_terminal_inside_is_found(who: Person, bubblewrap: Sandbox) -> None:
    ours, theirs = os.openpty()
    wrapped = bubblewrap.wrap(Command(argv=("true",), cwd=Path("/")), Policy(token=TOKEN))
    os.chown(os.ttyname(theirs), who.uid, -1)
    argv = ("sh", "-c", f'exec "$@" < {os.ttyname(theirs)}', "sh", *wrapped.argv)
    done = ran(replace(wrapped, argv=argv), who)
    os.close(ours)
    os.close(theirs)

    assert done.err == f"shoal-wall-broken {TOKEN} terminal\n"


def test_the_report_names_pid_1_of_the_box(who: Person, bubblewrap: Sandbox) -> None:
    done = boxed(bubblewrap, who, ("true",))

    assert json.loads(done.info)["child-pid"] > 1


def test_the_wall_is_put_on_without_any_effect(who: Person, bubblewrap: Sandbox) -> None:
    command = Command(argv=("true",), cwd=Path("/"), stdin=b"hello")
    before = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, check=True).stdout

    assert bubblewrap.wrap(command, Policy(token=TOKEN)) == bubblewrap.wrap(command, Policy(token=TOKEN))
    assert bubblewrap.wrap(command, Policy(token=TOKEN)).stdin == b"hello"
    assert subprocess.run(["ls", "/proc/self/fd"], capture_output=True, check=True).stdout == before
