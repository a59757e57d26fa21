"""A tool made of a function: its schema is the function's signature, its description the docstring."""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from shoal.errors import UnknownName
from shoal.model.talk import TalkGrant
from shoal.talk.hub import Peer, TalkHub
from shoal.talk.kind import CallRefused

MAX_ANSWER_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls a tool, known from its sandbox, and the run that it calls in."""

    hub: TalkHub
    peer: Peer


Run = Callable[..., Awaitable[str]]
_TYPES: Mapping[object, Mapping[str, object]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    list[str]: {"type": "array", "items": {"type": "string"}},
}


@dataclass(frozen=True, slots=True)
class Tool:
    """What an agent can call, if *is_granted* says so."""

    run: Run
    is_granted: Callable[[TalkGrant], bool]
    is_read_only: bool = False
    parameters: Mapping[str, "ToolParameter"] = field(init=False)

    def __post_init__(self) -> None:
        """Read the signature."""
        object.__setattr__(self, "parameters", dict(_read_signature(self.run)))

    @property
    def name(self) -> str:
        """Its name."""
        return self.run.__name__

    def describe(self) -> dict[str, object]:
        """Describe it as `tools/list` does."""
        properties = {name: parameter.schema for name, parameter in self.parameters.items()}
        required = [name for name, parameter in self.parameters.items() if parameter.is_required]
        return {
            "name": self.name,
            "description": inspect.getdoc(self.run) or "",
            "inputSchema": {"type": "object", "properties": properties, "required": required},
            "annotations": {"readOnlyHint": self.is_read_only, "destructiveHint": False, "openWorldHint": False},
        }

    def read_arguments(self, given: object) -> dict[str, object]:
        """Check the arguments of a call; raises `CallRefused` for what does not fit."""
        if not isinstance(given, dict):
            raise CallRefused("the arguments of a tool are an object")
        for name in given:
            if name not in self.parameters:
                raise CallRefused(str(UnknownName(f"parameter of `{self.name}`", str(name)[:60], self.parameters)))
        for name, parameter in self.parameters.items():
            if parameter.is_required and given.get(name) is None:
                raise CallRefused(f"`{self.name}` needs `{name}`")
        said = {name: value for name, value in given.items() if value is not None}
        return {name: self.parameters[name].read(self.name, name, value) for name, value in said.items()}


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """A parameter of a tool."""

    type: object
    about: str
    is_required: bool

    @property
    def schema(self) -> dict[str, object]:
        """Its JSON schema."""
        return {**_TYPES[self.type], "description": self.about}

    def read(self, tool: str, name: str, value: object) -> object:
        """Read *value*; a command line gives every value as a text."""
        read = _from_text(self.type, value) if isinstance(value, str) and self.type is not str else value
        is_number = self.type is float and isinstance(read, int) and not isinstance(read, bool)
        if self.type == list[str]:
            if isinstance(read, list) and all(isinstance(item, str) for item in read):
                return read
        elif is_number or type(read) is self.type:
            return read
        raise CallRefused(f"`{name}` of `{tool}` must be {_say(self.type)}, not {value!r:.60}")


def _from_text(kind: object, text: str) -> object:
    if kind == list[str] and not text.lstrip().startswith("["):
        return [text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _say(kind: object) -> str:
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    return names[kind] if isinstance(kind, type) and kind in names else "a list of texts"


def _read_signature(run: Run) -> "list[tuple[str, ToolParameter]]":
    hints: dict[str, Any] = get_type_hints(run, include_extras=True)
    found = []
    for name, parameter in list(inspect.signature(run).parameters.items())[1:]:
        hint = hints[name]
        kind, about = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, "")
        found.append((name, ToolParameter(kind, about, parameter.default is inspect.Parameter.empty)))
    return found


def page(text: str, offset: int = 0) -> str:
    """Return the part of *text* from *offset* on that fits into an answer, and say how to get the rest."""
    part = text[offset : offset + MAX_ANSWER_CHARS]
    left = len(text) - offset - len(part)
    return part if left <= 0 else f"{part}\n\n[{left} more characters: call again with offset={offset + len(part)}]"
