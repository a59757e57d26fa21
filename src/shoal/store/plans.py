"""Plans as JSON, so that a run can be resumed after its file was changed or deleted.

Every value has the name of its class, so reading needs no schema, and a field that is added later takes its
default. Secrets are recorded by the names of the host's variables, never by their values.
"""

import base64
import dataclasses
import functools
import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from shoal import model
from shoal.errors import BadInput
from shoal.model.agent import AgentSpec
from shoal.model.plan import Plan
from shoal.model.resolved_task import ResolvedTask

CLASS = "@"
"""The key for the class of a value; no field and no variable has that name."""
RENAMED = {"Passes": "CommandContract", "Mind": "ModelSettings"}
"""New names of classes by those that older plans have."""
_PLAIN = (str, int, float, bool)
Kind = TypeVar("Kind")


class Unrecordable(Exception):
    """A plan contains something that only its own program can make, such as a function."""


def encode_plan(plan: Plan, mask: Callable[[str], str] = str) -> str:
    """Encode *plan* as JSON; raise `Unrecordable` if another process could not decode it.

    *mask* finds secrets that were typed into a text: a plan with such a text cannot be recorded either.
    """
    text = json.dumps(_encode(plan), separators=(",", ":"))
    if mask(text) != text:
        raise Unrecordable("a text of the plan contains the value of a secret")
    return text


def encode_model(value: object) -> str:
    """Encode any value of the model as JSON, without the values of secrets; raise `Unrecordable` for others."""
    return json.dumps(_encode(value), separators=(",", ":"))


def decode_model(text: str, kind: type[Kind], secrets: Mapping[str, str]) -> Kind:
    """Decode a value of the model, with *secrets* by the names of their sources; raise `ValueError` for any other."""
    try:
        made = _PlanReader(secrets).read(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError, BadInput) as error:
        raise ValueError(f"it is not what this version of Shoal can read: {error}") from None
    if not isinstance(made, kind):
        raise ValueError(f"it is no {kind.__name__}")  # noqa: TRY004 - anybody may have sent it
    return made


def decode_plan(text: str, environ: Mapping[str, str]) -> Plan:
    """Decode a plan, with the secrets of *environ*; raise `BadInput` for missing ones."""
    try:
        plan = _PlanReader(environ).read(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadInput(f"the plan of this run cannot be read ({error}); it may be from a newer Shoal") from None
    if not isinstance(plan, Plan):
        raise BadInput("the plan of this run cannot be read; it may be from a newer Shoal")
    return plan


def _encode(value: object) -> object:
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, Enum):
        return {CLASS: type(value).__name__, "value": value.value}
    if dataclasses.is_dataclass(value) and type(value).__name__ in _classes():
        return _encode_fields(value)
    if isinstance(value, Mapping):
        return {CLASS: "Mapping", "items": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, list):
        return {CLASS: "list", "items": [_encode(item) for item in value]}
    if isinstance(value, frozenset | set):
        return {CLASS: "frozenset", "items": [_encode(item) for item in sorted(value)]}
    if isinstance(value, bytes):
        return {CLASS: "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {CLASS: "Decimal", "text": str(value)}
    if isinstance(value, Path):
        return {CLASS: "Path", "path": str(value)}
    raise Unrecordable(f"{type(value).__name__} objects exist only in the program that made them")


def _encode_fields(value: Any) -> dict[str, object]:  # noqa: ANN401 - any dataclass of the model
    if isinstance(value, ResolvedTask | AgentSpec) and value.secrets:
        env = {name: "" if name in value.secrets else text for name, text in value.env.items()}
        value = dataclasses.replace(value, env=env)
    given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    kind: type = type(value)
    defaults = _defaults(kind)
    written = {name: _encode(item) for name, item in given.items() if name not in defaults or defaults[name]() != item}
    return {CLASS: type(value).__name__, **written}


class _PlanReader:
    """Decodes values; *environ* has the secrets."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def read(self, value: object) -> object:
        match value:
            case list():
                return tuple(self.read(item) for item in value)
            case dict():
                return self._read_class(value[CLASS], value)
            case _:
                return value

    def _read_class(self, name: str, value: Mapping[str, Any]) -> object:
        match name:
            case "Mapping":
                return {self.read(key): self.read(item) for key, item in value["items"]}
            case "list":
                return [self.read(item) for item in value["items"]]
            case "frozenset":
                return frozenset(self.read(item) for item in value["items"])
            case "bytes":
                return base64.b64decode(value["base64"])
            case "Decimal":
                return Decimal(value["text"])
            case "Path":
                return Path(value["path"])
        kind: Any = _classes()[RENAMED.get(name, name)]
        if issubclass(kind, Enum):
            return kind(value["value"])
        known = {field.name for field in dataclasses.fields(kind)}
        made = kind(**{key: self.read(item) for key, item in value.items() if key in known})
        return self._with_secrets(made) if isinstance(made, ResolvedTask | AgentSpec) else made

    def _with_secrets(self, made: Any) -> object:  # noqa: ANN401 - a task or an agent, which both have these fields
        if not made.secrets:
            return made
        sources = {name: made.secret_sources.get(name, name) for name in made.secrets}
        if missing := sorted({source for source in sources.values() if source not in self._environ}):
            raise BadInput(f"the run used {', '.join(missing)} of your environment; set them and resume again")
        values = {name: self._environ[source] for name, source in sources.items()}
        return dataclasses.replace(made, env={**made.env, **values})


@functools.cache
def _classes() -> dict[str, type]:
    """Return the classes of the model by name: a plan contains nothing else."""
    modules = [
        importlib.import_module(found.name) for found in pkgutil.iter_modules(model.__path__, f"{model.__name__}.")
    ]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return {kind.__name__: kind for kind in kinds if dataclasses.is_dataclass(kind) or issubclass(kind, Enum)}


@functools.cache
def _defaults(kind: Any) -> dict[str, Callable[[], object]]:  # noqa: ANN401 - any dataclass of the model
    made: dict[str, Callable[[], object]] = {}
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            made[field.name] = functools.partial(_same, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            made[field.name] = field.default_factory
    return made


def _same(value: object) -> object:
    return value
