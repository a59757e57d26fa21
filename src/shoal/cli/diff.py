"""`shoal diff`: what an agent changed."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.document import text
from shoal.cli.options import HERE, Repo, Session
from shoal.cli.place import found, no_branch_yet
from shoal.cli.render.diff import nothing, patch_lines, warning
from shoal.errors import BadInput
from shoal.git.difference import ChangedFile, changed_files, changed_paths, patch
from shoal.model.executable import executable_paths
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

    Where stdout is no terminal it is a patch for `git apply`, byte for byte. A warning on stderr names first what
    could run programs on your machine later.
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
        output.say(text(_document(session, files)))
    elif commit is None:
        output.tell(nothing(session.session, session.result.raw if session.result else None))
    else:
        # On stderr, so that what is piped to `git apply` stays a patch; and first, so that nobody overlooks it.
        if flagged := executable_paths(await changed_paths(gitdir, base, commit)):
            output.tell(warning(flagged, output.paint(sys.stderr)))
        _patched(await patch(gitdir, base, commit, form))
    return 0


def _patched(patch: bytes) -> None:
    if output.is_terminal():
        output.say("\n".join(patch_lines(patch, output.paint())))
    else:
        output.give(patch)


def _commit(session: SessionState) -> str | None:
    if session.result is None:
        raise no_branch_yet(session)
    return session.result.commit


def _document(session: SessionState, files: Sequence[ChangedFile]) -> dict[str, object]:
    branch = session.result.branch if session.result else None
    return {
        "session": session.session,
        "base": session.base,
        "branch": branch,
        "commit": _commit(session),
        "executable_config": list(executable_paths(file.path for file in files)),
        "files": [file.as_fields() for file in files],
    }
