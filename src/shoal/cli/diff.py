"""`shoal diff`: what a session changed, all sessions together, or the difference between two."""

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Repo
from shoal.cli.output import Paint, escape
from shoal.cli.render.columns import some
from shoal.cli.render.patch import patch_lines
from shoal.cli.repository import RepositoryState, find_place, run_of
from shoal.errors import BadInput
from shoal.git.diff import list_changed_files, list_changed_paths, patch
from shoal.proc.pager import show_pages
from shoal.runs.inspect_work import open_combination, take_snapshot
from shoal.sessions.executable_config import flag_changes
from shoal.store.documents import text
from shoal.store.fold import report
from shoal.store.lookup import find_run, find_session
from shoal.store.run_state import SessionState


def warning(names: Sequence[str], paint: Paint) -> str:
    """Name the changed files that can run code on the user's machine."""
    return (
        f"{paint('warning:', 'warn')} review before you merge, these files can run code on your machine: {some(names)}"
    )


def has_secrets(places: Sequence[str]) -> str:
    """Say where the user's secrets are in the patch, which is never redacted."""
    return f"shoal: the patch contains your secrets, unredacted: {some(places)}"


def nothing(session: str, raw: str | None) -> str:
    """Say that there is nothing to show; work that could not be imported is in *raw*."""
    if raw:
        return f"shoal: {escape(session)} has no branch; its raw files are in {escape(raw)}"
    return f"shoal: {escape(session)} changed nothing"


def same(first: str, second: str) -> str:
    """Say that two sessions produced the same files."""
    return f"shoal: there is no difference between {escape(first)} and {escape(second)}"


def line_of_running(session: str) -> str:
    """Say that the session is still running."""
    return f"shoal: {escape(session)} is still running; this is its work so far"


def line_of_omitted(sessions: Sequence[str]) -> str:
    """Name the sessions that are left out because they conflict with the rest."""
    return f"shoal: left out because of conflicts: {some(sessions)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRequest:
    """What the user asked for; *form* is `--patch`, `--stat`, `--name-only` or `--json`."""

    first: str | None
    second: str | None
    is_combined: bool
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffResult:
    """What differs: as bytes, or as a document for `--json`."""

    executable: tuple[str, ...] = ()
    """Changed files that can run code on the user's machine."""
    patch: bytes = b""
    remarks: Sequence[str] = ()
    document: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommitPair:
    """Two commits, in a gitdir that has both, and the fields that describe them."""

    gitdir: Path
    base: str
    commit: str | None
    about: Mapping[str, object]
    remarks: tuple[str, ...] = ()
    nothing: str = ""
    """What to print if they are the same."""
    flagged: tuple[str, ...] | None = None
    """Files known to run code; `None` if they have to be found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWork:
    """A session with its commit: all of its work, or so far; `None` if there is none."""

    session: SessionState
    commit: str | None
    secrets: tuple[str, ...] = ()


async def look_at(place: RepositoryState, session: SessionState) -> SessionWork:
    """Find the work of *session*; a running agent does not notice."""
    if session.result is None:
        if session.status.is_interrupted:
            raise BadInput(
                f"{session.session} has no branch yet: it is {session.status.value}; `shoal clean` recovers its work"
            )
        kept = await take_snapshot(place.paths, run_of(place.state(), session).run, session.session)
        if kept is not None:
            return SessionWork(session=session, commit=kept.commit, secrets=kept.secrets)
        session = find_session(place.state(), session.session)  # it has ended meanwhile
    if session.result is None:
        raise BadInput(f"{session.session} was killed meanwhile; `shoal clean` recovers its work")
    return SessionWork(session=session, commit=session.result.commit, secrets=session.result.secrets)


async def compare(folder: Path, wanted: DiffRequest) -> DiffResult:
    """Compare what was asked for."""
    place = await find_place(folder)
    if wanted.is_combined:
        return await _combine(place, wanted)
    state = place.state()
    first = await look_at(place, find_session(state, wanted.first))
    if wanted.second is None:
        return await _read(_own(place, first), wanted.form)
    second = await look_at(place, find_session(state, wanted.second))
    return await _read(_between(place, first, second), wanted.form)


async def _combine(place: RepositoryState, wanted: DiffRequest) -> DiffResult:
    run = report(find_run(place.state(), wanted.first))
    async with open_combination(place.repository, run) as whole:
        about = {"run": run.run, "sessions": list(whole.sessions), "conflicting": list(whole.conflicting)}
        remarks = (line_of_omitted(whole.conflicting),) if whole.conflicting else ()
        sides = _CommitPair(
            gitdir=whole.gitdir,
            base=whole.base,
            commit=whole.commit,
            about=about,
            remarks=remarks,
            nothing=nothing(run.run, None),
        )
        return await _read(sides, wanted.form)


def _own(place: RepositoryState, work: SessionWork) -> _CommitPair:
    session, result = work.session, work.session.result
    remarks = (line_of_running(session.session),) if result is None else ()
    return _CommitPair(
        gitdir=place.repository.git,
        base=session.base,
        commit=work.commit,
        about={
            "session": session.session,
            "branch": None if result is None else result.branch,
            "running": result is None,
            "secrets": list(work.secrets),
        },
        remarks=(*remarks, *((has_secrets(work.secrets),) if work.secrets else ())),
        nothing=nothing(session.session, result.raw if result is not None else None),
        flagged=None if result is None else result.executable,
    )


def _between(place: RepositoryState, first: SessionWork, second: SessionWork) -> _CommitPair:
    """Compare the files of two sessions; a session without changes ends where it started."""
    both = (first.session, second.session)
    return _CommitPair(
        gitdir=place.repository.git,
        base=first.commit or first.session.base,
        commit=second.commit or second.session.base,
        about={"sessions": [session.session for session in both]},
        remarks=tuple(line_of_running(session.session) for session in both if session.result is None),
        nothing=same(*(session.session for session in both)),
    )


async def _read(sides: _CommitPair, form: str) -> DiffResult:
    if form == "--json":
        return DiffResult(document=await _document(sides))
    content = await patch(sides.gitdir, sides.base, sides.commit, form) if sides.commit else b""
    if sides.commit is None or not content:
        return DiffResult(remarks=(*sides.remarks, sides.nothing))
    flagged = await _find_flagged(sides, await list_changed_paths(sides.gitdir, sides.base, sides.commit))
    return DiffResult(executable=flagged, patch=content, remarks=sides.remarks)


async def _find_flagged(sides: _CommitPair, paths: Sequence[str]) -> tuple[str, ...]:
    """Find the files that can run code; a session has them from its run, by the rules of its file."""
    if sides.flagged is not None or sides.commit is None:
        return sides.flagged or ()
    return (await flag_changes(sides.gitdir, sides.base, sides.commit, paths)).held


async def _document(sides: _CommitPair) -> dict[str, object]:
    files = await list_changed_files(sides.gitdir, sides.base, sides.commit) if sides.commit else ()
    return {
        **sides.about,
        "base": sides.base,
        "commit": sides.commit,
        "executable_config": list(await _find_flagged(sides, [file.path for file in files])),
        "files": [file.as_fields() for file in files],
    }


PLAIN = ("", "cat")
HABITS = {"LESS": "FRX", "LV": "-c"}
"""What git passes to pagers unless the user has set it: quit after one page, and show colours."""


def show(lines: Iterable[str]) -> None:
    """Page escaped *lines*; the pager in a repository's configuration is never used."""
    shown = list(lines)
    command = os.environ.get("GIT_PAGER", os.environ.get("PAGER", "less"))
    if command not in PLAIN:
        encoded = (f"{line}\n".encode(errors="backslashreplace") for line in shown)
        output.flush()
        if show_pages(encoded, command, HABITS | os.environ):
            return
    output.print_out("\n".join(shown))


