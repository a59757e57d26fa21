"""The keys `runtime.nodes` and `needs_node`: where agents run, and what a node must have for them."""

from dataclasses import replace
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainValidator

from shoal.errors import BadInput
from shoal.model.nodes import MAX_CAPACITY, PLACEMENTS, Label, NodeAddress, name_nodes, read_labels
from shoal.pipeline.fields import Shape, one_of, wrong


def _host(value: object) -> NodeAddress:
    try:
        if isinstance(value, str):
            return NodeAddress.parse(value)
    except BadInput as error:
        raise wrong(str(error)) from None
    raise wrong(f"a node is named by a text like `me@build1:8`, not {value!r:.40}")


def _labels(value: object) -> dict[str, Label]:
    try:
        return read_labels(value)
    except BadInput as error:
        raise wrong(str(error)) from None


def _as_mapping(value: object) -> object:
    return {"host": value} if isinstance(value, str) else value


Labels = Annotated[
    dict[str, str | int | float | bool], PlainValidator(_labels, json_schema_input_type=dict[str, Label])
]
PlacementName = Annotated[str, one_of("placement", *PLACEMENTS)]


class NodeShape(Shape):
    """A machine that runs agents."""

    host: Annotated[NodeAddress, PlainValidator(_host, json_schema_input_type=str)]
    """Where it is: a host as `ssh` knows it, like `me@build1` or `build1:8`, or `pipe:4`, `ray`, `ray://ADDRESS`."""
    capacity: int | None = Field(default=None, ge=1, le=MAX_CAPACITY)
    """How many agents it runs at once; default: what the node says."""
    labels: Labels = Field(default_factory=dict)
    """What it has, for `needs_node`: names with `true`, a number or a text."""


NodeField = Annotated[NodeShape, BeforeValidator(_as_mapping, json_schema_input_type=str | NodeShape)]


def build_nodes(shapes: list[NodeShape]) -> tuple[NodeAddress, ...]:
    """Build the nodes of a run, each with a name of its own."""
    return name_nodes(
        replace(shape.host, capacity=shape.capacity or shape.host.capacity, labels=shape.labels) for shape in shapes
    )
