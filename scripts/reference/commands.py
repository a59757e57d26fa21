"""docs/cli.md: every command with its arguments and options, from the command line itself."""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from scripts.reference.source import sentence, table
from shoal.cli.app import COMMANDS, make_app

INTRODUCTION = """\
# Every command

Written by `python -m scripts.reference` from what `shoal COMMAND --help` prints: change that, not this page.
[Commands](commands.md) explains what they have in common: exit codes, names of runs and sessions, JSON, Ctrl-C.
"""


def page() -> str:
    """Make the whole page."""
    group = typer.main.get_command(make_app(COMMANDS))
    assert isinstance(group, TyperGroup)
    return "\n".join([INTRODUCTION, *_commands("", group)])


def _commands(outer: str, group: TyperGroup) -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if isinstance(command, TyperGroup):
            yield from _commands(f"{outer}{name} ", command)
        elif isinstance(command, TyperCommand):
            yield from _command(f"{outer}{name}", command)


def _command(name: str, command: TyperCommand) -> Iterator[str]:
    shown = [param for param in command.params if not getattr(param, "hidden", False) and param.name != "help"]
    options = [param for param in shown if isinstance(param, TyperOption)]
    arguments = [(param.metavar or str(param.name).upper(), param.required) for param in shown if param not in options]
    words = "".join(f" {word}" if is_needed else f" [{word.strip('[]')}]" for word, is_needed in arguments)
    yield f"## `shoal {name}{words}`\n"
    yield "\n\n".join(sentence(part) for part in re.split(r"\n\s*\n", command.help or "")) + "\n"
    yield from table(("option", "meaning"), map(_row, options))


def _row(option: TyperOption) -> tuple[str, str]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} `{_value(option)}`", sentence(option.help)


def _value(option: TyperOption) -> str:
    if option.metavar:
        return option.metavar
    choices = [
        choice
        for part in (option.type_descriptor.annotation, *get_args(option.type_descriptor.annotation))
        for choice in _choices(part)
    ]
    return "|".join(choices) or getattr(option.type_descriptor.annotation, "__name__", "VALUE").upper()


def _choices(kind: object) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        yield from (member.value for member in kind)
    elif get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
