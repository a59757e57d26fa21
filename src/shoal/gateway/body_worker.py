"""A process that reads large requests and records exchanges, so that no stream waits for that; it has no key.

Threads do not help: while Python reads a large text, or searches it, nothing else of the process runs.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal import proc
from shoal.errors import Broken
from shoal.gateway.control_socket import LARGEST_BYTES, ControlSocket, Message
from shoal.gateway.providers import PROVIDERS, CheckedRequest, Route
from shoal.gateway.recording import ExchangeRecorder, Recorder, open_recording
from shoal.gateway.upstream_connection import UpstreamFailed
from shoal.model.command import Argument, Command, SharedSocket
from shoal.model.gateway import Recording

START = "import sys; sys.path[:] = sys.argv[2:]; from shoal.gateway.body_worker import main; main(int(sys.argv[1]))"
SOCKET = "work"
SECONDS = 120.0
"""How long one job may take; then the process is replaced."""


class BodyWorker:
    """Hands jobs to the process, which is started for the first of them, and takes one at a time."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._turn = asyncio.Lock()  # the process does one job after the other, and its time limit is for one
        self._child: _WorkerProcess | None = None
        self._recorded: list[asyncio.Task[str | None]] = []

    async def check(self, kind: str, route: Route, body: bytes, grants: list[str]) -> CheckedRequest | str:
        """Check a request as `Provider.check` does."""
        job = {"do": "check", "format": kind, "route": dataclasses.asdict(route), "grants": grants}
        said, content = await self._ask(job, [body])
        if "refused" in said:
            return str(said["refused"])
        return CheckedRequest(**{**said, "body": content or body})

    async def record(self, recording: Recording, exchange: Mapping[str, Any], parts: Sequence[bytes]) -> None:
        """Record an exchange: its request, and the chunks of its answer."""
        job = {"do": "record", "recording": dataclasses.asdict(recording), **exchange}
        recorded = self._group.create_task(self._record(job, parts))
        self._recorded.append(recorded)
        if (why := await asyncio.shield(recorded)) is not None:  # who has hung up is recorded all the same
            raise UpstreamFailed(f"an exchange cannot be recorded: {why}")

    async def settle(self) -> None:
        """Wait until everything is recorded."""
        if self._recorded:
            await asyncio.wait(self._recorded)

    async def _record(self, job: Message, parts: Sequence[bytes]) -> str | None:
        self._recorded = [task for task in self._recorded if not task.done()]
        try:
            said, _ = await self._ask(job, parts)
        except Exception as error:  # the task's group is that of the whole gateway
            return str(error)
        return said.get("error")

    @property
    def is_busy(self) -> bool:
        """Return whether it has a job."""
        return self._turn.locked()

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.task.cancel()
            self._child = None

    async def _ask(self, job: Message, parts: Sequence[bytes]) -> tuple[Message, bytes]:
        async with self._turn:
            if self._child is None or self._child.is_gone.is_set():
                self._child = _WorkerProcess(self._group)
            try:
                async with asyncio.timeout(SECONDS):
                    return await self._child.ask(job, parts)
            except TimeoutError:
                self.close()
                raise Broken(f"a request could not be read within {SECONDS:g} s") from None
            except asyncio.CancelledError:  # it still works on what nobody waits for
                self.close()
                raise


