"""Events to JSON and back, by their fields, so that older and newer logs can be read."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from shoal.model.events import Event

_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
Kind = TypeVar("Kind")
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_SINGLE = frozenset({str, int, float, bool, type(None)})
_MISFITS = (ValueError, TypeError, KeyError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event that this Shoal does not know or cannot parse."""

    kind: str
    body: str


def encode_value(value: object) -> object:
    """Turn dataclasses, enums, mappings and lists into what JSON has."""
    return _to_json(value)


def decode_value(kind: type[Kind], value: object) -> Kind:
    """Make a *kind* of JSON that anybody may have sent; raise `ValueError` for what does not fit."""
    try:
        return _check_kind(_make(kind, value), kind)
    except _MISFITS as error:
        raise ValueError(str(error)) from None


def encode(event: Event) -> str:
    """Encode the fields of *event* as ASCII JSON, which any string survives (NUL and lone surrogates are escaped)."""
    return _ENCODER.encode(_to_json(event))


def decode(kind: str, body: str) -> Event | UnknownEvent:
    """Decode an event; unknown fields are dropped, absent ones take their defaults, and nothing raises."""
    known = _KINDS.get(kind)
    if known is None:
        return UnknownEvent(kind, body)
    try:
        event = _make(known, _with_purpose(kind, json.loads(body)))
    except _MISFITS:
        return UnknownEvent(kind, body)
    return event if isinstance(event, Event) else UnknownEvent(kind, body)


def _with_purpose(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Add the purpose of a session that an older Shoal recorded only in the name of the step."""
    record = fields["result"] if kind == "SessionEnded" else fields
    if kind in ("SessionStarted", "SessionEnded") and "purpose" not in record and "__" in fields["step"]:
        record["purpose"] = "verify" if fields["step"].endswith("__verify") else "resolve"
    return fields


def _to_json(value: object) -> object:
    if type(value) in _SINGLE:
        return value
    kind: type = type(value)
    if fields := _fields(kind):
        items = [item if type(item) in _SINGLE else _to_json(item) for item in fields.read(value)]
        return dict(zip(fields.names, items, strict=True))
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_to_json(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class _FieldReader:
    names: tuple[str, ...]
    read: Callable[[object], tuple[object, ...]]


@functools.cache
def _fields(kind: type) -> _FieldReader | None:
    """Return the fields of a dataclass; other kinds have none."""
    if not dataclasses.is_dataclass(kind):
        return None
    names = tuple(field.name for field in dataclasses.fields(kind))
    return _FieldReader(names, attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),))


@functools.cache
def _hints(kind: type) -> dict[str, object]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _make(kind: type, value: object) -> object:
    fields = _check_kind(value, dict)
    return kind(**{name: _decode_as(hint, fields[name]) for name, hint in _hints(kind).items() if name in fields})


def _decode_as(hint: object, value: object) -> object:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _decode_union(get_args(hint), value)
    if origin is tuple:
        return tuple(_decode_as(get_args(hint)[0], item) for item in _check_kind(value, list))
    if origin is Mapping:
        return {key: _decode_as(get_args(hint)[1], item) for key, item in _check_kind(value, dict).items()}
    return _decode_single(_check_kind(hint, type), value)


def _decode_single(hint: type, value: object) -> object:
    if dataclasses.is_dataclass(hint):
        return _make(hint, value)
    if issubclass(hint, Enum):
        return hint(value)
    if hint is float and isinstance(value, int):
        return float(value)
    return _check_kind(value, hint)


def _decode_union(hints: tuple[object, ...], value: object) -> object:
    for hint in hints:
        try:
            return _decode_as(hint, value)
        except _MISFITS:
            continue
    raise TypeError(f"{value!r} is none of {hints}")


def _check_kind(value: object, kind: type[Kind]) -> Kind:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
