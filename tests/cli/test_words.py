"""Commands get the same arguments, whether we parse them or typer does."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Literal, get_args, get_origin

import pytest
import typer

from shoal.cli import app


def read_by_typer(command: Callable[..., int], words: list[str]) -> dict[str, object]:
    """Let typer call *command* with *words*, and give what it was called with."""
    given: dict[str, object] = {}

    @functools.wraps(command)
    def remember(**values: object) -> None:
        given.update(values)

    program = typer.Typer(add_completion=False)
    program.command()(remember)
    typer.main.get_command(program)(words, prog_name="shoal", standalone_mode=False)
    return given


def spellings(parameter: app.Parameter) -> Iterator[list[str]]:
    """Give plain ways to write *parameter*."""
    origin = get_origin(parameter.type)
    value = get_args(parameter.type)[0] if origin is Literal else "2" if parameter.type is int else "some/word"
    for name in parameter.names or ("",):
        if not name:
            yield from ([value], [value, value] if parameter.takes_several else [value])
        elif parameter.type is bool:
            yield [name]
        else:
            yield from ([name, value], [name, value, name, value])
            if name.startswith("--"):
                yield [f"{name}={value}"]


@pytest.mark.parametrize("name", app.COMMANDS)
def test_plain_words_mean_what_typer_makes_of_them(name: str) -> None:
    command = app.find_command(name)
    parameters = list(app.list_parameters(command))
    required = [word for p in parameters if p.default is inspect.Parameter.empty for word in next(spellings(p))]

    for words in ([], *(words for parameter in parameters for words in spellings(parameter))):
        for whole in (words, [*required, *words]):
            ours = app.read_plain(command, whole)
            assert ours is None or ours == read_by_typer(command, whole), whole


@pytest.mark.parametrize("name", ["status", "runs", "resume", "clean", "logs", "diff", "run"])
def test_typer_is_not_asked_about_plain_words(name: str) -> None:
    assert app.read_plain(app.find_command(name), ["--repo=here"]) is not None


@pytest.mark.parametrize(
    "words",
    [
        *(["--help"], ["-h"], ["--nothing"], ["--limit"], ["--limit", "x"], ["--limit", "-1"], ["--limit="]),
        *(["--json=yes"], ["-n5"], ["--repo", ""], ["too", "many", "words"], ["--"], ["-"], ["--repo", "é"]),
    ],
)
def test_what_is_not_plain_is_left_to_typer(words: list[str]) -> None:
    assert app.read_plain(app.find_command("runs"), words) is None