class _WorkerProcess:
    """The process, for as long as it lives."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.is_gone = asyncio.Event()
        self._control: asyncio.Future[ControlSocket] = asyncio.get_running_loop().create_future()
        self._answer: asyncio.Future[tuple[Message, list[int]] | None] | None = None
        """`None` is the answer of a process that has ended."""
        self.task = group.create_task(self._live())

    async def ask(self, job: Message, parts: Sequence[bytes]) -> tuple[Message, bytes]:
        control = await asyncio.shield(self._control)
        self._answer = asyncio.get_running_loop().create_future()
        control.send({}, [await asyncio.to_thread(_store, json.dumps(job).encode() + b"\n", *parts)])
        answer = None if self.is_gone.is_set() else await self._answer
        if answer is None:
            raise Broken("the process that reads requests has ended")
        said, descriptors = answer
        return said, b"".join([await asyncio.to_thread(_load, descriptor) for descriptor in descriptors])

    async def _live(self) -> None:
        argv: tuple[Argument, ...] = (sys.executable, "-I", "-c", START, SharedSocket(SOCKET), *sys.path)
        try:
            async with proc.open_process(Command(argv=argv, cwd=Path("/")), sink=_ignore, grace=0.0) as process:
                control = ControlSocket(process.find_socket(SOCKET), self._receive, self._end)
                self._control.set_result(control)
                try:
                    await process.wait()
                finally:
                    control.close()
        except Broken as error:
            if not self._control.done():
                self._control.set_exception(error)
        finally:
            self._end()

    def _receive(self, message: Message, descriptors: list[int]) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((message, descriptors))
        else:
            for descriptor in descriptors:
                os.close(descriptor)

    def _end(self) -> None:
        self.is_gone.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)


def _ignore(_stream: proc.Stream, _data: bytes) -> None:
    return None


def _store(*parts: bytes) -> int:
    """Write bytes into memory that another process can be given."""
    descriptor = os.memfd_create("shoal-body", os.MFD_CLOEXEC)
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    return descriptor


def _load(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def main(descriptor: int) -> None:
    """Do jobs until the other end is closed."""
    recorders: dict[tuple[str, str], Recorder] = {}
    with socket.socket(fileno=descriptor) as end:
        while True:
            text, descriptors, _, _ = socket.recv_fds(end, LARGEST_BYTES, 1)
            if not text:
                return
            head, _, body = _load(descriptors[0]).partition(b"\n")
            said, content = _do(json.loads(head), body, recorders)
            made = [_store(content)] if content else []
            with contextlib.suppress(OSError):  # nobody is left to hear it, which ends the loop
                socket.send_fds(end, [json.dumps(said).encode()], made)
            for each in made:
                os.close(each)


def _do(job: Message, body: bytes, recorders: dict[tuple[str, str], Recorder]) -> tuple[Message, bytes]:
    if job["do"] == "record":
        try:
            _record(job, body, recorders)
        except Exception as error:
            return {"error": str(error)[:1000] or type(error).__name__}, b""
        return {}, b""
    found = PROVIDERS[job["format"]].check(Route(**job["route"]), body, job["grants"])
    if isinstance(found, str):
        return {"refused": found}, b""
    changed = b"" if found.body == body else found.body
    return {"model": found.model, "most_output": found.most_output, "surcharge": found.surcharge}, changed


def _record(job: Message, body: bytes, recorders: dict[tuple[str, str], Recorder]) -> None:
    recording = Recording(**job["recording"])
    place = (recording.folder, recording.key)
    if place not in recorders:
        recorder = open_recording(recording)
        assert isinstance(recorder, Recorder)  # noqa: S101 - replays are answered elsewhere
        recorders[place] = recorder
    request, rest = body[: job["request_bytes"]], body[job["request_bytes"] :]
    tape: ExchangeRecorder = recorders[place].begin(job["method"], job["target"], request, turn=job["turn"])
    start = 0
    for size in job["chunk_bytes"]:
        tape.feed(rest[start : start + size])
        start += size
    tape.end(job["status"], job["headers"], is_whole=job["is_whole"])


class RemoteRecorder:
    """Collects the exchanges of one session, and has the process record each when it has ended."""

    def __init__(self, recording: Recording, worker: BodyWorker) -> None:
        self._recording = recording
        self._worker = worker
        self._turn = 0

    def begin(self, method: str, target: str, body: bytes) -> "CollectedExchange":
        """Begin with a request."""
        self._turn += 1
        return CollectedExchange(self, {"turn": self._turn, "method": method, "target": target}, body)

    async def record(self, exchange: Mapping[str, Any], parts: Sequence[bytes]) -> None:
        """Record an exchange that has ended, also for a client that has gone."""
        await self._worker.record(self._recording, exchange, parts)


class CollectedExchange:
    """A request, and its answer as it streams by."""

    def __init__(self, recorder: RemoteRecorder, about: Mapping[str, Any], request: bytes) -> None:
        self._recorder = recorder
        self._about = about
        self._request = request
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk."""
        self._chunks.append(chunk)

    async def end(self, status: int, headers: Mapping[str, str], *, is_whole: bool) -> None:
        """Record it."""
        known = {"status": status, "headers": dict(headers), "is_whole": is_whole, "request_bytes": len(self._request)}
        sizes = {"chunk_bytes": [len(chunk) for chunk in self._chunks]}
        await self._recorder.record({**self._about, **known, **sizes}, [self._request, *self._chunks])
