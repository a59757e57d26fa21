"""Field types of document shapes."""

import shlex
from functools import lru_cache
from typing import Annotated, ClassVar, LiteralString, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from shoal.pipeline.keys.duration import BadDuration, seconds
from shoal.pipeline.problems import close, key, nearest, show_value

UNSUPPORTED = "is not supported yet in this version"
UNKNOWN_KEY = "unknown_key"
OURS = "ours"


class Shape(BaseModel):
    """A mapping with known keys; *later* are keys that this version does not support yet."""

    # Built on first use: a whole file uses one shape, and its parts need not be built alone.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, defer_build=True)

    later: ClassVar[frozenset[str]] = frozenset()
    refused: ClassVar[dict[str, str]] = {}
    """Refused keys, each with a sentence that says why."""

    @model_validator(mode="wrap")
    @classmethod
    def _name_unknown_keys(cls, value: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            lines = [_line(cls, details) for details in _without_echoes(cls, error.errors(include_url=False))]
            raise ValidationError.from_exception_data(error.title, lines) from None


@lru_cache(maxsize=256)  # in a large document it is asked of every step
def nearest_key(shape: type[Shape], name: str) -> str | None:
    """Return the key of *shape* that an unknown *name* probably means, if one is close."""
    known = _list_keys(shape)
    return None if name in known else close(name, known)


def wrong(sentence: str, kind: LiteralString = OURS) -> PydanticCustomError:
    """Make an error whose whole text is *sentence*; the kind `UNKNOWN_KEY` is reported at the key."""
    return PydanticCustomError(kind, "{sentence}", {"sentence": sentence})


def one_of(what: str, *names: str, later: tuple[str, ...] = ()) -> AfterValidator:
    """Accept only *names*; those in *later* are not supported yet."""

    def check(value: str) -> str:
        if value in names:
            return value
        if value in later:
            raise wrong(f"`{what}: {value}` {UNSUPPORTED}; use {' or '.join(names)}")
        raise wrong(f"`{what}` cannot be {show_value(value)}; {nearest(value, names)}")

    return AfterValidator(check)


def _seconds(value: object) -> float:
    try:
        return seconds(value)
    except BadDuration as error:
        raise wrong(str(error)) from None


def words_for_booleans(value: object) -> object:
    """Turn `true` and `false` in a command, which YAML reads as booleans, into the programs of those names."""
    if isinstance(value, list):
        return [words_for_booleans(word) for word in value]
    return str(value).lower() if isinstance(value, bool) else value


def _argv(value: object) -> object:
    value = words_for_booleans(value)
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise wrong(f"the command cannot be split into words ({error}); write it as a list") from None


def runnable(argv: list[str]) -> list[str]:
    """Refuse a command without a program."""
    if not argv or not argv[0].strip():
        raise wrong('the command is empty; write a program and its arguments, like ["make", "fix"]')
    return argv


Duration = Annotated[float, BeforeValidator(_seconds)]
Argv = Annotated[list[str], AfterValidator(runnable), BeforeValidator(_argv)]
NetworkName = Annotated[str, one_of("network", "none", "gateway", "host")]


def _without_echoes(shape: type[Shape], found: list[ErrorDetails]) -> list[ErrorDetails]:
    """Drop a missing key that is only misspelt, which is reported at the misspelling."""
    own = [(error["type"], str(error["loc"][0])) for error in found if len(error["loc"]) == 1]
    misspelt = {nearest_key(shape, name) for kind, name in own if kind == "extra_forbidden"}
    return [
        error
        for error in found
        if error["type"] != "missing" or len(error["loc"]) > 1 or error["loc"][0] not in misspelt
    ]


def _line(shape: type[Shape], details: ErrorDetails) -> InitErrorDetails:
    """Describe a problem with a key of *shape* itself; pass others on unchanged."""
    kind: str | PydanticCustomError = details["type"]
    if details["type"] == "extra_forbidden" and len(details["loc"]) == 1:
        kind = PydanticCustomError(UNKNOWN_KEY, "{sentence}", {"sentence": _unknown(shape, str(details["loc"][0]))})
    elif details["type"] in (OURS, UNKNOWN_KEY):
        kind = PydanticCustomError(details["type"], "{sentence}", details["ctx"])
    return InitErrorDetails(type=kind, loc=details["loc"], input=details["input"], ctx=details.get("ctx", {}))


def _unknown(shape: type[Shape], name: str) -> str:
    if name in shape.refused:
        return shape.refused[name]
    if name in shape.later:
        return f"{key(name)} {UNSUPPORTED}; remove it"
    if name == "<<":
        return "merge keys (`<<`) are not read; write the values out"
    return f"unknown key {key(name)}; {nearest(name, _list_keys(shape))}"


def _list_keys(shape: type[Shape]) -> list[str]:
    return sorted({field.alias or name for name, field in shape.model_fields.items()} | shape.later)
