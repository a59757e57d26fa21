"""Hosts with a real sshd: as root in namespaces of their own, with addresses of their own; else on loopback."""

import contextlib
import ctypes
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CLONE_NEWNET = 0x40000000
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
SSHD = shutil.which("sshd", path=SYSTEM_PATH) or "sshd"
SSH = shutil.which("ssh", path=SYSTEM_PATH) or "ssh"
VENV = Path(sys.executable).parent
NODES = "10.77.0"
NETWORKS = itertools.count()
START_SECONDS = 30.0


@dataclass(kw_only=True)
class TestHost:
    """One host: its name in the client's configuration, its home, and its sshd."""

    __test__ = False
    name: str
    address: str
    port: int
    home: Path
    process: subprocess.Popen[bytes] = field(repr=False)
    link: tuple[str, str] | None = None
    """Where it has a network of its own: the namespace and the interface of our end of its cable."""

    def pids(self) -> dict[int, str]:
        """Find what runs on it beside sshd, with its command line."""
        found = {pid: _command_line(pid) for pid in self._all_pids()}
        return {pid: line for pid, line in found.items() if line and not line.startswith(("sshd", SSHD, "unshare"))}

    def kill_all(self) -> None:
        """Kill everything on it at once, as a host that loses its power; its sshd accepts connections again."""
        for _ in range(3):  # what was started meanwhile
            for pid in {**self.pids(), **dict.fromkeys(self._connections(), "")}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def stop_sshd(self) -> None:
        """End its sshd, and with it the host."""
        if (listener := self._listener()) and listener != self.process.pid:
            os.kill(listener, signal.SIGKILL)  # `unshare` then reaps it, and ends
        else:
            self.process.kill()
        self.process.wait()

    def cut(self) -> None:
        """Cut its connection: nothing comes through, and nobody is told."""
        if self.link is not None:
            run("ip", "-n", self.link[0], "link", "set", self.link[1], "down")
        else:
            self._signal_connections(signal.SIGSTOP)

    def mend(self) -> None:
        """Mend what was cut."""
        if self.link is not None:
            run("ip", "-n", self.link[0], "link", "set", self.link[1], "up")
        else:
            self._signal_connections(signal.SIGCONT)

    def _signal_connections(self, number: signal.Signals) -> None:
        for pid in (self.process.pid, *self._connections()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _connections(self) -> list[int]:
        """Find the sshd processes of its connections."""
        listener = self._listener()
        mine = [pid for pid in self._all_pids() if pid != listener]
        return [pid for pid in mine if _command_line(pid).startswith("sshd")]

    def _listener(self) -> int:
        if self.link is None:
            return self.process.pid
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def _all_pids(self) -> list[int]:
        everything = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        if self.link is not None:
            namespace = _read_link(self._listener(), "ns/pid")
            return [pid for pid in everything if namespace and _read_link(pid, "ns/pid_for_children") == namespace]
        sign = str(self.home).encode()
        return [pid for pid in everything if sign in _read(pid, "environ") + _read(pid, "cmdline")]


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Some hosts, and the environment of a user whose ssh configuration names them."""

    hosts: tuple[TestHost, ...]
    environ: Mapping[str, str]

    @property
    def names(self) -> str:
        """Their names, as `--on` takes them."""
        return ",".join(host.name for host in self.hosts)


@contextlib.contextmanager
def open_hosts(folder: Path, *, count: int = 3, has_shoal: bool = True) -> Iterator[Hosts]:
    """Start *count* hosts, with this checkout's `shoal` on their PATH or none; as root, enter their network."""
    home = folder / "user"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    for key in (home / ".ssh" / "key", folder / "host_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(open_network()) if os.geteuid() == 0 else None
        paths = _Paths(folder, home, _tools(folder, has_shoal=has_shoal))
        hosts = [stack.enter_context(_open_host(paths, number, network)) for number in range(1, count + 1)]
        _write_client(paths, hosts)
        if network is not None:
            stack.enter_context(enter_network(network))
        for host in hosts:
            _wait_for(host)
        path = f"{paths.shim}:{VENV}:{SYSTEM_PATH}"
        yield Hosts(hosts=tuple(hosts), environ={**os.environ, "HOME": str(home), "PATH": path})


@dataclass(frozen=True)
class _Paths:
    folder: Path
    home: Path
    tools: str

    @property
    def shim(self) -> Path:
        return self.folder / "shim"


def _tools(folder: Path, *, has_shoal: bool) -> str:
    """Return the PATH of the hosts."""
    tools = folder / "tools"
    tools.mkdir()
    if has_shoal:
        (tools / "shoal").symlink_to(VENV / "shoal")
    return f"{tools}:{SYSTEM_PATH}"


@contextlib.contextmanager
def open_network() -> Iterator[str]:
    """Make the namespace in which the coordinator runs, with a switch that the hosts are plugged into."""
    name = f"shoal-{os.getpid()}-{next(NETWORKS)}"
    run("ip", "netns", "add", name)
    try:
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", name, "addr", "add", f"{NODES}.254/24", "dev", "br0")
        run("ip", "-n", name, "link", "set", "br0", "up")
        run("ip", "-n", name, "route", "add", "default", "dev", "br0")  # by it, programs find their own address
        yield name
    finally:
        run("ip", "netns", "del", name)


@contextlib.contextmanager
def enter_network(name: str) -> Iterator[None]:
    """Put this thread, and what it starts, into the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open("rb") as before, Path("/run/netns", name).open("rb") as inside:
        assert libc.setns(inside.fileno(), CLONE_NEWNET) == 0
        try:
            yield
        finally:
            assert libc.setns(before.fileno(), CLONE_NEWNET) == 0


@contextlib.contextmanager
def _open_host(paths: _Paths, number: int, network: str | None) -> Iterator[TestHost]:
    name = f"node{number}"
    home = paths.folder / name
    home.mkdir()
    address, port = (f"{NODES}.{number}", 22) if network else (f"127.0.0.{number}", _free_port(f"127.0.0.{number}"))
    config = paths.folder / f"sshd_{number}"
    config.write_text(_sshd_config(paths, home, address, port))
    log = (paths.folder / f"sshd_{number}.log").open("wb")
    server = (SSHD, "-D", "-e", "-f", str(config))
    if network is None:
        process = subprocess.Popen(server, stderr=log, stdin=subprocess.DEVNULL)
        host = TestHost(name=name, address=address, port=port, home=home, process=process)
    else:
        process = _start_apart(server, name, log)
        host = TestHost(
            name=name, address=address, port=port, home=home, process=process, link=(network, f"to-{number}")
        )
    log.close()
    try:
        if network is not None:
            _plug_in(process, network, number)
        yield host
    finally:
        host.kill_all()
        host.stop_sshd()


APART = (
    *("unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-ec"),
    'read go; hostname "$1"; shift; mount -t tmpfs tmpfs /run; mkdir /run/sshd; ip link set lo up; exec "$@"',
    "sh",
)


def _start_apart(server: tuple[str, ...], name: str, log: object) -> subprocess.Popen[bytes]:
    """Start a host in namespaces of its own: network, mounts, processes and name."""
    return subprocess.Popen((*APART, name, *server), stderr=log, stdin=subprocess.PIPE, start_new_session=True)  # type: ignore[call-overload,no-any-return]


def _plug_in(process: subprocess.Popen[bytes], network: str, number: int) -> None:
    """Lay a cable from the switch to the host, and let it start its sshd."""
    _wait(lambda: _read_link(process.pid, "ns/net") != _read_link(os.getpid(), "ns/net"))
    inside = ("nsenter", "--net", "--target", str(process.pid))
    ours = f"to-{number}"
    run("ip", "-n", network, "link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
    run("ip", "-n", network, "link", "set", ours, "master", "br0", "up")
    run(*inside, "ip", "addr", "add", f"{NODES}.{number}/24", "dev", "eth0")
    run(*inside, "ip", "link", "set", "eth0", "up")
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.close()


def _sshd_config(paths: _Paths, home: Path, address: str, port: int) -> str:
    shutil.copy(paths.home / ".ssh" / "key.pub", home / "authorized_keys")
    return "\n".join(
        (
            f"ListenAddress {address}:{port}",
            f"HostKey {paths.folder}/host_key",
            f"AuthorizedKeysFile {home}/authorized_keys",
            f"PidFile {home}/sshd.pid",
            f'SetEnv HOME="{home}" PATH="{paths.tools}"',
            "StrictModes no",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "MaxStartups 100",
            "",
        )
    )


def _write_client(paths: _Paths, hosts: list[TestHost]) -> None:
    """Write the user's configuration, and an `ssh` that reads it: OpenSSH takes the home from the list of users."""
    key = (paths.folder / "host_key.pub").read_text().rsplit(" ", 1)[0]
    known = "".join(f"[{host.address}]:{host.port} {key}\n{host.address} {key}\n" for host in hosts)
    (paths.home / ".ssh" / "known_hosts").write_text(known)
    user = pwd.getpwuid(os.geteuid()).pw_name
    entries = [f"Host {host.name}\n  HostName {host.address}\n  Port {host.port}\n" for host in hosts]
    entries.append(
        f"Host *\n  User {user}\n  IdentityFile {paths.home}/.ssh/key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {paths.home}/.ssh/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
    )
    (paths.home / ".ssh" / "config").write_text("".join(entries))
    paths.shim.mkdir()
    shim = paths.shim / "ssh"
    shim.write_text(f'#!/bin/sh\nexec {SSH} -F "$HOME/.ssh/config" "$@"\n')
    shim.chmod(0o755)


def run(*words: str) -> str:
    """Run a command, or fail with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(host: TestHost) -> None:
    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((host.address, host.port), 1) as connection:
            return connection.recv(4) == b"SSH-"
        return False

    _wait(answers)


def _wait(is_so: object) -> None:
    end = time.monotonic() + START_SECONDS
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _command_line(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _read_link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""
