"""What `shoal diff` was asked to compare, and what it found: one session, two of them, or a whole run's work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.place import Place, found, no_branch_yet
from shoal.cli.render.diff import left_out, nothing, same
from shoal.engine.combination import combination
from shoal.git.difference import changed_files, changed_paths, patch
from shoal.model.executable import executable_paths
from shoal.model.results import WorkerResult
from shoal.store.find import find_run, find_session
from shoal.store.fold import SessionState, report


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a person asked for; *form* is `--patch`, `--stat`, `--name-only` or `--json`."""

    first: str | None
    second: str | None
    is_combined: bool
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
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


async def compared(folder: Path, wanted: Wanted) -> Comparison:
    """Compare what was asked for."""
    place = await found(folder)
    if wanted.is_combined:
        return await _combined(place, wanted)
    state = place.state()
    first = find_session(state, wanted.first)
    if wanted.second is None:
        return await _read(_own(place, first), wanted.form)
    return await _read(_between(place, first, find_session(state, wanted.second)), wanted.form)


async def _combined(place: Place, wanted: Wanted) -> Comparison:
    run = report(find_run(place.state(), wanted.first))
    async with combination(place.repository, run) as whole:
        about = {"run": run.run, "sessions": list(whole.sessions), "conflicting": list(whole.conflicting)}
        remarks = (left_out(whole.conflicting),) if whole.conflicting else ()
        sides = _Sides(
            gitdir=whole.gitdir,
            base=whole.base,
            commit=whole.commit,
            about=about,
            remarks=remarks,
            nothing=nothing(run.run, None),
        )
        return await _read(sides, wanted.form)


def _own(place: Place, session: SessionState) -> _Sides:
    result = _ended(session)
    return _Sides(
        gitdir=place.repository.git,
        base=session.base,
        commit=result.commit,
        about={"session": session.session, "branch": result.branch},
        nothing=nothing(session.session, result.raw),
    )


def _between(place: Place, one: SessionState, other: SessionState) -> _Sides:
    """Compare the files that both came to; who changed nothing came to what it started from."""
    return _Sides(
        gitdir=place.repository.git,
        base=_ended(one).commit or one.base,
        commit=_ended(other).commit or other.base,
        about={"sessions": [one.session, other.session]},
        nothing=same(one.session, other.session),
    )


def _ended(session: SessionState) -> WorkerResult:
    if session.result is None:
        raise no_branch_yet(session)
    return session.result


async def _read(sides: _Sides, form: str) -> Comparison:
    if form == "--json":
        return Comparison(document=await _document(sides))
    content = await patch(sides.gitdir, sides.base, sides.commit, form) if sides.commit else b""
    if sides.commit is None or not content:
        return Comparison(remarks=(*sides.remarks, sides.nothing))
    flagged = executable_paths(await changed_paths(sides.gitdir, sides.base, sides.commit))
    return Comparison(executable=tuple(flagged), patch=content, remarks=sides.remarks)


async def _document(sides: _Sides) -> dict[str, object]:
    files = await changed_files(sides.gitdir, sides.base, sides.commit) if sides.commit else ()
    return {
        **sides.about,
        "base": sides.base,
        "commit": sides.commit,
        "executable_config": list(executable_paths(file.path for file in files)),
        "files": [file.as_fields() for file in files],
    }
