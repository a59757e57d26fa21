"""`shoal diff`: what an agent changed, all of them together, or how the work of two differs."""

import asyncio
import sys
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.comparison import Comparison, Wanted, compared
from shoal.cli.document import text
from shoal.cli.options import HERE, Repo
from shoal.cli.pager import show
from shoal.cli.render.diff import patch_lines, warning
from shoal.errors import BadInput

First = Annotated[
    str | None,
    typer.Argument(
        metavar="SESSION",
        help="A session, its step, its branch, or the beginning or end of its name; else the latest. "
        "With --combined a run.",
        show_default=False,
    ),
]
Second = Annotated[
    str | None,
    typer.Argument(metavar="OTHER", help="Another session: how its work differs from the first.", show_default=False),
]
Combined = Annotated[
    bool, typer.Option("--combined", help="All sessions of a run that ended well, merged beside your checkout.")
]


def command(
    session: First = None,
    other: Second = None,
    combined: Combined = False,
    stat: Annotated[bool, typer.Option("--stat", help="Only how much was changed in each file.")] = False,
    name_only: Annotated[bool, typer.Option("--name-only", help="Only the names of the changed files.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The changed files as one JSON document.")] = False,
    repo: Repo = HERE,
) -> int:
    """Show what an agent changed.

    Two sessions: how the second differs from the first. Where stdout is no terminal it is a patch for `git apply`, byte
    for byte. A warning names first what could run programs on your machine later.
    """
    if stat + name_only + json > 1:
        raise BadInput("more than one of --stat, --name-only and --json; choose one")
    if combined and other is not None:
        raise BadInput("--combined takes a run and no second session; leave one of them out")
    form = "--json" if json else "--stat" if stat else "--name-only" if name_only else "--patch"
    wanted = Wanted(first=session, second=other, is_combined=combined, form=form)
    _shown(asyncio.run(compared(repo, wanted)))
    return 0


def _shown(found: Comparison) -> None:
    """Show it as its reader needs it: a document, a patch byte for byte, or pages for a person."""
    if found.document is not None:
        output.say(text(found.document))
        return
    for remark in found.remarks:
        output.tell(remark)
    if output.is_terminal() and found.patch:
        # In the pages too, for they may cover what was said before them.
        first = [warning(found.executable, output.paint())] if found.executable else []
        show([*first, *patch_lines(found.patch, output.paint())])
        return
    if found.executable:
        # On stderr, so that what is piped to `git apply` stays a patch; and first, so that nobody overlooks it.
        output.tell(warning(found.executable, output.paint(sys.stderr)))
    if found.patch:
        output.give(found.patch)
