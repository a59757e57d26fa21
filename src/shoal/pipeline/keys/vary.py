"""The shape of `vary:`: a list of differences, one for each worker in turn, or a mapping of lists."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from shoal.model.agent import EVERY, WITH_TEMPERATURE, AgentSpec
from shoal.model.plan import Variation
from shoal.pipeline.fields import OURS, UNKNOWN_KEY, Shape, wrong
from shoal.pipeline.problems import Position, Problem, key, show_value
from shoal.pipeline.tree import Fields, Items, Node, Scalar, find, value_of
from shoal.pipeline.value_types import name_lines

EXAMPLE = "[{temperature: 0.2}, {temperature: 0.9}]"
MOST = 1000


def _not_blank(text: str) -> str:
    if not text.strip():
        raise wrong("the text is empty; write some, or remove the key")
    return text


def _literal(value: object) -> object:
    if isinstance(value, bool):
        return show_value(value)
    return str(value) if isinstance(value, int | float) else value


def _check_names(env: dict[str, str]) -> dict[str, str]:
    if wrongs := [*name_lines(env)]:
        raise ValidationError.from_exception_data("env", wrongs)
    return env


class VariationShape(Shape):
    """What differs for one worker."""

    agent: Annotated[str, AfterValidator(_not_blank)] | None = None
    """The agent that does the work instead of the step's."""
    model: Annotated[str, AfterValidator(_not_blank)] | None = None
    """Its model."""
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    """How freely its model speaks."""
    prompt: Annotated[str, AfterValidator(_not_blank)] | None = None
    """A line that is added to its prompt."""
    env: Annotated[
        dict[str, Annotated[str, BeforeValidator(_literal, json_schema_input_type=str | float | bool)]],
        AfterValidator(_check_names),
    ] = Field(default_factory=dict)
    """Variables of its own, as literals."""

    @property
    def given(self) -> Variation:
        """Build the value."""
        return Variation(
            agent=self.agent, model=self.model, temperature=self.temperature, prompt=self.prompt, env=self.env
        )


def _vary(value: object) -> tuple[Variation, ...]:
    columns = value if isinstance(value, dict) else None
    entries = value if columns is None else _transpose(columns)
    if not isinstance(entries, list) or not 1 <= len(entries) <= MOST:
        raise wrong(f"`vary` must be a list of differences, like {EXAMPLE}, not {show_value(value or None)}")
    made, lines = [], []
    for index, entry in enumerate(entries):
        try:
            made.append(VariationShape.model_validate(entry).given)
        except ValidationError as error:
            lines += [_line(details, index, columns) for details in error.errors()]
    if lines:
        raise ValidationError.from_exception_data("vary", lines)
    return tuple(made)


def _transpose(columns: Mapping[str, object]) -> list[dict[str, object]]:
    """Transpose columns into rows; a value that is not a list is the same in all rows."""
    lengths = {name: len(values) for name, values in columns.items() if isinstance(values, list)}
    if not lengths or min(lengths.values()) == 0:
        raise wrong("`vary` as a mapping has lists in it, like {temperature: [0.2, 0.9]}; write at least one value")
    first, *rest = lengths
    for name in rest:
        if lengths[name] != lengths[first]:
            what = f"{key(first)} has {lengths[first]} values and {key(name)} has {lengths[name]}"
            raise wrong(f"{what}; write as many of each")
    return [
        {name: column[index] if isinstance(column, list) else column for name, column in columns.items()}
        for index in range(lengths[first])
    ]


def _line(details: ErrorDetails, index: int, columns: Mapping[str, object] | None) -> InitErrorDetails:
    """Report a problem of a row at its own position: in a mapping of lists, the key comes before the number."""
    kind: str | PydanticCustomError = details["type"]
    if details["type"] == OURS:
        kind = wrong(details["msg"])
    if details["type"] == UNKNOWN_KEY:
        kind = wrong(details["msg"], UNKNOWN_KEY)
    loc = (index, *details["loc"])
    if columns is not None and details["loc"]:
        name, *rest = details["loc"]
        is_key = details["type"] == UNKNOWN_KEY and not rest
        loc = (name, *(() if is_key or not isinstance(columns[str(name)], list) else (index,)), *rest)
    return InitErrorDetails(type=kind, loc=loc, input=details["input"], ctx=details.get("ctx", {}))


_ROW = VariationShape.model_json_schema()
_ROW.pop("title", None)
Vary = Annotated[
    tuple[Variation, ...],
    PlainValidator(_vary),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": _ROW, "minItems": 1},
                {"type": "object", "propertyNames": {"enum": list(VariationShape.model_fields)}, "minProperties": 1},
            ]
        }
    ),
]


def vary_problems(step: Node, at: Callable[[Position, str], Problem]) -> Iterator[Problem]:
    """Find differences that no worker would have."""
    vary = value_of(step, "vary")
    if vary is None:
        return
    if value_of(step, "strategy"):
        yield at(vary.at, "`vary` goes with `concurrency`, and a matrix has values of its own; use `{{ matrix.… }}`")
        return
    workers = find(step, "concurrency")
    count = workers.value if isinstance(workers, Scalar) and workers.value is not None else 1
    written = _count(vary)
    if isinstance(count, int) and written > count:
        what = f"`vary` has {written} entries for {count} worker{'s' if count != 1 else ''}"
        yield at(vary.at, f"{what}; raise `concurrency`, or take some out")


def temperature_problems(
    tree: Node, path: tuple[str | int, ...], vary: Sequence[Variation], spec: AgentSpec
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Find a temperature for a client without that setting: its workers would not differ."""
    for index, row in enumerate(vary):
        adapter = spec.adapter if row.task is None else row.task.agent.adapter
        if row.temperature is None or adapter not in EVERY or adapter in WITH_TEMPERATURE:
            continue
        is_mapping = find(tree, *path, "vary", "temperature") is not None
        what = f"Shoal has no way to give {adapter} a temperature, so its workers would not differ by it"
        known = f"vary `model` or `prompt`, or use an agent that takes one: python, {', '.join(WITH_TEMPERATURE)}"
        yield (*path, "vary", *(() if is_mapping else (index,)), "temperature"), f"{what}; {known}"
        return


def list_vary_agents(step: Node) -> list[Node]:
    """List what `vary` of *step* gives as agents."""
    match find(step, "vary"):
        case Items(items=rows):
            found = [find(row, "agent") for row in rows]
        case Fields() as columns:
            column = find(columns, "agent")
            found = list(column.items) if isinstance(column, Items) else [column]
        case _:
            found = []
    return [agent for agent in found if agent is not None]


def has_agent_for_each(step: Node) -> bool:
    """Return whether `vary` of *step* gives each worker an agent, so that the step needs none."""
    vary, agents = find(step, "vary"), list_vary_agents(step)
    if isinstance(vary, Fields) and len(agents) == 1 and not isinstance(find(vary, "agent"), Items):
        return True
    return vary is not None and 0 < len(agents) == _count(vary)


def _count(vary: Node) -> int:
    match vary:
        case Items():
            return len(vary.items)
        case Fields():
            columns = (entry.value for entry in vary.entries.values())
            return max((len(column.items) for column in columns if isinstance(column, Items)), default=0)
        case _:
            return 0
