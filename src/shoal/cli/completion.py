"""`shoal completion`: scripts that complete commands, options, and the names of runs and sessions in a shell."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.app import COMMANDS, make_app

KINDS = {"RUN": "runs", "SESSION": "sessions", "OTHER": "sessions"}


class Shell(StrEnum):
    """A shell that completes words."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What may follow a command."""

    name: str
    options: tuple[str, ...]
    choices: tuple[str, ...]
    names: str
    """Which names it takes, as `shoal completion names` knows them; empty for files and text."""


def command(shell: Annotated[Shell, typer.Argument(help="The shell that reads the script.")]) -> int:
    """Print the completion script of a shell.

    It completes commands, options, and names of runs and sessions. For bash: `eval "$(shoal completion bash)"`
    in `~/.bashrc`. For zsh: the same with `zsh` in `~/.zshrc`, after
    `compinit`. For fish: `shoal completion fish > ~/.config/fish/completions/shoal.fish`.
    """
    commands = list(_commands())
    match shell:
        case Shell.BASH:
            lines = _bash(commands)
        case Shell.ZSH:
            lines = _zsh(commands)
        case Shell.FISH:
            lines = _fish(commands)
    output.print_out("\n".join(lines))
    return 0


def _commands() -> Iterator[Words]:
    group = typer.main.get_command(make_app(COMMANDS))
    for name, found in getattr(group, "commands", {}).items():
        options = [option for param in found.params if not getattr(param, "hidden", False) for option in param.opts]
        arguments = [param for param in found.params if param.param_type_name == "argument"]
        metavars = {word for param in arguments for word in re.split(r"\W+", param.metavar or "")}
        kinds = dict.fromkeys(KINDS[word] for word in sorted(metavars) if word in KINDS)
        yield Words(
            name=name,
            options=(*(option for option in options if option.startswith("-")), "--help"),
            choices=tuple(Shell) if name == "completion" else (),
            names="+".join(kinds),
        )


def _bash(commands: Sequence[Words]) -> Iterator[str]:
    yield "_shoal() {"
    yield "  local cur=${COMP_WORDS[COMP_CWORD]} options= names= choices= IFS=$' \\t\\n'"
    yield "  COMPREPLY=()"
    yield f"  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W '{_join(commands)}' -- \"$cur\")); return; fi"
    yield '  case "${COMP_WORDS[1]}" in'
    yield from _cases(commands)
    yield "  esac"
    yield "  if [[ $cur == -* ]]; then choices=$options"
    yield '  elif [[ $names ]]; then choices=$(shoal completion names "$names" 2>/dev/null); fi'
    yield '  COMPREPLY=($(compgen -W "$choices" -- "$cur"))'
    yield "}"
    yield "complete -o default -F _shoal shoal"


def _zsh(commands: Sequence[Words]) -> Iterator[str]:
    yield "#compdef shoal"
    yield "_shoal() {"
    yield "  local options= names= choices="
    yield f"  if ((CURRENT == 2)); then compadd -- {_join(commands)}; return; fi"
    yield '  case "${words[2]}" in'
    yield from _cases(commands)
    yield "  esac"
    yield "  if [[ $PREFIX == -* ]]; then choices=$options"
    yield '  elif [[ -n $names ]]; then choices=$(shoal completion names "$names" 2>/dev/null); fi'
    yield "  if [[ -n $choices ]]; then compadd -- ${=choices}; else _files; fi"
    yield "}"
    yield "compdef _shoal shoal"


def _cases(commands: Sequence[Words]) -> Iterator[str]:
    for found in commands:
        choices = " ".join(found.choices)
        yield f"    {found.name}) options='{' '.join(found.options)}' names='{found.names}' choices='{choices}' ;;"


def _fish(commands: Sequence[Words]) -> Iterator[str]:
    yield f"complete -c shoal -n __fish_use_subcommand -f -a '{_join(commands)}'"
    for found in commands:
        when = f"complete -c shoal -n '__fish_seen_subcommand_from {found.name}'"
        for option in found.options:
            kind = "-l" if option.startswith("--") else "-s"
            yield f"{when} {kind} {option.lstrip('-')}"
        if found.choices:
            yield f"{when} -f -a '{' '.join(found.choices)}'"
        if found.names:
            yield f"{when} -f -a '(shoal completion names {found.names} 2>/dev/null)'"


def _join(commands: Sequence[Words]) -> str:
    return " ".join(found.name for found in commands)
