"""`shoal diff`: what an agent changed, all of them together, or how the work of two differs."""

import asyncio
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.json_output import text
from shoal.cli.options import HERE, Repo
from shoal.cli.output import Paint, escape
from shoal.cli.render.columns import some
from shoal.cli.repository import RepositoryState, find_place, no_branch_yet
from shoal.errors import BadInput
from shoal.git.difference import list_changed_files, list_changed_paths, patch
from shoal.model.results import WorkerResult
from shoal.proc.pager import show_pages
from shoal.runs.inspect_work import combination
from shoal.sessions.executable_config import flag_changes
from shoal.store.fold import report
from shoal.store.lookup import find_run, find_session
from shoal.store.state import SessionState

HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
COLOURS = {"+": "good", "-": "bad"}


def patch_lines(patch: bytes, paint: Paint) -> Iterator[str]:
    """Give the patch line by line, escaped and then coloured.

    The lines of a hunk are counted: a file that has `++ b/other` in it must not look like the head of another.
    """
    old = new = 0
    for line in patch.decode(errors="surrogateescape").removesuffix("\n").split("\n"):
        shown = escape(line, keep="\t")
        if old > 0 or new > 0:
            old -= line[:1] in ("-", " ", "")
            new -= line[:1] in ("+", " ", "")
            colour = COLOURS.get(line[:1])
        elif (found := HUNK.match(line)) is not None:
            old, new = (1 if number is None else int(number) for number in found.groups())
            colour = "mark"
        else:
            colour = "bold" if line.startswith(("diff ", "--- ", "+++ ")) else None
        yield paint(shown, colour) if colour else shown


def warning(names: Sequence[str], paint: Paint) -> str:
    """Name the changed files that could run programs on the reader's machine."""
    return f"{paint('warning:', 'warn')} look before you merge, it changes what runs on your machine: {some(names)}"


def has_secrets(places: Sequence[str]) -> str:
    """Say where the reader's own secrets are in what follows: a patch is never changed."""
    return f"shoal: secrets of yours are in it, as they are: {some(places)}"


def nothing(session: str, raw: str | None) -> str:
    """Say that there is nothing to show; work that could not be brought in lies in *raw*."""
    if raw:
        return f"shoal: nothing of {escape(session)} is on a branch; its raw files are still in {escape(raw)}"
    return f"shoal: {escape(session)} changed nothing"


def same(one: str, other: str) -> str:
    """Say that two sessions came to the same files."""
    return f"shoal: there is no difference between {escape(one)} and {escape(other)}"


def omitted_line(sessions: Sequence[str]) -> str:
    """Say whose work is not shown, because it cannot be had together with the rest."""
    return f"shoal: left out, for they conflict with what is shown: {some(sessions)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a person asked for; *form* is `--patch`, `--stat`, `--name-only` or `--json`."""

    first: str | None
    second: str | None
    is_combined: bool
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffResult:
    """What differs: as bytes, or as a document where that was asked for."""

    executable: tuple[str, ...] = ()
    """Changed files that could run programs on the reader's machine."""
    patch: bytes = b""
    remarks: Sequence[str] = ()
    document: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """Two commits, in a gitdir that has both, and what a document says of them."""

    gitdir: Path
    base: str
    commit: str | None
    about: Mapping[str, object]
    remarks: tuple[str, ...] = ()
    nothing: str = ""
    """What to say where they are the same."""
    flagged: tuple[str, ...] | None = None
    """What is known to run code later; `None` has to be looked for."""


async def compare(folder: Path, wanted: Wanted) -> DiffResult:
    """Compare what was asked for."""
    place = await find_place(folder)
    if wanted.is_combined:
        return await _combine(place, wanted)
    state = place.state()
    first = find_session(state, wanted.first)
    if wanted.second is None:
        return await _read(_own(place, first), wanted.form)
    return await _read(_between(place, first, find_session(state, wanted.second)), wanted.form)


