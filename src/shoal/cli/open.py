"""`shoal open`: an agent's branch in a folder, for a person's editor."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.document import text
from shoal.cli.options import HERE, Json, Repo, Session
from shoal.cli.place import found, no_branch_yet
from shoal.cli.render.opening import opened_line
from shoal.engine.opening import Opened, open_branch
from shoal.errors import BadInput
from shoal.store.find import find_session
from shoal.store.fold import SessionState


def command(
    session: Session = None,
    path: Annotated[
        Path | None, typer.Option("--path", metavar="DIR", help="Where to; else .shoal/open/SESSION.")
    ] = None,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """Open an agent's branch in a folder for your editor.

    Only the folder is printed on stdout: `cd $(shoal open)`.
    """
    asyncio.run(_opened(session, path, repo, as_json=json))
    return 0


async def _opened(prefix: str | None, path: Path | None, folder: Path, *, as_json: bool) -> None:
    place = await found(folder)
    session = find_session(place.state(), prefix)
    branch = _branch(session)
    where = path.resolve() if path is not None else place.paths.root / "open" / session.session
    opened = await open_branch(place.repository, branch, where)
    if as_json:
        output.say(text({"session": session.session, "branch": branch, "path": str(opened.path), "new": opened.is_new}))
    else:
        _told(opened, branch, where)


def _told(opened: Opened, branch: str, wanted: Path) -> None:
    output.tell(opened_line(branch, is_new=opened.is_new, is_elsewhere=opened.path != wanted))
    output.say(str(opened.path))


def _branch(session: SessionState) -> str:
    if session.result is None:
        raise no_branch_yet(session)
    if session.result.branch is None:
        raise BadInput(f"{session.session} has no branch: it ended as {session.status.value} and changed nothing")
    return session.result.branch
