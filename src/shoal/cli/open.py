"""`shoal open`: an agent's branch in a folder, for the user's editor."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Json, Repo, Session
from shoal.cli.output import escape
from shoal.cli.repository import find_place, no_branch_yet
from shoal.errors import BadInput
from shoal.runs.inspect_work import OpenedBranch, open_branch
from shoal.store.documents import text
from shoal.store.lookup import find_session
from shoal.store.run_state import SessionState


def checkout_line(branch: str, *, is_new: bool, is_elsewhere: bool) -> str:
    """Say what is checked out in the folder whose path follows."""
    if is_new:
        return f"shoal: {escape(branch)} is checked out in a worktree; `git worktree remove` removes it again"
    return f"shoal: {escape(branch)} is already open{', elsewhere' if is_elsewhere else ''}"


def command(
    session: Session = None,
    path: Annotated[
        Path | None, typer.Option("--path", metavar="DIR", help="Where to check it out; default: .shoal/open/SESSION.")
    ] = None,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """Check out an agent's branch in a folder for your editor.

    Prints only the folder on stdout: `cd $(shoal open)`.
    """
    asyncio.run(_open(session, path, repo, as_json=json))
    return 0


async def _open(prefix: str | None, path: Path | None, folder: Path, *, as_json: bool) -> None:
    place = await find_place(folder)
    session = find_session(place.state(), prefix)
    branch = _branch(session)
    where = path.resolve() if path is not None else place.paths.root / "open" / session.session
    opened = await open_branch(place.repository, branch, where)
    if as_json:
        output.print_out(
            text({"session": session.session, "branch": branch, "path": str(opened.path), "new": opened.is_new})
        )
    else:
        _print_opened(opened, branch, where)


def _print_opened(opened: OpenedBranch, branch: str, wanted: Path) -> None:
    output.print_err(checkout_line(branch, is_new=opened.is_new, is_elsewhere=opened.path != wanted))
    output.print_out(str(opened.path))


def _branch(session: SessionState) -> str:
    if session.result is None:
        raise no_branch_yet(session)
    if session.result.branch is None:
        raise BadInput(f"{session.session} has no branch: it ended as {session.status.value} and changed nothing")
    return session.result.branch
