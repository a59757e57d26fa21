"""A Ray cluster: its nodes, each reached through one actor that passes bytes on. Imported by `ray.py` alone.

Ray places and connects; what is durable is in the ledger. An actor is never restarted, no task is tried again, and a
lost actor says nothing about what its node still does.
"""

import asyncio
import contextlib
import functools
import logging
import threading
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from shoal.errors import Unavailable
from shoal.executors.carriers import ray_relay
from shoal.executors.carriers.kind import BUFFER_BYTES, NODE_ARGUMENTS, NodeStream, NodeUnavailable
from shoal.model.nodes import NodeAddress

try:
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as missing:
    raise Unavailable("the carrier ray", "ray is not installed", "run: pip install 'shoal[ray]'") from missing

T = TypeVar("T")
START_SECONDS = 120.0
GRACE_SECONDS, END_SECONDS = 10.0, 1.0
PAUSE = 0.002
STORE_BYTES = 80 * 2**20  # the least that Ray takes: bytes only pass through
CONCURRENT_CALLS = 16  # of one actor: of these, one reads, one writes and one reads errors
SHARE_OF_CPU = 0.001
"""What an actor reserves, so that an autoscaler does not take its node for idle."""
RESOURCE = "shoal"
"""The custom resource that says how many sessions a node takes: `ray start --resources '{"shoal": 8}'`."""
PYTHON = ("-P", "-m", "shoal", *NODE_ARGUMENTS)


