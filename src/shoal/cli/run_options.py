"""What `shoal run` takes."""

from typing import Annotated, Literal

import typer

Target = Annotated[
    str | None,
    typer.Argument(metavar="PIPELINE|FILE", help="A file, or a pipeline of shoal.yaml.", show_default=False),
]
Name = Annotated[
    str | None,
    typer.Argument(metavar="PIPELINE", help="Which pipeline of the file, where it has several.", show_default=False),
]
Task = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="What an agent is to do; repeatable.")]
Tasks = Annotated[
    str | None, typer.Option(metavar="FILE|-", help="Tasks from a file or stdin: one on each line, as text or as JSON.")
]
Agent = Annotated[
    str | None, typer.Option(metavar="NAME", help="An agent of shoal.yaml, or a client like claude, for --task.")
]
Agents = Annotated[str | None, typer.Option(metavar="A:3,B:2", help="So many of each agent on every task, for --task.")]
Program = Annotated[
    str | None,
    typer.Option("--command", metavar="COMMAND", help="A program as the agent, for --task; the prompt is its stdin."),
]
Pattern = Annotated[
    str | None,
    typer.Option(
        metavar="settled|gather|race|quorum=N",
        help="How tasks run together: all to their end, until one fails, until one succeeds, until N do.",
    ),
]
Retries = Annotated[int | None, typer.Option(metavar="N", help="Further attempts of an agent that fails.")]
Base = Annotated[str | None, typer.Option(metavar="REF", help="The commit to start from; else HEAD.")]
AtOnce = Annotated[
    int | None, typer.Option("-j", metavar="N", help="Agents at a time; 5 for --task, 10 for a file, unless it says.")
]
Wall = Annotated[Literal["bubblewrap", "landlock", "none"] | None, typer.Option(help="The wall; else bubblewrap.")]
Isolation = Annotated[
    Literal["auto", "overlay", "worktree", "directory"] | None, typer.Option(help="The workspace; else auto.")
]
Timeout = Annotated[
    str | None, typer.Option(metavar="SECONDS|10m", help="Time for each agent; else its limit, usually an hour.")
]
Deadline = Annotated[
    str | None, typer.Option(metavar="SECONDS|10m", help="Time for the whole run; then it ends with 124.")
]
Net = Annotated[
    Literal["none", "host"] | None,
    typer.Option(help="Their network; else host for clients like claude, none for others."),
]
Input = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="TEXT|NAME=TEXT", help="What `{{ input }}` in a pipeline stands for; repeatable."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Approve every gate.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Print the plan, and run nothing.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, progress on stderr.")]
EventLines = Annotated[bool, typer.Option("--events", help="Every event on stdout, one JSON object per line.")]
