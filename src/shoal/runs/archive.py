"""Export a run to one archive, and import an archive into another repository.

An archive comes from somebody else: its content is limited and checked before anything is written, we name its
members, and no path from it is used.
"""

import asyncio
import contextlib
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal import __version__
from shoal.errors import BadInput
from shoal.git.imports import ImportRefused, import_history, release
from shoal.git.refs import ABSENT, Move, list_refs, move
from shoal.git.run import git
from shoal.model.events import Event, Recorded, RunPlanned, RunStarted, SessionEnded, SessionStarted, StepEnded
from shoal.model.repository import Repository
from shoal.store.codec import UnknownEvent, decode, encode
from shoal.store.documents import run_document
from shoal.store.fold import report
from shoal.store.kind import EventRow
from shoal.store.lock import hold_lock, is_locked
from shoal.store.paths import StatePaths, component
from shoal.store.reader import list_runs, read_events, read_session, store_at
from shoal.store.run_state import RunState

VERSION = 1
MANIFEST, EVENTS, LOGS, REPORT, BUNDLE = "manifest.json", "events.jsonl", "logs.jsonl", "report.json", "work.bundle"
MAX_BYTES: Mapping[str, int] = {
    MANIFEST: 16 * 2**20,
    EVENTS: 512 * 2**20,
    LOGS: 4 * 2**30,
    REPORT: 512 * 2**20,
    BUNDLE: 512 * 2**20,
}
MAX_FILE_BYTES = 512 * 2**20
MAX_FILES = 10_000
MAX_LINE_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 2**20
BATCH = 1000
_FILE = re.compile(r"files/(0|[1-9]\d{0,4})")
_LOCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """The imported refs by their names here, and which of them were renamed."""

    run: str
    sessions: int
    refs: tuple[str, ...]
    renamed: tuple[str, ...]


async def export_run(repository: Repository, paths: StatePaths, run: RunState, target: Path) -> Path:
    """Write *run* to *target*, or nothing: events, logs, report, artifacts, and its branches as a bundle."""
    if is_locked(paths.run_lock(run.run)):
        raise BadInput(f"{run.run} is still running; wait until it ends with `shoal wait {run.run}`")
    events = list(read_events(paths, run.run))
    refs = await _existing_refs(repository, _work_refs(run.run, [recorded.event for recorded in events]))
    files = list(_result_files(paths, run))
    with tempfile.TemporaryDirectory(prefix=".shoal-export-", dir=target.parent) as folder:
        aside = Path(folder)
        manifest = {
            "version": VERSION,
            "shoal": __version__,
            "run": run.run,
            "refs": refs,
            "files": [[path.parent.name if path.parent != paths.results else "", path.name] for path in files],
        }
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=1))
        (aside / REPORT).write_text(json.dumps(run_document(report(run)), indent=1))
        _write_events(aside / EVENTS, ((None, recorded) for recorded in events))
        sessions = sorted(_sessions(recorded.event for recorded in events))
        _write_events(aside / LOGS, ((name, recorded) for name in sessions for recorded in read_session(paths, name)))
        members = [(name, aside / name) for name in (MANIFEST, REPORT, EVENTS, LOGS)]
        if refs:
            await git(repository.git, "bundle", "create", "--quiet", str(aside / BUNDLE), *refs)
            members.append((BUNDLE, aside / BUNDLE))
        members += [(f"files/{number}", path) for number, path in enumerate(files)]
        await asyncio.to_thread(_pack, aside / "archive", members)
        (aside / "archive").replace(target)
    return target


def _work_refs(run: str, events: list[Event]) -> list[str]:
    """Name the refs that may hold work of *run*; only names of ours, whatever the events say."""
    results = [event.result for event in events if isinstance(event, SessionEnded)]
    names = [f"refs/heads/{result.branch}" for result in results if (result.branch or "").startswith("agent/")]
    names += [ref for result in results for ref in result.kept_refs if ref.startswith("refs/shoal/kept/")]
    return [*dict.fromkeys(names), f"refs/heads/shoal/{run}"]


async def _existing_refs(repository: Repository, names: list[str]) -> dict[str, str]:
    known = {prefix: await list_refs(repository, prefix) for prefix in ("refs/heads", "refs/shoal/kept")}
    found = {**known["refs/heads"], **known["refs/shoal/kept"]}
    return {name: found[name] for name in names if name in found}


def _result_files(paths: StatePaths, run: RunState) -> Iterator[Path]:
    """List the files that sessions and steps left; links do not count."""
    names = [session for step in run.steps.values() for session in step.sessions]
    folders = [*names, *(f"{run.run}-{step}" for step in run.steps), paths.recording(run.run).name]
    for folder in (paths.results / component(name) for name in folders):
        if folder.is_dir() and not folder.is_symlink():
            yield from (path for path in sorted(folder.iterdir()) if path.is_file() and not path.is_symlink())
    patches = (paths.results / f"{name}.patch" for name in names)
    yield from (path for path in patches if path.is_file() and not path.is_symlink())