@dataclass(frozen=True, slots=True)
class RayCarrier:
    """Starts a node's process on each node of a cluster."""

    address: NodeAddress

    async def find_nodes(self) -> Sequence[NodeAddress]:
        """Return the nodes that live now and have processors for work."""
        found: list[dict[str, Any]] = await _call(ray.nodes)
        alive = [node for node in found if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        return tuple(self._address_of(node) for node in sorted(alive, key=lambda node: str(node["NodeID"])))

    def _address_of(self, node: Mapping[str, Any]) -> NodeAddress:
        identity, resources = str(node["NodeID"]), node["Resources"]
        labels = {name: value for name, value in node.get("Labels", {}).items() if not name.startswith("ray.io/")}
        if resources.get("GPU"):
            labels["gpu"] = True
        return NodeAddress(
            carrier="ray",
            place=identity,
            capacity=int(resources[RESOURCE]) if RESOURCE in resources else self.address.capacity,
            labels={**labels, **self.address.labels},
            name=f"{self.address.name}-{node.get('NodeName') or node['NodeManagerAddress']}-{identity[:6]}",
        )

    @contextlib.asynccontextmanager
    async def connect(self, node: NodeAddress) -> AsyncIterator[NodeStream]:
        """Start an actor on *node*, and in it `shoal node --stdio`."""
        relay = RelayActor(node.place)
        try:
            await relay.start(node)
            async with _open_stream(relay) as stream:
                yield stream
        finally:
            await relay.end()


class RelayActor:
    """The actor on a node: Ray places it where we say or not at all, and never starts it again."""

    def __init__(self, node: str) -> None:
        options = {
            "num_cpus": SHARE_OF_CPU,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": CONCURRENT_CALLS,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node, soft=False),
        }
        self._actor = ray.remote(ray_relay.NodeRelay).options(**options).remote()
        self._pending: set[asyncio.Future[Any]] = set()

    async def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - each method has its own
        """Call a method of the actor; raises `RayError` when the actor is lost."""
        future = asyncio.wrap_future(getattr(self._actor, method).remote(*arguments).future())
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        # a cancelled call would end the thread of Ray's client, and with it all others
        return await asyncio.shield(future)

    async def start(self, node: NodeAddress) -> None:
        """Start the node's process."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await self.call("start", PYTHON)
        except TimeoutError as error:
            why = f"Ray started no actor on it within {START_SECONDS:g} s"
            raise NodeUnavailable(node.name, why, "look at `ray status`") from error
        except RayError as error:
            raise NodeUnavailable(node.name, _first_line(error), "look at `ray status`") from error

    async def end(self) -> None:
        """End the process by the end of its input, and then the actor."""
        with contextlib.suppress(TimeoutError, RayError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self.call("close_input")
                await self.call("join")
        with contextlib.suppress(RayError):
            ray.kill(self._actor, no_restart=True)
        if self._pending:
            await asyncio.wait(self._pending, timeout=END_SECONDS)


@contextlib.asynccontextmanager
async def _open_stream(relay: RelayActor) -> AsyncIterator[NodeStream]:
    """Pass bytes on, both ways, while the stream is open."""
    reader, state = asyncio.StreamReader(limit=BUFFER_BYTES), _RelayState()
    writer = RelayWriter(relay)
    error: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        ending = group.create_task(_watch(relay, state))
        tasks = [ending, group.create_task(_pull(relay, reader, state, ending)), group.create_task(writer.push())]
        try:
            yield NodeStream(
                reader=reader, writer=writer, has_died=lambda: state.has_ended, complaint=lambda: state.complaint
            )
        except BaseException as raised:  # passed around the task group, which would wrap it
            error = raised
        finally:
            for task in tasks:
                task.cancel()
    if error is not None:
        raise error


@dataclass(slots=True)
class _RelayState:
    """What is known of the process behind an actor."""

    has_ended: bool = False
    complaint: str = ""


async def _watch(relay: RelayActor, state: _RelayState) -> None:
    """Wait for the end of the process."""
    with contextlib.suppress(RayError):  # the actor is lost: who knows what became of the process
        state.complaint = await relay.call("read_errors")
        state.has_ended = True


async def _pull(
    relay: RelayActor, reader: asyncio.StreamReader, state: _RelayState, ending: asyncio.Task[None]
) -> None:
    """Read what the process prints, until its end or the actor's."""
    try:
        while chunk := await relay.call("read", BUFFER_BYTES):
            reader.feed_data(chunk)
            while _count_buffered(reader) > BUFFER_BYTES:  # noqa: ASYNC110 - nobody is told that it was read
                await asyncio.sleep(PAUSE)
        await asyncio.wait((ending,), timeout=END_SECONDS)
    except RayError as error:
        state.complaint = _first_line(error)
    finally:
        reader.feed_eof()


class RelayWriter:
    """Sends what is written to the actor: in order, one message at a time."""

    def __init__(self, relay: RelayActor) -> None:
        self._relay = relay
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._has_more = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_broken = False

    def write(self, data: bytes, /) -> None:
        """Take *data*."""
        if data:
            self._waiting.append(data)
            self._count(len(data))

    async def drain(self) -> None:
        """Wait for room; raise `BrokenPipeError` once the process cannot read any more."""
        await self._has_room.wait()
        if self._is_broken:
            raise BrokenPipeError("the node reads no more")

    def close(self) -> None:
        """Send no more: the end of the connection closes the input of the process."""
        self._is_broken = True
        self._has_room.set()

    async def push(self) -> None:
        """Send what is waiting, until the process or the actor has ended."""
        try:
            while True:
                await self._has_more.wait()
                block = self._take()
                await self._relay.call("write", block)
                self._count(-len(block))
        except RayError:
            self.close()

    def _take(self) -> bytes:
        """Take as much as one message has, without copying large parts."""
        parts, size = [self._waiting.popleft()], 0
        while self._waiting and size + len(self._waiting[0]) + len(parts[0]) <= BUFFER_BYTES:
            parts.append(self._waiting.popleft())
            size += len(parts[-1])
        if not self._waiting:
            self._has_more.clear()
        return b"".join(parts)

    def _count(self, added: int) -> None:
        self._size += added
        if self._waiting:
            self._has_more.set()
        if self._size <= BUFFER_BYTES or self._is_broken:
            self._has_room.set()
        else:
            self._has_room.clear()


async def join_cluster(place: str) -> None:
    """Connect to the cluster at *place*; start one on this machine if it is empty."""
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    options |= {"address": place} if place else {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    logging.getLogger("ray").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "More than 10MB of messages", UserWarning)  # they are what a carrier is for
    ray.cloudpickle.register_pickle_by_value(ray_relay)
    try:
        async with asyncio.timeout(START_SECONDS):
            await _call(functools.partial(ray.init, **options))
    except (TimeoutError, ConnectionError, RuntimeError, ValueError, ImportError, RayError) as error:
        name = place or "on this machine"
        raise Unavailable(f"the Ray cluster {name}", _first_line(error), "look at `ray status`") from error


async def leave_cluster() -> None:
    """Disconnect, and end the cluster if it was started here."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            await _call(ray.shutdown)


def is_joined() -> bool:
    """Say whether the program that uses us has joined a cluster."""
    return bool(ray.is_initialized())


async def _call(function: Callable[[], T]) -> T:
    """Call a function of Ray that blocks, in Ray's thread."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(set_result: Callable[[Any], None], value: object) -> None:
        if not result.done():
            set_result(value)

    def call() -> None:
        try:
            value = function()
        except BaseException as error:
            loop.call_soon_threadsafe(settle, result.set_exception, error)
        else:
            loop.call_soon_threadsafe(settle, result.set_result, value)

    _find_calls().put(call)
    return await result


@functools.cache
def _find_calls() -> "SimpleQueue[Callable[[], None]]":
    """Start Ray's thread, and return the queue of its calls.

    It lives as long as the process: a cluster of ours dies with the thread that started it, and calls may hang.
    """
    calls: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run_calls() -> None:
        while True:
            with contextlib.suppress(RuntimeError):  # the loop that waited has ended
                calls.get()()

    threading.Thread(target=run_calls, daemon=True, name="ray").start()
    return calls


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _count_buffered(reader: asyncio.StreamReader) -> int:
    return len(reader._buffer)  # type: ignore[attr-defined]  # the only way to know; it has been there since 3.4
