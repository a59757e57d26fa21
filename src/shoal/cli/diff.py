"""`shoal diff`: what an agent changed."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.document import text
from shoal.cli.options import HERE, Repo, Session
from shoal.cli.place import found, no_branch_yet
from shoal.cli.render.diff import nothing, patch_lines
from shoal.errors import BadInput
from shoal.git.difference import changed_files, patch
from shoal.store.find import find_session
from shoal.store.fold import SessionState


def command(
    session: Session = None,
    stat: Annotated[bool, typer.Option("--stat", help="Only how much was changed in each file.")] = False,
    name_only: Annotated[bool, typer.Option("--name-only", help="Only the names of the changed files.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The changed files as one JSON document.")] = False,
    repo: Repo = HERE,
) -> int:
    """Show what an agent changed.

    Where stdout is no terminal it is a patch for `git apply`, byte for byte.
    """
    if stat + name_only + json > 1:
        raise BadInput("more than one of --stat, --name-only and --json; choose one")
    form = "--stat" if stat else "--name-only" if name_only else "--patch"
    return asyncio.run(_shown(session, "--json" if json else form, repo))


async def _shown(prefix: str | None, form: str, folder: Path) -> int:
    place = await found(folder)
    session = find_session(place.state(), prefix)
    gitdir, base, commit = place.repository.git, session.base, _commit(session)
    if form == "--json":
        files = await changed_files(gitdir, base, commit) if commit else ()
        output.say(text(_document(session, [file.as_fields() for file in files])))
    elif commit is None:
        output.tell(nothing(session.session))
    elif output.is_terminal():
        output.say("\n".join(patch_lines(await patch(gitdir, base, commit, form), output.paint())))
    else:
        output.give(await patch(gitdir, base, commit, form))
    return 0


def _commit(session: SessionState) -> str | None:
    if session.result is None:
        raise no_branch_yet(session)
    return session.result.commit


def _document(session: SessionState, files: list[dict[str, object]]) -> dict[str, object]:
    branch = session.result.branch if session.result else None
    return {
        "session": session.session,
        "base": session.base,
        "branch": branch,
        "commit": _commit(session),
        "files": files,
    }
