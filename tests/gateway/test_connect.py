"""The proxy for allowed hosts, attacked by what a client can write, and used by real ones."""

import asyncio
import contextlib
import itertools
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gateway import client_hello
from shoal.gateway.connect import ConnectProxy, HostDenial, Streams, TunnelBounds
from shoal.gateway.hosts import HostRule

HEAD = b"CONNECT ok.com:443 HTTP/1.1\r\nHost: ok.com:443\r\n\r\n"
PATIENT = TunnelBounds(idle_seconds=20)
PUBLIC = "93.184.215.14"


@dataclass
class Proxy:
    """A proxy on loopback, what it denied, and the addresses that it dialled."""

    port: int
    denials: list[HostDenial]
    dialled: list[tuple[str, int]] = field(default_factory=list)
    resolved: list[str] = field(default_factory=list)

    async def say(self, *parts: bytes, end: bool = False) -> bytes:
        """Send, and return all that comes back before the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        async with asyncio.timeout(20):
            for part in parts:
                writer.write(part)
                await writer.drain()
            if end:
                writer.write_eof()
            answer = bytearray()
            with contextlib.suppress(ConnectionError):
                while chunk := await reader.read(4096):
                    answer += chunk
            writer.close()
        return bytes(answer)

    async def connect(self, target: str) -> bytes:
        return await self.say(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode(), end=True)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(4096):
            writer.write(b"echo " + chunk)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def proxying(
    *rules: str,
    addresses: Sequence[str] = (PUBLIC,),
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object] = echo,
    bounds: TunnelBounds = PATIENT,
    is_own: bool = False,
) -> AsyncIterator[Proxy]:
    """Run a proxy whose names have these addresses, and whose dials all reach one server."""
    denials: list[HostDenial] = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as target:  # type: ignore[arg-type]

        async def dial(address: str, port: int) -> Streams:
            proxy.dialled.append((address, port))
            return await asyncio.open_connection("127.0.0.1", target.sockets[0].getsockname()[1])

        async def resolve(host: str, port: int) -> Sequence[str]:
            proxy.resolved.append(host)
            return addresses

        parsed = [HostRule.parse(rule) for rule in rules]
        served = ConnectProxy(
            rules=parsed, report=denials.append, resolve=resolve, dial=dial, is_own=lambda _: is_own, bounds=bounds
        )
        async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as server:
            proxy = Proxy(server.sockets[0].getsockname()[1], denials)
            yield proxy


def hello(name: str | None) -> bytes:
    """Return what Python's own TLS sends first to a server of that name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


async def test_an_allowed_host_is_resolved_once_and_dialled_by_that_address() -> None:
    async with proxying("ok.com") as proxy:
        answer = await proxy.say(HEAD, hello("ok.com"), end=True)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\n\r\necho \x16\x03" in answer
    assert (proxy.dialled, proxy.resolved, proxy.denials) == ([(PUBLIC, 443)], ["ok.com"], [])


@pytest.mark.parametrize(
    "target",
    ["evil.com:443", "ok.com.evil:443", "ok.com:80", "127.0.0.1:443", "[::1]:443", "8.8.8.8:443", "localhost:22"],
)
async def test_a_host_that_is_not_listed_is_denied_with_the_line_to_add(target: str) -> None:
    async with proxying("ok.com") as proxy:
        answer = await proxy.connect(target)

    (denial,) = proxy.denials
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert f"add `hosts: [{target}]`".encode() in answer
    assert denial.rule == target
    assert f"{denial.host}:{denial.port}".replace("::1", "[::1]") == target
    assert (proxy.dialled, proxy.resolved) == ([], []), "no query leaves"


async def test_an_address_that_may_never_be_dialled_has_no_line_to_add() -> None:
    async with proxying("ok.com") as proxy:
        await proxy.connect("169.254.169.254:80")

    assert [denial.rule for denial in proxy.denials] == [None]


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fd00:ec2::254", "0.0.0.0"]
)
@pytest.mark.parametrize("others", [[], [PUBLIC]])
async def test_a_name_that_resolves_to_an_inner_address_is_denied(address: str, others: list[str]) -> None:
    """DNS rebinding, also where only one of the answers is bad."""
    async with proxying("ok.com", addresses=[*others, address]) as proxy:
        answer = await proxy.connect("ok.com:443")

    assert answer.startswith(b"HTTP/1.1 403 ")
    assert f"resolves to {address}" in proxy.denials[0].why
    assert proxy.dialled == []


async def test_a_name_of_this_host_is_denied() -> None:
    async with proxying("ok.com", is_own=True) as proxy:
        await proxy.connect("ok.com:443")

    assert proxy.dialled == []
    assert "an address of this host" in proxy.denials[0].text