First = Annotated[
    str | None,
    typer.Argument(
        metavar="SESSION",
        help="A session: its name, step, branch, or a unique prefix or suffix; default: the latest. "
        "With --combined, a run.",
        show_default=False,
    ),
]
Second = Annotated[
    str | None,
    typer.Argument(metavar="OTHER", help="A second session: show how it differs from the first.", show_default=False),
]
Combined = Annotated[
    bool, typer.Option("--combined", help="All successful sessions of a run, merged outside your checkout.")
]


def command(
    session: First = None,
    other: Second = None,
    combined: Combined = False,
    stat: Annotated[bool, typer.Option("--stat", help="Show only how much changed in each file.")] = False,
    name_only: Annotated[bool, typer.Option("--name-only", help="Show only the names of the changed files.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the changed files as one JSON document.")] = False,
    repo: Repo = HERE,
) -> int:
    """Show what an agent changed.

    For a running agent, show its work so far. With two sessions, show how the second differs from
    the first. If stdout is not a terminal, print an exact patch for
    `git apply`. A warning lists changed files that can run code on your machine.
    """
    if stat + name_only + json > 1:
        raise BadInput("more than one of --stat, --name-only and --json; choose one")
    if combined and other is not None:
        raise BadInput("--combined takes a run, not two sessions; drop one of them")
    form = "--json" if json else "--stat" if stat else "--name-only" if name_only else "--patch"
    wanted = DiffRequest(first=session, second=other, is_combined=combined, form=form)
    _show(asyncio.run(compare(repo, wanted)))
    return 0


def _show(found: DiffResult) -> None:
    """Print a document, an exact patch, or pages for a terminal."""
    if found.document is not None:
        output.print_out(text(found.document))
        return
    for remark in found.remarks:
        output.print_err(remark)
    if output.is_terminal() and found.patch:
        # Inside the pages, because a pager hides what was printed before it.
        first = [warning(found.executable, output.paint())] if found.executable else []
        show([*first, *patch_lines(found.patch, output.paint())])
        return
    if found.executable:
        # On stderr, so that stdout stays a patch for `git apply`; and first, so that nobody overlooks it.
        output.print_err(warning(found.executable, output.paint(sys.stderr)))
    if found.patch:
        output.write_bytes(found.patch)
