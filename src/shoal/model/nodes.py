"""Nodes as a user names them: what carries bytes to them, where they are, and what they are labelled with."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from shoal.errors import BadInput, UnknownName

PIPE, SSH, RAY = "pipe", "ssh", "ray"
MAX_CAPACITY = 1000
Label = str | int | float | bool
HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.%a-z]+\])")
FORMS = "give a host like `me@build1:8`, `pipe:4`, `ray` or `ray://ADDRESS`"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """Where sessions can run: *place* is the host of `ssh` or the address of `ray`, which may have many nodes."""

    carrier: str
    place: str = ""
    capacity: int | None = None
    """How many sessions it takes at once; `None` leaves that to the node."""
    labels: Mapping[str, Label] = field(default_factory=dict)
    name: str = ""
    """Its name among the nodes of a run, which is unique."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `host`, `user@host:8`, `pipe:4`, `ray` or `ray://address`; raise `BadInput` for anything else."""
        text = text.strip()
        if text == RAY or text.startswith(f"{RAY}://"):
            return cls(carrier=RAY, place=text.removeprefix(RAY).removeprefix("://"), name=RAY)
        place, found, count = text.rpartition(":")
        if not found or not count.isdecimal():
            place, count = text, ""
        capacity = int(count) if count else None
        if capacity is not None and not 1 <= capacity <= MAX_CAPACITY:
            raise BadInput(f"{text!r:.80}: a node takes 1 to {MAX_CAPACITY} sessions at once")
        if place == PIPE:
            return cls(carrier=PIPE, capacity=capacity, name=PIPE)
        if not HOST.fullmatch(place):
            raise BadInput(f"{text!r:.80} names no node; {FORMS}")
        return cls(carrier=SSH, place=place, capacity=capacity, name=place)


def parse_nodes(text: str) -> tuple[NodeAddress, ...]:
    """Read a list of nodes separated by commas, as `--on` takes it."""
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise BadInput(f"no node is named; {FORMS}")
    return name_nodes(NodeAddress.parse(part) for part in parts)


NodeLike = str | Mapping[str, object]
NODE_KEYS = ("host", "capacity", "labels")
PLACEMENTS = ("spread", "pack")
LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")


def read_nodes(given: str | Sequence[NodeLike]) -> tuple[NodeAddress, ...]:
    """Read nodes as users write them: a text like that of `--on`, or a list of texts and mappings with labels."""
    if isinstance(given, str):
        return parse_nodes(given)
    return name_nodes(_read_node(node) for node in given)


def _read_node(given: NodeLike) -> NodeAddress:
    if isinstance(given, str):
        return NodeAddress.parse(given)
    if unknown := next((key for key in given if key not in NODE_KEYS), None):
        raise UnknownName("key of a node", str(unknown), NODE_KEYS)
    address = NodeAddress.parse(str(given.get("host", "")))
    capacity = given.get("capacity", address.capacity)
    if capacity is not None and (not isinstance(capacity, int) or not 1 <= capacity <= MAX_CAPACITY):
        raise BadInput(f"`capacity` of a node must be a number from 1 to {MAX_CAPACITY}, not {capacity!r:.40}")
    return replace(address, capacity=capacity, labels=read_labels(given.get("labels", {})))


def read_labels(given: object) -> dict[str, Label]:
    """Read labels: names with `true`, a number or a text; raise `BadInput` for anything else."""
    if not isinstance(given, Mapping):
        raise BadInput(f"labels are a mapping like {{gpu: true}}, not {given!r:.40}")
    for name, value in given.items():
        if not isinstance(name, str) or not LABEL.fullmatch(name) or not isinstance(value, str | int | float | bool):
            raise BadInput(f"{name!r:.40}: {value!r:.40} is no label; write names with `true`, a number or a text")
    return dict(given)


def name_nodes(addresses: Iterable[NodeAddress]) -> tuple[NodeAddress, ...]:
    """Give each a name of its own: those that share one are numbered, such as `pipe-1` and `pipe-2`."""
    given = tuple(addresses)
    names = [address.name for address in given]
    counts: dict[str, int] = {}
    found = []
    for address in given:
        counts[address.name] = number = counts.get(address.name, 0) + 1
        is_shared = names.count(address.name) > 1
        found.append(replace(address, name=f"{address.name}-{number}") if is_shared else address)
    return tuple(found)


class NodeState(StrEnum):
    """Whether a node takes part in a run."""

    JOINED = "joined"
    LOST = "lost"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """What a node has free now."""

    running: int = 0
    """How many sessions it runs, of all who use it."""
    cpu: float = 0.0
    """Its load average over a minute, for each processor."""
    memory_free_mb: int = 0
    disk_free_mb: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """What a node can do, as it says itself."""

    version: str
    host: str = ""
    system: str = ""
    processors: int = 1
    memory_mb: int = 0
    capacity: int = 1
    """How many sessions it would run at once, unless the user says otherwise."""
    sandboxes: tuple[str, ...] = ()
    """The kinds of sandbox that work there."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why the other kinds do not."""
    limits: str = ""
    """What enforces limits there."""
    clients: tuple[str, ...] = ()
    """The agent clients on its PATH."""
    load: NodeLoad = field(default_factory=NodeLoad)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged:
    """A node joined the run, was lost, or cannot take part in it."""

    run: str
    node: str
    state: NodeState
    why: str = ""
    host: str = ""
    capacity: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFetched:
    """The work of a session that was lost with its node, or with its coordinator, is on a ref of ours."""

    run: str
    node: str
    session: str
    ref: str
    commit: str


NodeEvent = NodeChanged | WorkFetched
