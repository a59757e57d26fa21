"""The options of `shoal merge`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

Sessions = Annotated[
    list[str] | None,
    typer.Argument(metavar="SESSION", help="Only these, in this order; else all that ended well.", show_default=False),
]
How = Annotated[
    Literal["review", "auto", "squash", "rebase", "octopus"],
    typer.Option(
        help="review and auto: a merge commit each; squash: a commit each; rebase: their own commits; octopus: one "
        "merge for all. review asks before it moves a branch of yours."
    ),
]
Into = Annotated[str | None, typer.Option(metavar="BRANCH", help="A branch of yours to deliver the result into.")]
Shown = Annotated[bool, typer.Option("--preview", help="Only say which sessions would conflict.")]
Undo = Annotated[bool, typer.Option("--undo", help="Take the sessions, or all of the run, out again.")]
Allow = Annotated[
    bool,
    typer.Option("--allow-executable-config", help="Also merge changes to what runs on your machine: hooks, CI, …"),
]
Verify = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", help="Has to exit with 0 on the combined work, behind the wall of the run."),
]
VerifyTimeout = Annotated[
    str | None, typer.Option(metavar="TIME", help="How long each run of --verify may take, like 90 or 10m.")
]
OnConflict = Annotated[
    Literal["report", "ours", "theirs", "agent", "redo"],
    typer.Option(
        help="What is done with work that conflicts, after the rest: report it; keep the lines of ours (landed before) "
        "or theirs (the later work); have an agent resolve it. redo is for files only: a run keeps no plan."
    ),
]
Resolver = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Who resolves with --on-conflict agent: a persona or an agent of --file."),
]
File = Annotated[Path | None, typer.Option(metavar="FILE", help="The file that has the --resolver; else shoal.yaml.")]
AtOnce = Annotated[int, typer.Option("-j", metavar="N", help="So many boxes for --verify and --resolver at once.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Deliver without being asked.")]
