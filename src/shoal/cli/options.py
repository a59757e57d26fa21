"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Repo = Annotated[Path, typer.Option("--repo", metavar="DIR", help="The repository, or any folder in it.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Session = Annotated[
    str | None, typer.Argument(metavar="SESSION", help="A session or the beginning of its name; else the latest.")
]
Run = Annotated[str | None, typer.Argument(metavar="RUN", help="A run or the beginning of its name; else the latest.")]

HERE = Path()
