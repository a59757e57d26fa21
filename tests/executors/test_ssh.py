"""The carrier `ssh`, against a real sshd."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.errors import BadInput
from shoal.executors.carriers.kind import NodeStream, NodeUnavailable
from shoal.executors.carriers.ssh import open_carrier
from shoal.executors.carriers.ssh_host import open_ssh_host
from shoal.model.nodes import NodeAddress
from shoal.proc import run
from tests.executors.hosts import Hosts, open_hosts

pytestmark = [pytest.mark.deep, pytest.mark.alone]  # each test has hosts with the same addresses

ECHO = '#!/bin/sh\n[ "$*" = "node --stdio" ] && exec cat\n'


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Three hosts, whose `shoal` sends back what it gets."""
    folder = tmp_path_factory.mktemp("hosts")
    with open_hosts(folder, has_shoal=False) as found:
        tool = folder / "tools" / "shoal"
        tool.write_text(ECHO)
        tool.chmod(0o755)
        yield found


@contextlib.asynccontextmanager
async def connected(hosts: Hosts, place: str) -> AsyncIterator[NodeStream]:
    address = NodeAddress.parse(place)
    async with asyncio.timeout(60), open_carrier(address, hosts.environ) as carrier:
        (node,) = await carrier.find_nodes()
        async with carrier.connect(node) as stream:
            yield stream


def configure(hosts: Hosts, entry: str) -> None:
    """Put an entry in front of the user's configuration, where it counts first."""
    config = Path(hosts.environ["HOME"], ".ssh", "config")
    config.write_text(f"{entry}\n{config.read_text()}")


async def failure(hosts: Hosts, place: str) -> NodeUnavailable:
    with pytest.raises(NodeUnavailable) as caught:
        async with connected(hosts, place):
            pytest.fail("connected")
    return caught.value


async def test_arguments_arrive_as_they_are(hosts: Hosts) -> None:
    async with open_ssh_host("node1", hosts.environ) as host:
        done = await run(host.command('echo "$HOME" "$1" "$2"', "a b'c$HOME;", "-x\n*"), timeout=60)

    assert done.stdout.decode() == f"{hosts.hosts[0].home} a b'c$HOME; -x\n*\n"


@pytest.mark.parametrize("place", ["-oProxyCommand=touch x", "a b", "a;b", "a@-b", "", "$(id)", "a/b"])
async def test_an_option_or_a_program_is_no_host(hosts: Hosts, place: str) -> None:
    with pytest.raises(BadInput, match="is no name of a host"):
        async with open_ssh_host(place, hosts.environ):
            pytest.fail("opened")


async def test_bytes_come_back_whatever_the_login_shell_prints(hosts: Hosts) -> None:
    (hosts.hosts[1].home / ".bashrc").write_text("echo welcome; echo careful >&2")
    sent = bytes(range(256)) * 40_000
    async with connected(hosts, "node2") as stream:

        async def send() -> None:
            stream.writer.write(sent)
            await stream.writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            received = await stream.reader.readexactly(len(sent))

    assert received == sent


async def test_nothing_stays_on_either_side(hosts: Hosts) -> None:
    async with connected(hosts, "node3") as stream:
        stream.writer.write(b"x")
        await stream.writer.drain()
        assert await stream.reader.readexactly(1) == b"x"
        assert "cat" in hosts.hosts[2].pids().values()

    async with asyncio.timeout(30):
        while hosts.hosts[2].pids():
            await asyncio.sleep(0.01)


async def test_the_end_of_all_processes_there_ends_the_stream(hosts: Hosts) -> None:
    async with connected(hosts, "node1") as stream:
        hosts.hosts[0].kill_all()

        assert await stream.reader.read() == b""
        assert not stream.has_died(), "its agents may live on"


async def test_a_host_that_is_not_known_is_not_trusted(hosts: Hosts) -> None:
    place = f"HostName {hosts.hosts[0].address}\n  Port {hosts.hosts[0].port}"
    configure(hosts, f"Host stranger\n  {place}\n  HostKeyAlias stranger\n")

    error = await failure(hosts, "stranger")

    assert "Host key verification failed" in error.why
    assert error.remedy == "connect once by hand to accept its key: ssh stranger true"


async def test_a_host_with_another_key_is_refused(hosts: Hosts) -> None:
    home = Path(hosts.environ["HOME"])
    (home / "wrong").write_text(f"impostor {(home / '.ssh' / 'key.pub').read_text()}")
    place = f"HostName {hosts.hosts[0].address}\n  Port {hosts.hosts[0].port}\n  HostKeyAlias impostor"
    configure(hosts, f"Host impostor\n  {place}\n  UserKnownHostsFile {home}/wrong\n")

    assert "ssh-keygen -R" in (await failure(hosts, "impostor")).remedy


async def test_a_login_that_would_ask_is_refused(hosts: Hosts) -> None:
    error = await failure(hosts, "nobody-we-know@node1")

    assert "Permission denied" in error.why
    assert "ssh-copy-id" in error.remedy


async def test_a_host_without_an_sshd_is_named(hosts: Hosts) -> None:
    configure(hosts, f"Host deaf\n  HostName {hosts.hosts[0].address}\n  Port 9\n")

    error = await failure(hosts, "deaf")

    assert str(error).startswith("the node deaf is not available")
    assert "Connection refused" in error.why


async def test_a_host_without_shoal_says_how_to_install_it(hosts: Hosts) -> None:
    tool = hosts.hosts[0].home.parent / "tools" / "shoal"
    tool.rename(tool.with_name("away"))
    try:
        error = await failure(hosts, "node1")
    finally:
        tool.with_name("away").rename(tool)

    assert error.why == "Shoal is not installed there"
    assert error.remedy == "run: shoal node install node1"


async def test_without_ssh_the_error_says_so(hosts: Hosts) -> None:
    bare = Hosts(hosts=hosts.hosts, environ={**hosts.environ, "PATH": "/nonexistent"})

    assert "install the OpenSSH client" in str(await failure(bare, "node1"))


async def test_settings_that_would_end_or_change_a_stream_are_overridden(hosts: Hosts) -> None:
    settings = "RemoteCommand echo mine\n  RequestTTY force\n  LocalForward 1 127.0.0.1:1\n  ForwardAgent yes\n  LogLevel QUIET"
    configure(hosts, f"Host odd\n  HostName {hosts.hosts[0].address}\n  Port {hosts.hosts[0].port}\n  {settings}\n")
    async with connected(hosts, "odd") as stream:
        stream.writer.write(b"\x03~.\r\n")
        await stream.writer.drain()
        assert await stream.reader.readexactly(5) == b"\x03~.\r\n"
