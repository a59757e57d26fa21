"""The key `gate`: a step that asks a person, and the keys that it excludes."""

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from shoal.model.gate import Gate, GateVerdict
from shoal.pipeline.fields import Duration, Shape, one_of, wrong
from shoal.pipeline.problems import Problem, key, show_value
from shoal.pipeline.tree import NEEDS, Fields, Scalar, find

EXAMPLE = '`gate: "Ship it?"`'
MOST_CHARS = 4000
OWN_KEYS = frozenset({"name", "id", *NEEDS, "on_conflict", "if", "optional", "gate", "loop"})
"""What goes with a gate; all else is about agents and their work."""


def _question(message: str) -> str:
    if not message.strip():
        raise wrong(f"the gate has no message; write what a person must answer, like {EXAMPLE}")
    if len(message) > MOST_CHARS:
        raise wrong(f"a gate's message may have at most {MOST_CHARS} characters, not {len(message)}; shorten it")
    return message


class GateShape(Shape):
    """A question that a person must answer before the run continues."""

    type: Annotated[str, one_of("type", "approval")] = "approval"
    """The kind of gate."""
    message: Annotated[str, AfterValidator(_question)]
    """The question; answer it with `shoal approve`."""
    timeout: Duration | None = None
    """How long to wait for an answer; default: forever."""
    on_timeout: Annotated[str, one_of("on_timeout", *(verdict.value for verdict in GateVerdict))] | None = None
    """The answer after that time: `reject` or `approve`."""

    @model_validator(mode="after")
    def _has_time(self) -> Self:
        if self.on_timeout is not None and self.timeout is None:
            raise wrong("`on_timeout` says what happens after a `timeout`; give it one, like `timeout: 1h`")
        return self

    @property
    def given(self) -> Gate:
        """Build the gate; its message may contain templates."""
        return Gate(
            message=self.message,
            timeout=self.timeout,
            on_timeout=GateVerdict(self.on_timeout or GateVerdict.REJECT),
        )


def _expand_text(value: object) -> object:
    """Take a text alone for the message."""
    if isinstance(value, str):
        return {"message": value}
    if not isinstance(value, dict | GateShape):
        raise wrong(f"`gate` must be a text or a mapping, like {EXAMPLE}, not {show_value(value)}")
    return value


GateField = Annotated[GateShape, BeforeValidator(_expand_text, json_schema_input_type=str | GateShape)]


def gate_problems(step: Fields, name: str) -> Iterator[Problem]:
    """Find what the document *name* says of a *step* with a gate that only makes sense for one with an agent."""
    gate = find(step, "gate")
    if gate is None or (isinstance(gate, Scalar) and gate.value is None):
        return
    for label, entry in step.entries.items():
        if label == "timeout":
            yield Problem(name, entry.at, "`timeout` belongs inside `gate`; move it there")
        elif label not in OWN_KEYS:
            yield Problem(name, entry.at, f"{key(label)} does not go with `gate`, which has no agent; remove it")