def _write_events(path: Path, events: Iterator[tuple[str | None, Recorded]]) -> None:
    with path.open("w") as file:
        for session, recorded in events:
            kind, body = type(recorded.event).__name__, encode(recorded.event)
            file.write(json.dumps({"at": recorded.at, "session": session, "kind": kind, "body": body}) + "\n")


def _pack(target: Path, members: list[tuple[str, Path]]) -> None:
    with tarfile.open(target, "w:gz", compresslevel=6) as archive:
        for name, path in members:
            entry = tarfile.TarInfo(name)  # without times, names and modes of this machine
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(entry, file)


async def import_run(repository: Repository, paths: StatePaths, archive: Path) -> ImportedRun:
    """Import the run in *archive* into this repository; raise `BadInput` for an invalid archive, with nothing changed.

    Its record is written last: after a kill before that, the same import starts again.
    """
    paths.create()
    trash = paths.root / "trash"
    trash.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="import-", dir=trash) as folder:
        aside = Path(folder)
        await asyncio.to_thread(_unpack, archive, aside)
        content = await asyncio.to_thread(_read, aside, paths)
        async with hold_lock(paths.locks / "import.lock", timeout=_LOCK_SECONDS):
            _assert_new(paths, content)
            refs = await _take_refs(repository, content, aside)
            for number, (where, name) in content.files.items():
                (paths.results / where).mkdir(mode=0o700, exist_ok=True)
                (aside / f"file-{number}").replace(paths.results / where / name)
            await asyncio.to_thread(_record, paths, content, aside)
    renamed = tuple(ref for ref in refs if ref.startswith("refs/shoal/import/"))
    return ImportedRun(content.run, len(content.sessions), tuple(refs), renamed)


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of an archive, checked."""

    run: str
    events: list[EventRow]
    sessions: frozenset[str]
    refs: Mapping[str, str]
    files: Mapping[int, tuple[str, str]] = field(default_factory=dict)


def _unpack(archive: Path, aside: Path) -> None:
    """Copy the members of an archive into files that we name."""
    seen: set[str] = set()
    try:
        with tarfile.open(archive, "r|gz") as packed:
            for entry in packed:
                name = f"file-{found[1]}" if (found := _FILE.fullmatch(entry.name)) else entry.name
                most = MAX_FILE_BYTES if found else MAX_BYTES.get(entry.name, -1)
                if not entry.isreg() or most < 0 or name in seen or len(seen) > MAX_FILES:
                    raise BadInput(f"{archive} is not an archive of a run: it has {entry.name[:80]!r}")
                if entry.size > most:
                    raise BadInput(f"{archive}: {entry.name} has {entry.size} bytes; at most {most} are allowed")
                seen.add(name)
                source = packed.extractfile(entry)
                with (aside / name).open("xb") as file:
                    while source is not None and (chunk := source.read(2**20)):
                        file.write(chunk)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise BadInput(f"{archive} cannot be read as an archive of a run: {error}") from error
    if missing := {MANIFEST, EVENTS, LOGS} - seen:
        raise BadInput(f"{archive} is not an archive of a run: it lacks {', '.join(sorted(missing))}")


def _read(aside: Path, paths: StatePaths) -> _Content:
    try:
        return _check(json.loads((aside / MANIFEST).read_bytes()), aside, paths)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadInput(f"the archive is damaged: {error!r}"[:500]) from error


def _check(manifest: dict[str, Any], aside: Path, paths: StatePaths) -> _Content:
    if manifest["version"] != VERSION:
        raise BadInput(f"the archive has version {manifest['version']!r}; this Shoal reads {VERSION}: upgrade it")
    run = component(str(manifest["run"]))
    rows = list(_read_rows(aside / EVENTS))
    events = [event for _, _, event in rows]
    if not any(isinstance(event, RunStarted) for event in events) or any(event.run != run for event in events):
        raise BadInput(f"the archive is damaged: its events are not those of {run!r}")
    sessions = frozenset(component(name) for name in _sessions(events))
    allowed = set(_work_refs(run, events))
    refs = {str(name): str(commit) for name, commit in manifest["refs"].items()}
    if unknown := set(refs) - allowed:
        raise BadInput(f"the archive is damaged: no session has {min(unknown)!r}")
    steps = {event.step for event in events if isinstance(event, StepEnded)}
    folders = {"", *sessions, *(f"{run}-{step}" for step in steps), paths.recording(run).name}
    files = {number: (str(where), component(str(name))) for number, (where, name) in enumerate(manifest["files"])}
    for number, (where, name) in files.items():
        is_patch = name.removesuffix(".patch") in sessions and name.endswith(".patch")
        if where not in folders or (not where and not is_patch) or not (aside / f"file-{number}").exists():
            raise BadInput(f"the archive is damaged: {name!r} belongs to none of its sessions")
        component(where or ".patch")
    here = {(where, name): str(paths.results / where / name) for where, name in files.values()}
    kept = [EventRow.of(_with_paths(event, here), at) for at, _, event in rows if not isinstance(event, RunPlanned)]
    return _Content(run, kept, sessions, refs, files)


def _read_rows(path: Path) -> Iterator[tuple[float, str | None, Event]]:
    """Read events line by line; unknown kinds are left out."""
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            row = json.loads(line)
            event = decode(str(row["kind"]), str(row["body"]))
            if not isinstance(event, UnknownEvent):
                yield float(row["at"]), row["session"], event


def _sessions(events: Iterator[Event] | list[Event]) -> set[str]:
    return {event.session for event in events if isinstance(event, SessionStarted | SessionEnded)}


def _with_paths(event: Event, here: Mapping[tuple[str, str], str]) -> Event:
    """Point an event to the files that came with it, at their new paths, and to no others."""
    match event:
        case SessionEnded(result=result):
            return replace(event, result=replace(result, artifacts=_move_paths(result.artifacts, here), raw=None))
        case StepEnded(artifacts=artifacts):
            return replace(event, artifacts=_move_paths(artifacts, here))
        case _:
            return event


def _move_paths(artifacts: Mapping[str, str], here: Mapping[tuple[str, str], str]) -> dict[str, str]:
    places = {label: here.get((Path(path).parent.name, Path(path).name)) for label, path in artifacts.items()}
    return {label: place for label, place in places.items() if place is not None}


def _assert_new(paths: StatePaths, content: _Content) -> None:
    if content.run in list_runs(paths):
        raise BadInput(f"{content.run} is already in this repository; `shoal status {content.run}` shows it")
    known = _sessions([recorded.event for recorded in read_events(paths)])
    if taken := content.sessions & known:
        raise BadInput(f"the session {min(taken)} of {content.run} is already in this repository, in another run")


async def _take_refs(repository: Repository, content: _Content, aside: Path) -> list[str]:
    """Import the objects, then create the refs: under their names, or below `refs/shoal/import` if those are taken."""
    if not content.refs:
        return []
    tips = tuple(dict.fromkeys(content.refs.values()))
    pack = await asyncio.to_thread(_pack_of, aside / BUNDLE, aside / "pack")
    work = await import_history(repository, pack, tips)
    if isinstance(work, ImportRefused):
        raise BadInput(f"the work in the archive is refused: {work.why}")
    try:
        return [await _make_ref(repository, content.run, ref, commit) for ref, commit in content.refs.items()]
    finally:
        release(work)


async def _make_ref(repository: Repository, run: str, ref: str, commit: str) -> str:
    names = (ref, f"refs/shoal/import/{run}/{ref.removeprefix('refs/').removeprefix('heads/')}")
    for name in names:
        known = (await list_refs(repository, name)).get(name)
        if known == commit or (known is None and await move(repository, [Move(name, commit, ABSENT)])):
            return name
    raise BadInput(f"{ref} and {names[1]} are both taken here; remove the second with `git update-ref -d`")


def _pack_of(bundle: Path, target: Path) -> Path:
    """Copy the pack out of a bundle; its header is only used to find where the pack begins."""
    if not bundle.exists():
        raise BadInput("the archive is damaged: it names branches, but has no bundle of them")
    with bundle.open("rb") as file, target.open("xb") as pack:
        if not file.readline(80).startswith((b"# v2 git bundle", b"# v3 git bundle")):
            raise BadInput("the archive is damaged: its bundle is not a git bundle")
        while (line := file.readline(4096)) not in (b"\n", b""):
            if line.startswith(b"-") or file.tell() > MAX_HEADER_BYTES:
                raise BadInput("the archive is damaged: its bundle is incomplete")
        while chunk := file.read(2**20):
            pack.write(chunk)
    return target


def _record(paths: StatePaths, content: _Content, aside: Path) -> None:
    """Write the logs of the sessions, and last the events that make the run known."""
    store = store_at(paths)
    for session in content.sessions:  # an earlier import may have been killed
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{paths.session_db(session)}{suffix}").unlink(missing_ok=True)
    rows: dict[str, list[EventRow]] = {}
    for at, name, event in _read_rows(aside / LOGS):
        is_ours = name in content.sessions and event.run == content.run and getattr(event, "session", None) == name
        if name is not None and is_ours:
            rows.setdefault(name, []).append(EventRow.of(event, at))
            if len(rows[name]) >= BATCH:
                _write_log(store.session_log(name), rows.pop(name))
    for session, rest in rows.items():
        _write_log(store.session_log(session), rest)
    _write_log(store.ledger(), content.events)


def _write_log(log: Any, rows: list[EventRow]) -> None:  # noqa: ANN401 - a log of any store
    with contextlib.closing(log):
        log.write(rows)


def default_name(run: str) -> str:
    """Return the default file name for the archive of *run*."""
    return f"{run.replace(os.sep, '-')}.shoal.tar.gz"
