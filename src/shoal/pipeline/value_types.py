"""The value types of a pipeline file's keys, with a message for each wrong value."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, PlainValidator, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from shoal.errors import UnknownName
from shoal.model.database import DATABASES, SCHEMES
from shoal.model.limits import BadLimit, ResourceLimits
from shoal.model.retry import KEYS, BadRetry, Retry
from shoal.model.status import FAILURE_RULES, MOST_WANTED
from shoal.model.store import StoreSettings
from shoal.pipeline.fields import OURS, UNKNOWN_KEY, one_of, wrong
from shoal.pipeline.names import OWN, list_plugin_names
from shoal.pipeline.problems import key, nearest, show_value
from shoal.sandboxes.registry import KINDS
from shoal.workspaces.registry import NAMES as WORKSPACE_NAMES

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _limits(value: object) -> ResourceLimits:
    if not isinstance(value, dict):
        raise wrong(f"limits must be a mapping such as {{memory_mb: 1024}}, not {show_value(value)}")
    alone = {name: bad for name, given in value.items() if (bad := _bad_limit({name: given}))}
    together = _bad_limit({name: given for name, given in value.items() if name not in alone})
    if problems := [_limit_line(bad, value) for bad in (*alone.values(), together) if bad]:
        raise ValidationError.from_exception_data("limits", problems)
    return ResourceLimits.of(value)


def _bad_limit(given: dict[str, object]) -> BadLimit | None:
    try:
        ResourceLimits.of(given)
    except BadLimit as error:
        return error
    return None


def _limit_line(bad: BadLimit, value: dict[str, object]) -> InitErrorDetails:
    kind = wrong(str(bad), UNKNOWN_KEY if bad.is_about_key else OURS)
    return InitErrorDetails(type=kind, loc=(bad.key,), input=value[bad.key])


def _fleet(value: object) -> ResourceLimits:
    limits = _limits(value)
    if limits.is_exact:
        where = "`disk: exact` gives each agent a disk of its own; say it in `resource_limits` or `limits`"
        line = InitErrorDetails(type=wrong(where), loc=("disk",), input="exact")
        raise ValidationError.from_exception_data("limits", [line])
    return limits


Limits = Annotated[ResourceLimits, PlainValidator(_limits)]
FleetLimits = Annotated[ResourceLimits, PlainValidator(_fleet)]
MISPLACED = {"limits": "limits belong to `runtime.resource_limits`, or to a step, persona or agent as `limits`"}
ELSEWHERE = {"resource_limits": "`resource_limits` is the name in `runtime`; here it is `limits`"}


@dataclass(frozen=True, slots=True)
class FromHost:
    """An environment variable whose value is taken from the host when the plan is made."""

    variable: str


def read_variable(value: object) -> str | FromHost:
    """Read text, a number or a boolean as text, or `{from: HOST_NAME}`."""
    match value:
        case bool() | str() | int() | float():
            return show_value(value) if isinstance(value, bool) else str(value)
        case {"from": str(variable), **rest} if not rest:
            if not _VARIABLE.fullmatch(variable):
                raise wrong(f"{key(variable)} is not a valid variable name; use letters, digits and `_`")
            return FromHost(variable)
        case _:
            raise wrong(
                f"a variable must be text, a number, true, false or {{from: HOST_NAME}}, not {show_value(value)}"
            )


def _check_variable_names(value: object) -> object:
    if isinstance(value, dict) and (wrongs := [*name_lines(value)]):
        raise ValidationError.from_exception_data("env", [*wrongs, *_value_lines(value)])
    return value


def name_lines(env: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    """Find what cannot be the name of a variable, each at its own key."""
    for name in env:
        if not _VARIABLE.fullmatch(name):
            why = f"{key(name)} is not a valid variable name; use letters, digits and `_`"
        elif name.startswith("SHOAL_"):
            why = f"{key(name)} is set by Shoal itself; choose a name that does not start with SHOAL_"
        else:
            continue
        yield InitErrorDetails(type=wrong(why, UNKNOWN_KEY), loc=(name,), input=None)


def _value_lines(env: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    """Find further problems of a line with a wrong name."""
    for name, value in env.items():
        try:
            read_variable(value)
        except PydanticCustomError as error:
            yield InitErrorDetails(type=error, loc=(name,), input=None)


Env = Annotated[
    dict[str, Annotated[str | FromHost, PlainValidator(read_variable)]],
    BeforeValidator(_check_variable_names),
]


def _server(value: object) -> str | FromHost:
    found = read_variable(value)
    if isinstance(found, FromHost):
        return found
    try:
        parts = urlsplit(found)
        is_good, has_password = found.startswith(SCHEMES), parts.password or "password" in parts.query
    except ValueError:
        is_good, has_password = False, None
    if has_password:
        raise wrong("a password does not belong in a file; put the address in a variable: `{from: HOST_NAME}`")
    if not is_good:
        raise wrong(f"{show_value(value)} is not a server; write `postgresql://user@host/name` or `{{from: NAME}}`")
    return found


def _failure_rule(value: object) -> object:
    if isinstance(value, dict):
        return _quorum(value)
    if not isinstance(value, str) or value not in FAILURE_RULES:  # a list has no hash
        known = f"use {', '.join(FAILURE_RULES)} or {{quorum: n}}"
        hint = nearest(value, FAILURE_RULES) if isinstance(value, str) else known
        raise wrong(f"`on_failure` cannot be {show_value(value)}; {hint}")
    return value


def _quorum(value: dict[object, object]) -> str:
    match value:
        case {"quorum": int(number), **rest} if not rest and number is not True and 1 <= number <= MOST_WANTED:
            return f"quorum={number}"
        case _:
            what = f"a whole number, at least 1 and at most {MOST_WANTED}"
            raise wrong(f"`on_failure` as a mapping is `{{quorum: n}}`, with {what}")


def _retry(value: object) -> Retry:
    if not isinstance(value, dict | int) or isinstance(value, bool):
        raise wrong(f"`retry` must be a number of further attempts or a mapping, not {show_value(value)}")
    try:
        return Retry.of(value)
    except BadRetry as error:
        if error.key is None or not isinstance(value, dict):
            raise wrong(str(error)) from None
        line = InitErrorDetails(type=wrong(str(error)), loc=(error.key,), input=value.get(error.key))
        raise ValidationError.from_exception_data("retry", [line]) from None
    except UnknownName as error:
        name = next(name for name in value if name not in KEYS) if isinstance(value, dict) else ""
        line = InitErrorDetails(type=wrong(str(error), UNKNOWN_KEY), loc=(str(name),), input=value)
        raise ValidationError.from_exception_data("retry", [line]) from None


def _names(value: object) -> object:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_names)]


def _condition(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str) or not value.strip():
        raise wrong(f"a condition is an expression like `steps.plan.status == 'succeeded'`, not {show_value(value)}")
    return value


def _input(value: object) -> str | dict[str, str]:
    match value:
        case str():
            return value
        case dict() if all(isinstance(item, str | int | float) for item in value.values()):
            return {name: show_value(item) if isinstance(item, bool) else str(item) for name, item in value.items()}
        case _:
            raise wrong(f"`input` is a text or a mapping of texts, not {show_value(value)}")


Condition = Annotated[str, PlainValidator(_condition, json_schema_input_type=str | bool)]
Input = Annotated[str | dict[str, str], PlainValidator(_input, json_schema_input_type=str | dict[str, str])]
IsolationName = Annotated[str, one_of("isolation_strategy", *WORKSPACE_NAMES)]
SandboxName = Annotated[str, one_of("sandbox", *KINDS)]


def _store(value: object) -> StoreSettings:
    if not isinstance(value, dict):
        return _store_of(_server(value))
    rest = {name: item for name, item in value.items() if name not in ("url", "repository")}
    name = value.get("repository", "")
    if not isinstance(name, str) or (name and not _REPOSITORY.fullmatch(name)):
        raise wrong(f"`repository` cannot be {show_value(name)}; use letters, digits, `.`, `_` and `-`")
    if ("url" in value) == bool(rest):
        raise wrong("`store` is an address, or `{from: HOST_NAME}`, or `{url: ADDRESS}`, with `repository: NAME`")
    return replace(_store(value["url"]) if "url" in value else _store_of(_server(rest)), repository=name)


def _store_of(found: str | FromHost) -> StoreSettings:
    return StoreSettings(url=found) if isinstance(found, str) else StoreSettings(url_from=found.variable)


StoreField = Annotated[StoreSettings, PlainValidator(_store, json_schema_input_type=str | dict[str, str])]
DatabaseName = Annotated[str, one_of("database_strategy", *DATABASES)]
DatabaseField = Annotated[str | FromHost, PlainValidator(_server, json_schema_input_type=str | dict[str, str])]
FailureRule = Annotated[str, BeforeValidator(_failure_rule)]
Retrying = Annotated[Retry, PlainValidator(_retry)]


def _whole(value: str) -> str:
    is_rooted = value.startswith("/") or value == "~" or value.startswith("~/")
    if not is_rooted or ".." in PurePosixPath(value).parts or "\0" in value:
        raise wrong(f"{show_value(value)} is not an absolute path on the host; start it with `/` or `~/`")
    if ":" in value:
        raise wrong(f"{show_value(value)} cannot be on PATH, because it contains `:`; rename the folder")
    return value


ToolFolderName = Annotated[str, AfterValidator(_whole)]


def _adapter(name: str) -> str:
    if name in OWN or name in list_plugin_names():
        return name
    raise wrong(f"`adapter` cannot be {show_value(name)}; {nearest(name, (*OWN, *list_plugin_names()))}")


AdapterName = Annotated[str, AfterValidator(_adapter)]
