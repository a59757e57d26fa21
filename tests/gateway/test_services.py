"""Connections of sandboxes elsewhere are carried to the gateway, and the coordinator serves ports inside sandboxes."""

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from shoal.gateway.arrivals import ServeConnection
from shoal.model.gateway import CONNECT_PORT, PORT, Recording
from tests.gateway.scenes import KEY, scene

SERVICE = 9920
GREET = """
import os, socket
with socket.create_connection(("127.0.0.1", 9920), timeout=10) as line:
    line.sendall(b"hello\\n")
    print(line.makefile().readline().strip())
"""


def greet(name: str) -> ServeConnection:
    """Make a service that answers each line with the name of its session."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.readline()
        writer.write(f"{name} heard {said.decode().strip()}\n".encode())
        writer.close()

    return serve


def ask(token: str) -> bytes:
    body = json.dumps({"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "[[s:text in=12]]"}]})
    head = f"POST /anthropic/v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {token}\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()


async def test_connections_of_a_sandbox_elsewhere_are_carried_to_the_gateway() -> None:
    async with scene() as here:
        order = here.order(hosts=("127.0.0.1:4873",))
        async with here.gateway.hold_session(order, lambda message: here.said.append(dict(message))) as session:

            async def carry(port: int, said: bytes) -> bytes:
                reader, writer = await session.connect(port)
                writer.write(said)
                async with asyncio.timeout(10):
                    answer = await reader.read()
                writer.close()
                return answer

            assert session.ports == (PORT, CONNECT_PORT, 4873)
            good = await carry(PORT, ask(order.token))
            bad = await carry(PORT, ask("shoal-of-another-session"))
            denied = await carry(CONNECT_PORT, b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n")
            with pytest.raises(ConnectionRefusedError, match="4711"):
                await session.connect(4711)

    assert b" 200 " in good.splitlines()[0], good
    assert b" 401 " in bad.splitlines()[0]
    assert b"hosts: [example.com:443]" in denied
    assert [message["event"] for message in here.said] == ["exchange", "denied"]


def test_what_leaves_this_machine_has_no_key(tmp_path: Path) -> None:
    async def order() -> str:
        async with scene() as here:
            known = Recording(folder=str(tmp_path), secrets={"TEAM": KEY})
            return json.dumps(dataclasses.asdict(dataclasses.replace(here.order(), recording=known).without_keys()))

    said = asyncio.run(order())

    assert KEY not in said
    assert "anthropic" in said


async def test_the_coordinator_serves_a_port_in_each_sandbox_and_knows_whose_it_is() -> None:
    async with scene() as here:
        orders = [here.order(name) for name in ("first-1", "second-1")]
        async with asyncio.TaskGroup() as group:
            said = [group.create_task(here.run(GREET, order, {SERVICE: greet(order.session)})) for order in orders]
        async with here.gateway.hold_session(orders[0], lambda _: None, {SERVICE: greet("elsewhere")}) as session:
            reader, writer = await session.connect(SERVICE)
            writer.write(b"hello\n")
            carried = await reader.read()
            writer.close()

    assert [task.result().strip() for task in said] == ["first-1 heard hello", "second-1 heard hello"]
    assert carried == b"elsewhere heard hello\n"


async def test_a_damaged_recording_ends_its_own_session_only(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    recording = Recording(folder=str(tmp_path), is_replay=True, key="bad")

    async with scene() as here:
        damaged = dataclasses.replace(here.order("bad-1"), recording=recording)
        failed = asyncio.Event()

        def note(message: object) -> None:
            here.said.append(dict(message))  # type: ignore[call-overload]  # a mapping
            failed.set()

        async with here.gateway.hold_session(damaged, note):
            async with asyncio.timeout(10):
                await failed.wait()
        async with here.gateway.hold_session(here.order(), lambda _: None) as session:
            reader, writer = await session.connect(PORT)
            writer.write(ask(session.order.token))
            answer = await reader.read()
            writer.close()

    assert here.said[0]["event"] == "failed"
    assert "bad.jsonl.gz: this is no recording of Shoal" in here.said[0]["why"]
    assert b" 200 " in answer.splitlines()[0]
