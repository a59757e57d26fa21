"""The cost of the gateway: a listener in a sandbox, the time to the first token, and many streams at once.

Both ways are measured side by side, one after the other, on one machine; other load makes every number worse.
"""

import asyncio
import json
import os
import secrets
import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from shoal.gateway.gateway import Gateway, open_gateway
from shoal.model.gateway import SessionOrder, Upstream
from shoal.model.policy import Network, Policy
from shoal.proc.namespace import Namespace
from shoal.sandboxes.kind import TRUE
from shoal.sessions.host_probe import probe_sandbox
from shoal.sessions.sandboxed import open_sandboxed

ROUNDS = int(os.environ.get("SHOAL_BENCH_ROUNDS", "40"))
STREAMS = int(os.environ.get("SHOAL_BENCH_STREAMS", "100"))
EVENTS_EACH_SECOND, SECONDS = 10.0, float(os.environ.get("SHOAL_BENCH_SECONDS", "10"))
TICKS = os.sysconf("SC_CLK_TCK")
EVENT = b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "word "}}\n\n'
BODY = json.dumps(
    {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "x" * 20_000}]}
).encode()


async def serve_model(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer at once, with as many events as the request says, at a steady pace."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(_number(head, b"content-length: "))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for number in range(_number(head, b"x-events: ")):
                if number:
                    await asyncio.sleep(1 / EVENTS_EACH_SECOND)
                writer.write(b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _number(head: bytes, name: bytes) -> int:
    return int(head.split(name)[1].split(b"\r\n")[0])


@dataclass(frozen=True)
class Way:
    """A way to the model: straight, or through the gateway."""

    port: int
    path: str
    token: str

    async def ask(self, events: int = 1) -> float:
        """Ask once on a connection of its own, read everything, and give the milliseconds to the first event."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = (f"POST {self.path} HTTP/1.1", "Host: x", f"x-api-key: {self.token}", f"x-events: {events}")
        head = "\r\n".join((*lines, "Connection: close", f"Content-Length: {len(BODY)}", "", ""))
        began = time.perf_counter()
        writer.write(head.encode() + BODY)
        await reader.readuntil(b"content_block_delta")
        first = 1000 * (time.perf_counter() - began)
        while not (await reader.read(2**16)).endswith(b"0\r\n\r\n") and not reader.at_eof():
            pass
        writer.close()
        return first


def usage_of(pid: int) -> tuple[float, float]:
    """Give the CPU seconds and the memory in MB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / TICKS, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def gateway_pid() -> int:
    """Find the gateway that we have started."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command, stat = Path(f"/proc/{name}/cmdline").read_bytes(), Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        if b"shoal.gateway.process" in command and stat.rpartition(")")[2].split()[1] == str(os.getpid()):
            return int(name)
    raise SystemExit("there is no gateway")


async def measure_listener(gateway: Gateway) -> None:
    """Start sandboxes with and without a listener."""
    sandbox = await probe_sandbox("bubblewrap", os.environ)
    took: list[float] = []
    starts: dict[Network, list[float]] = {Network.NONE: [], Network.GATEWAY: []}

    async def listen(namespace: Namespace) -> None:
        began = time.perf_counter()
        await gateway.try_listener(namespace)
        took.append(1000 * (time.perf_counter() - began))

    for _ in range(ROUNDS):
        for network, spent in starts.items():
            policy = Policy(token=secrets.token_hex(8), network=network)
            began = time.perf_counter()
            async with open_sandboxed(sandbox, TRUE, policy, sink=lambda _stream, _data: None, listen=listen) as box:
                await box.wait()
            spent.append(1000 * (time.perf_counter() - began))
    none, some = (statistics.median(spent) for spent in starts.values())
    print(
        f"listener: {statistics.median(took[1:]):.1f} ms; a sandbox that ran `true`: {none:.1f} ms without, {some:.1f} ms with"
    )


async def measure_first_token(direct: Way, through: Way) -> None:
    """Ask each way in turn, while other streams run through the gateway."""
    for streams in (1, 50):
        found: dict[Way, list[float]] = {direct: [], through: []}
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(through.ask(10_000)) for _ in range(streams - 1)]
            await asyncio.sleep(1 if others else 0)
            for _ in range(ROUNDS):
                for way, times in found.items():
                    times.append(await way.ask())
            for task in others:
                task.cancel()
        plain, some = (statistics.median(times) for times in found.values())
        print(
            f"first token with {streams} streams: {plain:.1f} ms direct, {some:.1f} ms through: +{some - plain:.1f} ms"
        )
        await asyncio.sleep(1)


async def measure_streams(through: Way) -> None:
    """Run many streams at once, and look at the gateway's process."""
    events, pid = int(SECONDS * EVENTS_EACH_SECOND), gateway_pid()
    cpu, memory = usage_of(pid)
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(through.ask(events))
    took = time.perf_counter() - began
    cpu_after, memory_after = usage_of(pid)
    rate, share = STREAMS * events / took, 100 * (cpu_after - cpu) / took
    each = share / (rate / 1000)
    print(f"{STREAMS} streams: {rate:.0f} events/s take {share:.0f} % of a core, {each:.1f} % for 1,000 events/s")
    print(f"its memory: {memory:.0f} MB before, {memory_after:.0f} MB after")


async def main() -> None:
    """Measure everything."""
    server = await asyncio.start_server(serve_model, "127.0.0.1", 0, backlog=500)
    async with server, open_gateway(os.environ) as gateway:
        direct = Way(server.sockets[0].getsockname()[1], "/v1/messages", "k")
        await measure_listener(gateway)
        upstream = Upstream(name="anthropic", url=f"http://127.0.0.1:{direct.port}", format="anthropic", key="k" * 40)
        order = SessionOrder(session="bench", run="bench", step="bench", upstreams=(upstream,))
        async with gateway.hold_session(order, lambda message: None) as session:
            ends = [socket.create_server(("127.0.0.1", 0), backlog=500) for _ in range(2)]
            session.serve([os.dup(end.fileno()) for end in ends])
            through = Way(ends[0].getsockname()[1], "/anthropic/v1/messages", session.access.token)
            await through.ask()
            await measure_first_token(direct, through)
            await measure_streams(through)


if __name__ == "__main__":
    asyncio.run(main())
