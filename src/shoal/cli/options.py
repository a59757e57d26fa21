"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Repo = Annotated[Path, typer.Option("--repo", metavar="DIR", help="The repository, or any folder in it.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Session = Annotated[
    str | None,
    typer.Argument(
        metavar="SESSION", help="A session: its name, step, branch, or a unique prefix or suffix; default: the latest."
    ),
]
Run = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run: its name, pipeline, or a unique prefix or suffix; default: the latest."),
]

HERE = Path()
