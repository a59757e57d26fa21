"""The commands by name; only the requested one is imported, so that each starts fast."""

import importlib
from collections.abc import Callable, Sequence

import typer

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
    "pause",
    "continue",
    "set",
    "resume",
    "retry",
    "rewind",
    "clean",
    "export",
    "import",
    "validate",
    "schema",
    "serve",
    "agents",
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
        app.command(name)(_find_command(name))
    return app


def _find_command(name: str) -> Callable[..., int]:
    """Load the function of a command: it is in a module of the same name, or in one that it shares."""
    if name in TOGETHER:
        module = importlib.import_module(f"shoal.cli.{TOGETHER[name]}")
        function: Callable[..., int] = getattr(module, f"{name}_command")
        return function
    command: Callable[..., int] = importlib.import_module(f"shoal.cli.{name}").command
    return command


def _top(
    context: typer.Context, version: bool = typer.Option(False, "--version", "-V", help="Print the version.")
) -> None:
    """Print the help for a bare `shoal`; `main` has answered `--version` already."""
    if context.invoked_subcommand is None:
        print(context.get_help())
