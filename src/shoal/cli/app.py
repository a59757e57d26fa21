"""The commands by name; only the requested one is imported, so that each starts fast."""

import gc
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin

import typer
from typer.models import OptionInfo, ParameterInfo

from shoal.cli.main import SELDOM

COMMANDS = (
    "init",
    "run",
    "runs",
    "ps",
    "status",
    "report",
    "wait",
    "attach",
    "logs",
    "diff",
    "merge",
    "open",
    "approve",
    "stop",
    "send",
    "notes",
    "pause",
    "continue",
    "set",
    "resume",
    "retry",
    "rewind",
    "replay",
    "clean",
    "export",
    "import",
    "validate",
    "schema",
    "serve",
    "top",
    "mcp",
    "node",
    "nodes",
    "agents",
    "node",
    "doctor",
    "completion",
    "demo",
)

TOGETHER = {
    "stop": "control",
    "send": "control",
    "pause": "control",
    "continue": "control",
    "set": "control",
    "resume": "resume",
    "retry": "resume",
    "rewind": "resume",
    "export": "archive",
    "import": "archive",
}
"""Commands that share a module, with its name."""


def call_command(words: Sequence[str]) -> int:
    """Call the command in *words* and return its exit code; raise `typer.TyperException` for bad usage."""
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if words and words[0] in COMMANDS:
        command = find_command(words[0])
        if (arguments := read_plain(command, words[1:])) is not None:
            return command(**arguments)
    app = make_app(words[:1] if words and words[0] in COMMANDS else COMMANDS)
    code = typer.main.get_command(app)(list(words), prog_name="shoal", standalone_mode=False)
    return code if isinstance(code, int) else 0


def make_app(names: Sequence[str]) -> typer.Typer:
    """Make the program with the commands of these *names*."""
    app = typer.Typer(
        name="shoal",
        help="Run many AI coding agents at once on one git repository, each in its own sandbox.",
        epilog="New to Shoal? Try `shoal demo`, then `shoal doctor`. `shoal help COMMAND` lists its options.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_top)
    for name in names:
        app.command(name)(find_command(name))
    return app


def find_command(name: str) -> Callable[..., int]:
    """Load the function of a command: it is in a module of the same name, or in one that it shares."""
    module = importlib.import_module(f"shoal.cli.{TOGETHER.get(name, name)}")
    function: Callable[..., int] = getattr(module, f"{name}_command" if name in TOGETHER else "command")
    if not gc.isenabled():
        gc.freeze()  # what was imported stays anyway
        gc.set_threshold(SELDOM, *gc.get_threshold()[1:])
        gc.enable()
    return function


def _top(
    context: typer.Context, version: bool = typer.Option(False, "--version", "-V", help="Print the version.")
) -> None:
    """Print the help for a bare `shoal`; `main` has answered `--version` already."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a command's function, as the words of its user name it."""

    name: str
    names: tuple[str, ...]
    """How an option is written; none for an argument."""
    type: object
    default: object
    info: ParameterInfo

    @property
    def takes_several(self) -> bool:
        """Say whether each further word is added to a list."""
        return get_origin(self.type) is list

    def read(self, word: str) -> object:
        """Read the value in *word*; raise `ValueError` for what typer has to judge."""
        if not word.isascii() or not word or word.startswith("-"):
            raise ValueError(word)
        if self.type in (str, list[str]):
            return word
        if self.type is Path:
            return Path(word)
        if self.type is int and re.fullmatch(r"\d{1,9}", word):
            low, high = self.info.min, self.info.max
            if (low is None or int(word) >= low) and (high is None or int(word) <= high):
                return int(word)
        if get_origin(self.type) is Literal and word in get_args(self.type):
            return word
        raise ValueError(word)


def read_plain(command: Callable[..., int], words: Sequence[str]) -> dict[str, object] | None:
    """Read *words* as the arguments of *command*; `None` for all that is not plain, such as help and mistakes.

    That is left to typer, which takes as long to import and to begin as `shoal status` needs for its work.
    """
    parameters = tuple(list_parameters(command))
    options = {name: parameter for parameter in parameters for name in parameter.names}
    arguments = [parameter for parameter in parameters if not parameter.names]
    values = {parameter.name: parameter.default for parameter in parameters}
    waiting, positions = iter(words), iter(arguments)
    place: Parameter | None = None
    try:
        for word in waiting:
            if not word.startswith("-"):
                place = place if place is not None and place.takes_several else next(positions)
                _add(values, place, place.read(word))
                continue
            name, has_value, value = word.partition("=") if word.startswith("--") else (word, "", "")
            option = options[name]
            if option.type is bool and not has_value:
                values[option.name] = True
            else:
                _add(values, option, option.read(value if has_value else next(waiting)))
    except (KeyError, ValueError, StopIteration):
        return None
    return None if inspect.Parameter.empty in values.values() else values


def _add(values: dict[str, object], parameter: Parameter, value: object) -> None:
    before = values[parameter.name]
    if not parameter.takes_several:
        values[parameter.name] = value
    else:
        values[parameter.name] = [*(before if isinstance(before, list) else ()), value]


def list_parameters(command: Callable[..., int]) -> Iterator[Parameter]:
    """Go through the parameters of *command*, in their order."""
    for name, parameter in inspect.signature(command).parameters.items():
        declared, info = get_args(parameter.annotation)
        yield Parameter(name, _list_names(name, info), _without_none(declared), parameter.default, info)


def _list_names(name: str, info: ParameterInfo) -> tuple[str, ...]:
    if not isinstance(info, OptionInfo):
        return ()
    names = (info.default, *(info.param_decls or ()))
    return tuple(word.partition("/")[0] for word in names if isinstance(word, str)) or (f"--{name.replace('_', '-')}",)


def _without_none(declared: object) -> object:
    kinds = [kind for kind in get_args(declared) if kind is not NoneType]
    return kinds[0] if NoneType in get_args(declared) else declared
