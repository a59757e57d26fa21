"""`shoal mcp --http`: who has the token is served, and nobody else is."""

import asyncio
import contextlib
import http.client
import json
import resource
import socket
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent

from tests.cli.conftest import SHOAL, environment
from tests.cli.warm import Said
from tests.conftest import git

SECONDS = 60
HELLO = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
)
MEDIA = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@dataclass(frozen=True)
class Served:
    """A server that runs, and its token."""

    port: int
    token: str
    file: Path

    def ask(self, *, body: str = HELLO, **headers: str) -> int:
        """Send one request, and give the status of its answer."""
        sent = {**MEDIA, "Authorization": f"Bearer {self.token}", **headers}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)) as connection:
            connection.putrequest("POST", "/mcp", skip_host=True)
            for name, value in {"Host": f"127.0.0.1:{self.port}", **sent}.items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.send(body.encode())
            return connection.getresponse().status

    @contextlib.asynccontextmanager
    async def open_client(self) -> AsyncIterator[ClientSession]:
        """Connect with the official client."""
        url, headers = f"http://localhost:{self.port}/mcp", {"Authorization": f"Bearer {self.token}"}
        async with (
            asyncio.timeout(SECONDS),
            httpx.AsyncClient(headers=headers, timeout=SECONDS) as web,
            streamable_http_client(url, http_client=web) as (reads, writes, _),
            ClientSession(reads, writes) as client,
        ):
            await client.initialize()
            yield client


@contextlib.contextmanager
def serving(repo: Path) -> Iterator[Served]:
    command = [str(SHOAL), "mcp", "--http"]
    with subprocess.Popen(command, cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            process.stdout.readline()
            file = repo / ".shoal" / "mcp-token"
            yield Served(int(address.rpartition(":")[2].partition("/")[0]), file.read_text().strip(), file)
        finally:
            process.terminate()
            process.wait(SECONDS)


@pytest.fixture
def served(repo: Path) -> Iterator[Served]:
    """A server on a free port."""
    with serving(repo) as served:
        yield served


async def test_a_client_with_the_token_runs_agents_and_merges_their_work(repo: Path, served: Served) -> None:
    async with served.open_client() as client:
        started = await client.call_tool("run", {"tasks": ["echo a > a.txt"], "command": "sh -s"})
        waited = await client.call_tool("wait", {})
        merged = await client.call_tool("merge", {"into": "main", "strategy": "squash"})

    assert [started.isError, waited.isError, merged.isError] == [False] * 3
    assert isinstance(waited.content[0], TextContent)
    assert json.loads(waited.content[0].text)["status"] == "succeeded"
    assert git(repo, "show", "main:a.txt") == "a"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic {token}"}, 401),
        ({"Host": "attacker.example"}, 421),
        ({"Host": "attacker.example:{port}"}, 421),
        ({"Host": "127.0.0.1.attacker.example:{port}"}, 421),
        ({"Origin": "http://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Origin": "http://localhost:{port}"}, 200),
        ({"Authorization": "bearer  {token}"}, 200),
    ],
)
def test_wrong_tokens_hosts_and_origins_are_refused(served: Served, headers: dict[str, str], status: int) -> None:
    filled = {name: text.format(port=served.port, token=served.token) for name, text in headers.items()}

    assert served.ask(**filled) == status


def test_the_token_is_private_stays_the_same_and_is_replaced_once_others_can_read_it(repo: Path) -> None:
    with serving(repo) as first:
        assert stat.S_IMODE(first.file.stat().st_mode) == 0o600
    with serving(repo) as second:
        assert second.token == first.token
    first.file.chmod(0o644)
    with serving(repo) as third:
        assert third.token != first.token
        assert stat.S_IMODE(third.file.stat().st_mode) == 0o600


def test_no_other_address_is_listened_on(served: Served) -> None:
    with socket.socket() as outside, pytest.raises(OSError):
        outside.settimeout(1)
        outside.connect(("127.0.0.2", served.port))


def test_a_large_request_is_refused(served: Served) -> None:
    assert served.ask(body="x" * (2**20 + 1)) == 413


async def test_a_thousand_silent_connections_keep_nobody_out(served: Served) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(4096, limits[1])), limits[1]))
    silent = [socket.create_connection(("127.0.0.1", served.port), timeout=SECONDS) for _ in range(1000)]
    try:
        async with served.open_client() as client:
            assert (await client.list_tools()).tools
    finally:
        for connection in silent:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_taken_port_and_options_without_sense_are_refused(repo: Path, served: Served) -> None:
    def refused(*words: str) -> Said:
        done = subprocess.run([str(SHOAL), "mcp", *words], cwd=repo, env=environment(), capture_output=True, text=True)
        return Said(done.returncode, done.stdout, done.stderr)

    taken, lonely = refused("--http", "--port", str(served.port)), refused("--port", "1")

    assert (taken.code, lonely.code) == (2, 2)
    assert "cannot be used" in taken.err
    assert "--port is for --http" in lonely.err
