"""Take what a node sends of an ended session: nothing of it is believed that can be checked here."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from shoal.executors.wire.channel import Channel
from shoal.executors.wire.frames import ProtocolError
from shoal.executors.wire.messages import SessionDone
from shoal.git.imports import MAX_PACK_BYTES
from shoal.git.packs import hold_pack_file
from shoal.model.artifact import ProducedArtifact
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from shoal.sessions.artifacts import keep_bytes
from shoal.sessions.context import RunContext
from shoal.sessions.keep_work import NOTHING, KeptWork, add_continued, import_seal
from shoal.sessions.seal import Seal
from shoal.sessions.worker import WorkerSpec
from shoal.store.codec import decode_value

MAX_RESULT_BYTES = 16 * 2**20
MAX_ARTIFACTS_BYTES = 160 * 2**20
MAX_EXTRAS = 100
MAX_TEXT, MAX_NAME, MAX_NAMES = 2**17, 300, 50
DATABASE = "database"
ENDS = (Status.SUCCEEDED, Status.NO_CHANGES, Status.FAILED, Status.TIMED_OUT, Status.OVER_LIMIT, Status.CANCELLED)


class SizedReader:
    """Reads parts of known sizes from a channel, one after the other."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._rest = b""

    async def read(self, size: int) -> bytes:
        """Read exactly *size* bytes."""
        parts = []
        while size:
            content = await self.read_some(size)
            parts.append(content)
            size -= len(content)
        return b"".join(parts)

    async def read_some(self, most: int) -> bytes:
        """Read some bytes, at most *most*; raise `ProtocolError` at the end."""
        self._rest = self._rest or await self._channel.read()
        if not self._rest:
            raise ProtocolError("the node sent less than it said")
        content, self._rest = self._rest[:most], self._rest[most:]
        return content


async def take_work(
    context: RunContext, worker: WorkerSpec, done: SessionDone, channel: Channel, node: str
) -> WorkerResult:
    """Receive a result, import its work in the same strict way as that of a local session, and store its artifacts."""
    _assert_sizes(done)
    reader = SizedReader(channel)
    claimed = _read_claim(await reader.read(done.result_bytes))
    with hold_pack_file(context.paths.root) as pack:
        with pack.open("xb") as file:
            left = done.pack_bytes
            while left:
                content = await reader.read_some(left)
                file.write(content)
                left -= len(content)
        work = await _import(context, worker, done, claimed, pack)
    result = work.on(_make_result(worker, claimed, node), Path())
    artifacts = await _take_artifacts(context, worker, done.artifacts, reader)
    notes = result.notes
    if claimed.raw is not None:
        notes = (*notes, f"its raw files are on the node {node}, in {_text(claimed.raw, MAX_NAME)}")
    result = replace(result, artifacts=artifacts, raw=None, notes=notes)
    if work.failure is not None:
        return replace(result, status=Status.FAILED, error=work.failure)
    if result.status is Status.SUCCEEDED and result.commit is None:
        return replace(result, status=Status.NO_CHANGES)
    return result


def _assert_sizes(done: SessionDone) -> None:
    sizes = (done.result_bytes, done.pack_bytes, *done.artifacts.values())
    if any(size < 0 for size in sizes) or done.result_bytes > MAX_RESULT_BYTES or done.pack_bytes > MAX_PACK_BYTES:
        raise ProtocolError("the node says that a result or its work is larger than it may be")
    if sum(done.artifacts.values()) > MAX_ARTIFACTS_BYTES or len(done.extras) > MAX_EXTRAS:
        raise ProtocolError("the node says that a session left more than it may leave")


def _read_claim(body: bytes) -> WorkerResult:
    try:
        return decode_value(WorkerResult, json.loads(body))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the result of a session cannot be read: {error}"[:MAX_NAME]) from None


def _make_result(worker: WorkerSpec, claimed: WorkerResult, node: str) -> WorkerResult:
    """Take what only the node can know, bounded; names, refs and paths are ours."""
    return WorkerResult(
        index=worker.index,
        session=worker.session,
        status=claimed.status if claimed.status in ENDS else Status.FAILED,
        purpose=worker.purpose,
        exit_code=claimed.exit_code if claimed.exit_code in range(256) else None,
        output=claimed.output[-MAX_TEXT:],
        attempts=worker.attempt,
        usage=_numbers(claimed.usage),
        resources=_numbers(claimed.resources),
        client_session=None if claimed.client_session is None else _text(claimed.client_session, MAX_NAME),
        limit=None if claimed.limit is None else _text(claimed.limit, MAX_NAME),
        error=None if claimed.error is None else _text(claimed.error, MAX_TEXT),
        notes=_names(claimed.notes),
        stopped_by=None if claimed.stopped_by is None else _text(claimed.stopped_by, MAX_NAME),
        checks=tuple(
            replace(check, type=_text(check.type, MAX_NAME), message=_text(check.message, MAX_TEXT))
            for check in claimed.checks[:MAX_NAMES]
        ),
        node=node,
    )


async def _import(
    context: RunContext, worker: WorkerSpec, done: SessionDone, claimed: WorkerResult, pack: Path
) -> KeptWork:
    base = context.base.commit
    tip = done.tip or (base if done.extras else None)
    seal = Seal(
        tip=tip,
        extras=done.extras,
        pack=pack,
        unkept=_names(claimed.unkept),
        unconverted=_names(claimed.unconverted),
        ignored=max(0, claimed.ignored),
    )
    if tip is None or (tip == base and not done.extras):
        named = KeptWork(unkept=seal.unkept, unconverted=seal.unconverted, ignored=seal.ignored)
        work = named if named != KeptWork() else NOTHING
    else:
        work = await import_seal(context, seal, f"refs/heads/{worker.branch}", None)
    return await add_continued(context, worker, work)


async def _take_artifacts(
    context: RunContext, worker: WorkerSpec, sizes: Mapping[str, int], reader: SizedReader
) -> dict[str, str]:
    """Store the artifacts that the worker was to leave, under names of ours; others are not looked at."""
    expected = {DATABASE: f"{DATABASE}.db"} if context.keeps_database else {}
    for artifact in worker.artifacts:
        produced = ProducedArtifact(name=artifact.name, type=artifact.type, path=artifact.path, content=b"")
        expected[produced.label] = produced.file
    stored: dict[str, str] = {}
    for label, size in sizes.items():
        content = await reader.read(size)
        if label in expected:
            kept = keep_bytes(context, worker.session, {expected[label]: content})
            stored[label] = kept[expected[label]]
    return stored


def _numbers(given: Mapping[str, float]) -> dict[str, float]:
    """Take finite numbers that are not negative, under short names."""
    found = {_text(name, MAX_NAME): float(value) for name, value in list(given.items())[:MAX_NAMES]}
    return {name: value for name, value in found.items() if math.isfinite(value) and value >= 0}


def _names(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_text(name, MAX_NAME) for name in given[:MAX_NAMES])


def _text(given: str, most: int) -> str:
    return given[:most]
