"""What a template can do with data: format, test and filter it.

Data is mappings, lists, texts, numbers, booleans and null; anything else is refused.
"""

import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from shoal.errors import BadInput
from shoal.pipeline.problems import Position, show_value

MAX_OUTPUT = 1024 * 1024
MAX_BITS = 256  # of a number that is reckoned: squares of squares would fill the memory
FALSE_WORDS = frozenset({"", "false", "0", "no"})


class BadTemplate(BadInput):
    """An invalid template, or one that does not fit its data; *at* is the position in it, if known."""

    def __init__(self, sentence: str, at: Position | None = None) -> None:
        super().__init__(sentence)
        self.at = at


def text_of(value: object) -> str:
    """Format data as text: a text as it is, null as empty, mappings and lists as JSON."""
    if isinstance(value, str):
        return str(value)
    if value is None:
        return ""
    return as_json(value)


def as_json(value: object, indent: int | None = None) -> str:
    """Write data as JSON, as people read it."""
    if weight(value, MAX_OUTPUT) > MAX_OUTPUT or (indent or 0) > 16:
        raise BadTemplate(f"the data is larger than {MAX_OUTPUT // 1024} KiB; use a part of it")
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=_plain)
    except (TypeError, ValueError, RecursionError):
        raise BadTemplate(f"{kind(value)} cannot be written as JSON; put in text, numbers or lists") from None


def is_so(value: object) -> bool:
    """Return whether data counts as true: the texts `false`, `no` and `0` are false, too."""
    if isinstance(value, str):
        return value.strip().lower() not in FALSE_WORDS
    return bool(value)


def weight(value: object, most: int, *, letters: int = 1) -> int:
    """Count the parts of data, and its *letters* in groups; stops a little above *most*.

    So a cycle in it cannot loop forever.
    """
    total, waiting = 0, [value]
    while waiting and total <= most:
        item = waiting.pop()
        total += 1 + (len(item) // letters if isinstance(item, str) else 0)
        if isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            waiting += item
    return total


def kind(value: object) -> str:
    """Return the kind of a value, for a message."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case str():
            return "a text"
        case int() | float():
            return "a number"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return "what is no data"


def check_number(value: int | float) -> int | float:
    """Refuse an excessively large number."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise BadTemplate("the number is too large; reckon with smaller ones")
    return value


def join_texts(parts: Iterable[str], between: str = "") -> str:
    """Join texts, refusing before memory runs out."""
    listed = list(parts)
    if sum(map(len, listed)) + len(between) * len(listed) > MAX_OUTPUT:
        raise BadTemplate(f"the text grows beyond {MAX_OUTPUT // 1024} KiB; put in less")
    return between.join(listed)


def replace_text(text: str, old: str, new: str) -> str:
    """Replace each *old*, refusing before memory runs out."""
    if not old:
        raise BadTemplate("the text to replace is empty; give the text to replace")
    return join_texts(text.split(old), new)


def list_items(value: object) -> list[object]:
    """Return the items of a list, or the keys of a mapping."""
    if isinstance(value, list | tuple | range | Mapping):
        return list(value)
    hint = "; use `.splitlines()` for its lines" if isinstance(value, str) else ""
    raise BadTemplate(f"{kind(value)} has no items to go through{hint}")


def at_path(value: object, path: str) -> object:
    """Follow a dotted path into data."""
    for part in path.split("."):
        match value:
            case Mapping() if part in value:
                value = value[part]
            case list() | tuple() if part.isdecimal() and len(part) < 9 and int(part) < len(value):
                value = value[int(part)]
            case _:
                raise BadTemplate(f"{kind(value)} has no {show_value(part)}; check `attribute`")
    return value


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | Mapping | list | tuple) else len(list_items(value))


def _join(value: object, between: str = "", attribute: str | None = None) -> str:
    return join_texts((text_of(item) for item in _map(value, attribute)), between)


def _map(value: object, attribute: str | None = None) -> list[object]:
    items = list_items(value)
    return items if attribute is None else [at_path(item, attribute) for item in items]


def _end(value: object, index: int) -> object:
    items = list(value) if isinstance(value, str) else list_items(value)
    if not items:
        raise BadTemplate("an empty list has no first or last item; test it with `if`, or use `default`")
    return items[index]


