"""Joining: a command is put before another, does its part by builtins of the shell, and becomes that other."""

from dataclasses import replace

from shoal.model.command import Command

SHELL = "/bin/sh"

# $1 … up to `--` are files; to write 0 into one is to join. It must be over before anything untrusted runs.
JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'


def before(command: Command, script: str, *words: str) -> Command:
    """Run *script* with *words* as its arguments, then *command* in the same process."""
    return replace(command, argv=(SHELL, "-c", script, "sh", *words, *command.argv))
