"""docs/python.md: every public name of the library, from its signatures and docstrings."""

import dataclasses
import inspect
from collections.abc import Iterator

import shoal
from scripts.reference.source import field_rows, sentence, table, type_name

INTRODUCTION = """\
# The Python library

Written by `python -m scripts.reference` from the code: change the docstrings, not this page. Everything here is imported
with `from shoal import …`, and only when it is first used. [Coordinator](coordinator.md), [patterns](patterns.md) and
[agent](agent.md) show how it is used.
"""


def page() -> str:
    """Make the whole page."""
    return "\n".join([INTRODUCTION, *(line for name in shoal.__all__ for line in _public(name))])


def _public(name: str) -> Iterator[str]:
    value = getattr(shoal, name)
    yield f"## {name}\n"
    if not inspect.isclass(value):
        yield f"`{name}{_signature(value)}`\n" if callable(value) else ""
        yield f"{sentence(inspect.getdoc(value))}\n"
        return
    yield f"{sentence(value.__doc__)}\n"
    if issubclass(value, BaseException):
        return
    if dataclasses.is_dataclass(value):
        yield from table(("field", "type", "meaning"), field_rows(value))
    elif "__init__" in vars(value):
        yield f"`{name}{_signature(value.__init__)}`\n"
    yield from table(("method", "meaning"), _methods(value))


def _methods(kind: type) -> Iterator[tuple[str, str]]:
    for name, member in inspect.getmembers(kind):
        is_own = any(name in vars(base) for base in kind.__mro__ if base.__module__.startswith("shoal"))
        if name.startswith("_") or not is_own or name in {field.name for field in _fields(kind)}:
            continue
        if isinstance(member, property):
            yield f"`{name}`", sentence(member.__doc__)
        elif callable(member):
            yield f"`{name}{_signature(member)}`", sentence(inspect.getdoc(member))


def _fields(kind: type) -> tuple[dataclasses.Field[object], ...]:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def _signature(function: object) -> str:
    """Write the parameters with their defaults; types are in the docstrings of what they are."""
    assert callable(function)
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_plain(parameter.default))
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    returns = signature.return_annotation
    end = "" if returns in (inspect.Signature.empty, None, "None") else f" → {type_name(returns)}"
    return f"{signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)}{end}"


def _plain(default: object) -> object:
    """Return a default that is the same in every process."""
    if default is inspect.Parameter.empty or isinstance(default, str | int | float | bool | tuple | None):
        return default
    return ...