async def test_a_name_that_changes_its_address_is_not_asked_twice() -> None:
    answers = iter([[PUBLIC], ["127.0.0.1"]])
    async with proxying("ok.com") as proxy:
        pass
    dialled: list[str] = []

    async def dial(address: str, port: int) -> Streams:
        dialled.append(address)
        raise ConnectionRefusedError("refused")

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(answers)

    served = ConnectProxy(rules=[HostRule.parse("ok.com")], report=proxy.denials.append, resolve=resolve, dial=dial)
    async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as server:
        answer = await Proxy(server.sockets[0].getsockname()[1], []).connect("ok.com:443")

    assert answer.startswith(b"HTTP/1.1 502 ")
    assert dialled == [PUBLIC]
    assert next(answers) == ["127.0.0.1"], "it was never asked for"


SMUGGLED = b"GET / HTTP/1.1\r\nHost: evil\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        b"GET http://ok.com/ HTTP/1.1\r\nHost: ok.com\r\n\r\n",
        b"GET http://169.254.169.254/latest/meta-data HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: ok.com\r\n\r\n",
        b"POST http://ok.com/ HTTP/1.1\r\nHost: ok.com\r\nContent-Length: 2\r\n\r\nhi",
        b"connect ok.com:443 HTTP/1.1\r\n\r\n",
        b"CONNECT ok.com:443 HTTP/1.1\r\nHost: evil.com:443\r\n\r\n",
        b"CONNECT ok.com:443 HTTP/1.1\r\nHost: ok.com\r\nHost: evil.com\r\n\r\n",
        b"CONNECT ok.com:443 HTTP/1.1\r\nHost: ok.com\r\nContent-Length: 35\r\n\r\n" + SMUGGLED,
        b"CONNECT ok.com:443 HTTP/1.1\r\nHost: ok.com\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n" + SMUGGLED,
        b"CONNECT ok.com:443 HTTP/1.1\r\nHost: ok.com\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"CONNECT ok.com:443 HTTP/1.1\r\nHost: ok.com\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
        + SMUGGLED,
        b"CONNECT ok.com:443 HTTP/1.1\r\nHost: ok.com\r\nTransfer-Encoding : chunked\r\n\r\n",
        b"CONNECT ok.com:443 HTTP/1.1\r\nHost: ok.com\r\nX: a\r\n\tb\0\r\n\r\n",
        b"CONNECT ok.com:443 HTTP/1.1\r\nHost: ok.com\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        b"CONNECT  ok.com:443 HTTP/1.1\r\n\r\n",
        b"CONNECT ok.com:443 HTTP/2.0\r\n\r\n",
        b"CONNECT ok.com:443\r\n\r\n",
        b"CONNECT http://ok.com:443 HTTP/1.1\r\nHost: ok.com\r\n\r\n",
        b"CONNECT ok.com@evil.com:443 HTTP/1.1\r\nHost: ok.com\r\n\r\n",
        b"CONNECT evil\0.ok.com:443 HTTP/1.1\r\nHost: ok.com\r\n\r\n",
        b"CONNECT ok.com.:443 HTTP/1.1\r\nHost: ok.com\r\n\r\n",
        b"CONNECT 2130706433:443 HTTP/1.1\r\nHost: ok.com\r\n\r\n",
        b"CONNECT [::ffff:127.0.0.1]:443 HTTP/1.1\r\nHost: ok.com\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"\x16\x03\x01\x00\x05hello\r\n\r\n",
        b"\x05\x01\x00\r\n\r\n",
        b"CONNECT ok.com:443 HTTP/1.1\r\nHost: ok.com\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
        b"CONNECT ok.com:443 HTTP/1.1\r\nHost: ok.com\r\n" + b"X: a\r\n" * 9000 + b"\r\n",
        b"\r\n" * 20_000,
    ],
    ids=lambda request: repr(request[:50]),
)
async def test_whatever_is_not_a_plain_connect_is_refused(request_: bytes) -> None:
    async with proxying("ok.com") as proxy:
        answer = await proxy.say(request_, end=True)

    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 403", b"HTTP/1.1 405", b""), answer
    assert (proxy.dialled, proxy.resolved) == ([], [])
    assert all(denial.host.isprintable() and len(denial.text) < 600 for denial in proxy.denials)
    assert answer.count(b"HTTP/1.1 ") <= 1, "what follows is no second request"


@pytest.mark.parametrize(
    "start",
    [
        hello("evil.com"),
        hello("ok.com.evil.com"),
        b"GET / HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x00\x02\x01\x00",
        b"\x16" + b"\xff" * 200,
        b"\x16\x03\x01\x40\x01" + b"\x01" * 20_000,
        hello("ok.com")[:60],
    ],
    ids=range(8),
)
async def test_tls_for_another_server_does_not_pass(start: bytes) -> None:
    received = bytearray()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read())
        writer.close()

    async with proxying("ok.com", serve=keep) as proxy:
        await proxy.say(HEAD, start, end=True)

    assert len(proxy.denials) == 1
    assert bytes(received) == b"", "not a byte got out"


