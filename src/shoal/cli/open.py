"""`shoal open`: an agent's branch in a folder, for the user's editor."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.diff import look_at
from shoal.cli.options import HERE, Json, Repo, Session
from shoal.cli.output import escape
from shoal.cli.repository import find_place
from shoal.errors import BadInput
from shoal.runs.inspect_work import open_branch, open_snapshot
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

    For a running agent, it has the current files, read-only; the agent does not notice. Prints only the folder on
    stdout: `cd $(shoal open)`.
    """
    asyncio.run(_open(session, path, repo, as_json=json))
    return 0


async def _open(prefix: str | None, path: Path | None, folder: Path, *, as_json: bool) -> None:
    place = await find_place(folder)
    work = await look_at(place, find_session(place.state(), prefix))
    name = work.session.session
    where = None if path is None else path.resolve()
    if (result := work.session.result) is not None:
        branch = _branch(work.session)
        where = where or place.paths.root / "open" / name
        opened = await open_branch(place.repository, branch, where)
        line = checkout_line(branch, is_new=opened.is_new, is_elsewhere=opened.path != where)
    else:
        branch, commit = None, work.commit or work.session.base
        opened = await open_snapshot(place.repository, commit, name, where)
        line = f"shoal: {escape(name)} is still running; these are its files as they are now, read-only"
    document = {"session": name, "branch": branch, "running": result is None, "path": str(opened.path)}
    if as_json:
        output.print_out(text({**document, "new": opened.is_new}))
        return
    output.print_err(line)
    output.print_out(str(opened.path))


def _branch(session: SessionState) -> str:
    if session.result is None or session.result.branch is None:
        raise BadInput(f"{session.session} has no branch: it ended as {session.status.value} and changed nothing")
    return session.result.branch