def _sort(value: object, reverse: bool = False, attribute: str | None = None) -> list[object]:
    def place(item: object) -> tuple[bool, float, str]:
        found = item if attribute is None else at_path(item, attribute)
        return (False, found, "") if isinstance(found, int | float) else (True, 0, text_of(found))

    return sorted(list_items(value), key=place, reverse=reverse)


def _unique(value: object) -> list[object]:
    return list({as_json(item): item for item in reversed(list_items(value))}.values())[::-1]


def _number(value: object, default: float, make: Callable[[float | str], float]) -> float:
    try:
        number = make(value) if isinstance(value, str | int | float) else default
        return number if math.isfinite(number) else default
    except (ValueError, OverflowError):
        return default


def _indent(value: object, width: int = 4, first: bool = False) -> str:
    lines = text_of(value).split("\n")
    if not 0 <= width <= 100:
        raise BadTemplate("an indent is from 0 to 100; choose one")
    return join_texts((" " * width + line if line and (first or row) else line for row, line in enumerate(lines)), "\n")


def _truncate(value: object, length: int = 255, end: str = "…") -> str:
    whole = text_of(value)
    return whole if len(whole) <= length else whole[: max(length - len(end), 0)] + end


def _whole(value: object, default: int = 0) -> float:
    return _number(
        value, default, lambda given: int(given) if not isinstance(given, str) else int(given[:1000].strip())
    )


def _round(value: object, precision: int = 0) -> float:
    return _number(value, 0.0, lambda given: round(float(given), max(min(precision, 20), 0)))


FILTERS: Mapping[str, Callable[..., object]] = {
    "abs": lambda value: abs(_number(value, 0, lambda given: given if not isinstance(given, str) else float(given))),
    "capitalize": lambda value: text_of(value).capitalize(),
    "count": _length,
    "first": lambda value: _end(value, 0),
    "float": lambda value, default=0.0: _number(value, default, float),
    "indent": _indent,
    "int": _whole,
    "items": lambda value: pairs(value),
    "join": _join,
    "last": lambda value: _end(value, -1),
    "length": _length,
    "list": list_items,
    "lower": lambda value: text_of(value).lower(),
    "map": _map,
    "quote": lambda value: shlex.quote(text_of(value)),
    "replace": lambda value, old, new: replace_text(text_of(value), str(old), str(new)),
    "reverse": lambda value: value[::-1] if isinstance(value, str) else list_items(value)[::-1],
    "round": _round,
    "sort": _sort,
    "string": text_of,
    "title": lambda value: text_of(value).title(),
    "tojson": as_json,
    "trim": lambda value: text_of(value).strip(),
    "truncate": _truncate,
    "unique": _unique,
    "upper": lambda value: text_of(value).upper(),
}

TESTS: Mapping[str, Callable[[object], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "even": lambda value: isinstance(value, int) and value % 2 == 0,
    "false": lambda value: value is False,
    "mapping": lambda value: isinstance(value, Mapping),
    "none": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "odd": lambda value: isinstance(value, int) and value % 2 == 1,
    "sequence": lambda value: isinstance(value, list | tuple),
    "string": lambda value: isinstance(value, str),
    "true": lambda value: value is True,
}


def pairs(value: object) -> list[object]:
    """Return the keys of a mapping, each with its value."""
    if not isinstance(value, Mapping):
        raise BadTemplate(f"{kind(value)} has no keys; only a mapping has")
    return [[name, item] for name, item in value.items()]


def _join_by(between: str, parts: Sequence[object]) -> str:
    return _join(parts, between)


TEXT_METHODS: Mapping[str, Callable[..., object]] = {
    "capitalize": str.capitalize,
    "count": str.count,
    "endswith": str.endswith,
    "find": str.find,
    "join": _join_by,
    "lower": str.lower,
    "lstrip": str.lstrip,
    "removeprefix": str.removeprefix,
    "removesuffix": str.removesuffix,
    "replace": replace_text,
    "rstrip": str.rstrip,
    "split": str.split,
    "splitlines": str.splitlines,
    "startswith": str.startswith,
    "strip": str.strip,
    "title": str.title,
    "upper": str.upper,
}
MAPPING_METHODS: Mapping[str, Callable[..., object]] = {
    "get": lambda value, name, default=None: value.get(name, default),
    "items": pairs,
    "keys": lambda value: list(value.keys()),
    "values": lambda value: list(value.values()),
}
METHODS = frozenset({*TEXT_METHODS, *MAPPING_METHODS})