async def _combine(place: RepositoryState, wanted: Wanted) -> DiffResult:
    run = report(find_run(place.state(), wanted.first))
    async with combination(place.repository, run) as whole:
        about = {"run": run.run, "sessions": list(whole.sessions), "conflicting": list(whole.conflicting)}
        remarks = (omitted_line(whole.conflicting),) if whole.conflicting else ()
        sides = _Sides(
            gitdir=whole.gitdir,
            base=whole.base,
            commit=whole.commit,
            about=about,
            remarks=remarks,
            nothing=nothing(run.run, None),
        )
        return await _read(sides, wanted.form)


def _own(place: RepositoryState, session: SessionState) -> _Sides:
    result = _require_end(session)
    return _Sides(
        gitdir=place.repository.git,
        base=session.base,
        commit=result.commit,
        about={"session": session.session, "branch": result.branch, "secrets": list(result.secrets)},
        remarks=(has_secrets(result.secrets),) if result.secrets else (),
        nothing=nothing(session.session, result.raw),
        flagged=result.executable,
    )


def _between(place: RepositoryState, one: SessionState, other: SessionState) -> _Sides:
    """Compare the files that both came to; who changed nothing came to what it started from."""
    return _Sides(
        gitdir=place.repository.git,
        base=_require_end(one).commit or one.base,
        commit=_require_end(other).commit or other.base,
        about={"sessions": [one.session, other.session]},
        nothing=same(one.session, other.session),
    )


def _require_end(session: SessionState) -> WorkerResult:
    if session.result is None:
        raise no_branch_yet(session)
    return session.result


async def _read(sides: _Sides, form: str) -> DiffResult:
    if form == "--json":
        return DiffResult(document=await _document(sides))
    content = await patch(sides.gitdir, sides.base, sides.commit, form) if sides.commit else b""
    if sides.commit is None or not content:
        return DiffResult(remarks=(*sides.remarks, sides.nothing))
    flagged = await _flagged(sides, await list_changed_paths(sides.gitdir, sides.base, sides.commit))
    return DiffResult(executable=flagged, patch=content, remarks=sides.remarks)


async def _flagged(sides: _Sides, paths: Sequence[str]) -> tuple[str, ...]:
    """Name what runs code later: of one session what was found by its own run, with the rules of its file."""
    if sides.flagged is not None or sides.commit is None:
        return sides.flagged or ()
    return (await flag_changes(sides.gitdir, sides.base, sides.commit, paths)).held


async def _document(sides: _Sides) -> dict[str, object]:
    files = await list_changed_files(sides.gitdir, sides.base, sides.commit) if sides.commit else ()
    return {
        **sides.about,
        "base": sides.base,
        "commit": sides.commit,
        "executable_config": list(await _flagged(sides, [file.path for file in files])),
        "files": [file.as_fields() for file in files],
    }


PLAIN = ("", "cat")
HABITS = {"LESS": "FRX", "LV": "-c"}
"""What git tells pagers unless a person has told them something else: to end on one page, and to show colours."""


def show(lines: Iterable[str]) -> None:
    """Show escaped *lines* to a person; the pager of a repository's configuration is never asked for."""
    told = list(lines)
    command = os.environ.get("GIT_PAGER", os.environ.get("PAGER", "less"))
    if command not in PLAIN:
        encoded = (f"{line}\n".encode(errors="backslashreplace") for line in told)
        output.flush()
        if show_pages(encoded, command, HABITS | os.environ):
            return
    output.print_out("\n".join(told))


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
    _show(asyncio.run(compare(repo, wanted)))
    return 0


def _show(found: DiffResult) -> None:
    """Show it as its reader needs it: a document, a patch byte for byte, or pages for a person."""
    if found.document is not None:
        output.print_out(text(found.document))
        return
    for remark in found.remarks:
        output.print_err(remark)
    if output.is_terminal() and found.patch:
        # In the pages too, for they may cover what was said before them.
        first = [warning(found.executable, output.paint())] if found.executable else []
        show([*first, *patch_lines(found.patch, output.paint())])
        return
    if found.executable:
        # On stderr, so that what is piped to `git apply` stays a patch; and first, so that nobody overlooks it.
        output.print_err(warning(found.executable, output.paint(sys.stderr)))
    if found.patch:
        output.write_bytes(found.patch)