async def test_a_hello_without_a_name_or_in_pieces_passes() -> None:
    async with proxying("ok.com", "1.2.3.4:443") as proxy:
        whole = hello("OK.com")
        for target, pieces in (
            ("ok.com:443", [whole[at : at + 1] for at in range(len(whole))]),
            ("1.2.3.4:443", [hello(None)]),
            ("ok.com:443", [b""]),
        ):
            answer = await proxy.say(f"CONNECT {target} HTTP/1.0\r\n\r\n".encode(), *pieces, end=True)
            assert answer.startswith(b"HTTP/1.1 200 ")

    assert proxy.denials == []


@given(st.binary(max_size=300))
def test_any_bytes_are_a_hello_or_none(tail: bytes) -> None:
    client_hello.read(b"\x16" + tail)
    client_hello.read(b"\x16\x03\x01" + len(tail).to_bytes(2, "big") + tail)
    client_hello.read(
        b"\x16\x03\x01" + (len(tail) + 4).to_bytes(2, "big") + b"\x01" + len(tail).to_bytes(3, "big") + tail
    )


@given(st.sets(st.integers(1, 100), max_size=5))
def test_a_hello_over_several_records_is_read(cuts: set[int]) -> None:
    message = hello("ok.com")[5:]
    places = [0, *sorted(cuts), len(message)]
    pieces = [message[start:end] for start, end in itertools.pairwise(places)]
    records = b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)

    assert client_hello.read(records) == client_hello.Hello("ok.com")
    assert client_hello.read(records[:-1]) is None


def test_a_hello_in_a_thousand_records_is_none() -> None:
    records = b"".join(b"\x16\x03\x01\x00\x01" + bytes([byte]) for byte in b"\x01\x00\xff\xff" + bytes(1000))

    assert client_hello.read(records) == client_hello.BROKEN


async def test_a_server_that_speaks_first_is_heard() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-server\r\n")
        writer.write(await reader.readline())
        writer.close()

    async with proxying("github.com:22", serve=greet) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"CONNECT github.com:22 HTTP/1.0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        greeting = await reader.readline()
        writer.write(b"SSH-2.0-client\r\n")
        answer = await reader.read()
        writer.close()

    assert (greeting, answer) == (b"SSH-2.0-server\r\n", b"SSH-2.0-client\r\n")


async def test_a_literal_rule_reaches_exactly_that_address_and_port() -> None:
    denials: list[HostDenial] = []
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as target:
        port = target.sockets[0].getsockname()[1]
        rules = [HostRule.parse(f"127.0.0.1:{port}"), HostRule.parse(f"localhost:{port}")]
        served = ConnectProxy(rules=rules, report=denials.append)
        async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as server:
            proxy = Proxy(server.sockets[0].getsockname()[1], denials)
            for host in ("127.0.0.1", "localhost"):
                answer = await proxy.say(f"CONNECT {host}:{port} HTTP/1.0\r\n\r\n".encode(), b"hi", end=True)
                assert answer.endswith(b"echo hi")
            assert (await proxy.connect(f"127.0.0.2:{port}")).startswith(b"HTTP/1.1 403 ")
            assert (await proxy.connect(f"127.0.0.1:{port + 1}")).startswith(b"HTTP/1.1 403 ")


async def test_slow_and_silent_clients_end_and_too_many_are_refused() -> None:
    bounds = TunnelBounds(tunnels=3, head_seconds=0.3, idle_seconds=0.3)
    async with proxying("ok.com:22", bounds=bounds) as proxy:
        assert await proxy.say(b"CONNECT ok.com") == b"", "the head never came"
        assert (await proxy.say(b"CONNECT ok.com:22 HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 "), "then silence"
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(proxy.connect("ok.com:22")) for _ in range(30)]

    starts = {answer.result()[:12] for answer in answers}
    assert starts <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}
    assert b"HTTP/1.1 503" in starts


def make_certificate(folder: Path) -> ssl.SSLContext:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "cert", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*words, *names], cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    return context


async def test_curl_works_through_it_and_is_told_what_to_add(tmp_path: Path) -> None:
    context = make_certificate(tmp_path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\nconnection: close\r\n\r\n" + b"x" * 300_000)
        await writer.drain()
        writer.close()

    denials: list[HostDenial] = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as target:
        port = target.sockets[0].getsockname()[1]
        served = ConnectProxy(rules=[HostRule.parse(f"127.0.0.1:{port}")], report=denials.append)
        async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as server:
            proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            good = await curl(tmp_path, proxy, f"https://127.0.0.1:{port}/")
            bad = await curl(tmp_path, proxy, "https://elsewhere.example/")

    assert good == (0, b"x" * 300_000, b"")
    assert bad[0] == 56
    assert b"403" in bad[2]
    assert [denial.rule for denial in denials] == ["elsewhere.example:443"]


async def curl(folder: Path, proxy: str, url: str) -> tuple[int | None, bytes, bytes]:
    words = ["curl", "-sS", "--noproxy", "", "--cacert", str(folder / "cert"), "--proxy", proxy, url]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, timeout=30)
    return done.returncode, done.stdout, done.stderr
