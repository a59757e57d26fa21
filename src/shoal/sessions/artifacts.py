"""Collect artifacts: a short-lived sandbox reads the files that an ended agent left, and Shoal stores copies."""

import asyncio
import importlib.resources
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.databases.session_database import SessionDatabase
from shoal.errors import FAULTS, Broken
from shoal.model.artifact import Artifact, ProducedArtifact, fault
from shoal.model.command import Command
from shoal.model.policy import Layers, Policy
from shoal.model.results import WorkerResult
from shoal.proc import Stream
from shoal.sessions.context import RunContext
from shoal.sessions.sandboxed import open_sandboxed
from shoal.sessions.session_dir import SYSTEM_PATH
from shoal.sessions.worker import Session
from shoal.workspaces.kind import Workspace

SECONDS = 60.0
MOST_BYTES = 8 * 2**20
MOST_ALL_BYTES = 32 * 2**20
MOST_LINE_BYTES = 200

_STATES = {
    "missing": "is missing",
    "link": "is a symbolic link or behind one; only regular files are passed on",
    "blocked": "is missing: a part of its path is not a folder",
    "folder": "is a folder; only regular files are passed on",
    "special": "is not a regular file; only regular files are passed on",
    "shut": "cannot be read",
    "large": f"is larger than {MOST_BYTES // 2**20} MiB",
    "crowded": f"is too large: the artifacts of one agent may have {MOST_ALL_BYTES // 2**20} MiB in total",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The artifacts that an agent left; *problems* concern required artifacts, *notes* the others."""

    produced: tuple[ProducedArtifact, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundFile:
    """What the sandbox reported for one path: its *state*, and the *content* of a file."""

    state: str
    content: bytes = b""


async def collect_artifacts(context: RunContext, workspace: Workspace, declared: Sequence[Artifact]) -> Collected:
    """Read the *declared* files; problems are returned, never raised.

    Call it after the agent has ended and before its workspace is recycled.
    """
    if not declared:
        return Collected()
    policy = reading(context, workspace.path, workspace.sealing)
    try:
        found = await read_files(context, policy, workspace.path, [artifact.path for artifact in declared])
    except TimeoutError:
        return _unread(declared, f"could not be read within {SECONDS:.0f} s")
    except FAULTS as error:
        return _unread(declared, f"could not be read: {error}")
    return await _check_artifacts(declared, found)


async def read_files(
    context: RunContext, policy: Policy, folder: Path, paths: Sequence[str], *, most: int = MOST_BYTES
) -> list[FoundFile]:
    """Read files below *folder*, where an ended agent could write, in a short-lived sandbox that follows no links."""
    token, all_bytes = secrets.token_hex(16), max(MOST_ALL_BYTES, most)
    output = _ReaderOutput(all_bytes)
    async with open_sandboxed(
        context.sandbox, _command(folder, paths, token, most, all_bytes), policy, sink=output.feed
    ) as sandboxed:
        async with asyncio.timeout(SECONDS):
            await sandboxed.wait()
    return parse_files(bytes(output.stdout), token, len(paths))


def parse_files(output: bytes, token: str, count: int) -> list[FoundFile]:
    """Parse the sandbox's output about *count* files; raise `Broken` if it is incomplete."""
    found, at = [], 0
    for _ in range(count):
        end = output.find(b"\n", at, at + MOST_LINE_BYTES)
        words = output[at : max(end, at)].decode(errors="replace").split(" ")
        # Content is preceded by its length, and cannot contain the token, which was made after the agent had ended.
        if len(words) != 3 or words[0] != token or not words[2].isdecimal():
            raise Broken("the sandbox that reads files gave an invalid answer")
        size = int(words[2]) if words[1] == "file" else 0
        at = end + 1 + size
        if at > len(output):
            raise Broken("the sandbox that reads files ended too early")
        found.append(FoundFile(words[1], output[at - size : at]))
    return found


def store_artifacts(context: RunContext, session: str, produced: Sequence[ProducedArtifact]) -> dict[str, str]:
    """Write copies into the results folder, and return their paths by the artifacts' labels; we choose the names."""
    if not produced:
        return {}
    folder = context.paths.results / session
    folder.mkdir(mode=0o700, exist_ok=True)
    return {entry.label: str(_write_atomically(folder / entry.file, entry.content)) for entry in produced}


def keep_bytes(context: RunContext, session: str, contents: Mapping[str, bytes]) -> dict[str, str]:
    """Write files of ours into the results folder, and return their paths by name."""
    folder = context.paths.results / session
    folder.mkdir(mode=0o700, exist_ok=True)
    return {name: str(_write_atomically(folder / name, content)) for name, content in contents.items()}


def read_back(paths: Mapping[str, str], declared: Sequence[Artifact]) -> tuple[ProducedArtifact, ...]:
    """Load the stored artifacts of one worker; raise `Broken` if a copy is missing."""
    return tuple(_read_back(artifact, Path(paths[artifact.name])) for artifact in declared if artifact.name in paths)


class _ReaderOutput:
    """Takes the sandbox's output, up to a limit."""

    def __init__(self, most: int) -> None:
        self.stdout = bytearray()
        self._most = most

    def feed(self, stream: Stream, data: bytes) -> None:
        if stream is Stream.STDOUT and len(self.stdout) <= self._most + 2**20:
            self.stdout += data


def _command(folder: Path, paths: Sequence[str], token: str, most: int, most_all: int) -> Command:
    script = importlib.resources.files("shoal.sessions").joinpath("artifacts.sh").read_text()
    env = {
        "PATH": ":".join(SYSTEM_PATH),
        "LC_ALL": "C",
        "TOKEN": token,
        "MOST": str(most),
        "MOST_ALL": str(most_all),
    }
    return Command(argv=("/bin/sh", "-c", script, "artifacts", *paths), cwd=folder, env=env)


def reading(context: RunContext, folder: Path, layers: Layers | None = None) -> Policy:
    """Return the policy of a sandbox that only reads below *folder*."""
    policy = context.policy(token=secrets.token_hex(8), read=(folder,), write=(), layers=layers)
    # As the owner of the files, and able to read files of mode 000, as for the seal.
    return replace(policy, uid=os.getuid(), gid=os.getgid(), capabilities=("CAP_DAC_READ_SEARCH",))


def _unread(declared: Sequence[Artifact], why: str) -> Collected:
    return _report_problem([(artifact, why) for artifact in declared])


async def _check_artifacts(declared: Sequence[Artifact], found: Sequence[FoundFile]) -> Collected:
    produced, wrong = [], []
    for artifact, file in zip(declared, found, strict=True):
        why = fault(artifact, file.content) if file.state == "file" else _STATES.get(file.state, "cannot be read")
        if why is None:
            produced.append(
                ProducedArtifact(name=artifact.name, type=artifact.type, path=artifact.path, content=file.content)
            )
        else:
            wrong.append((artifact, why))
        await asyncio.sleep(0)  # parsing 8 MiB of JSON takes a while, and others are waiting
    return replace(_report_problem(wrong), produced=tuple(produced))


def _report_problem(wrong: Sequence[tuple[Artifact, str]]) -> Collected:
    sentences = [(artifact.required, f"artifact {artifact.name}: {artifact.path} {why}") for artifact, why in wrong]
    return Collected(
        problems=tuple(text for is_required, text in sentences if is_required),
        notes=tuple(text for is_required, text in sentences if not is_required),
    )


def _write_atomically(path: Path, content: bytes) -> Path:
    """Write to a temporary file and rename: a copy is complete, or there is none."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(3)}.new")
    aside.write_bytes(content)
    return aside.replace(path)


def _read_back(artifact: Artifact, path: Path) -> ProducedArtifact:
    try:
        with open(path, "rb", opener=_not_through_links) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Broken(
            f"artifact {artifact.name} was stored as {path}, which cannot be read: {error.strerror}"
        ) from error
    if (why := fault(artifact, content)) or len(content) > MOST_BYTES:
        raise Broken(f"artifact {artifact.name} was stored as {path}, which has changed since: it {why or 'has grown'}")
    return ProducedArtifact(name=artifact.name, type=artifact.type, path=artifact.path, content=content)


def _not_through_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


DATABASE_BYTES = 64 * 2**20
ENDINGS = ("", "-wal")
"""The database file, and what SQLite had not yet written into it when the agent was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDatabase:
    """The copy of an agent's database, as an artifact, or why it could not be copied."""

    artifacts: dict[str, str] = field(default_factory=dict)
    unkept: tuple[str, ...] = ()

    def add_to(self, result: WorkerResult) -> WorkerResult:
        """Add to *result* what was stored and what was not."""
        if not self.artifacts and not self.unkept:
            return result
        artifacts = {**result.artifacts, **self.artifacts}
        return replace(result, artifacts=artifacts, unkept=(*result.unkept, *self.unkept))


async def keep_database(session: Session) -> KeptDatabase:
    """Copy the database, if the user asked for it and the agent made one."""
    context, directory = session.context, session.directory
    if not context.keeps_database:
        return KeptDatabase()
    if directory.shared is not None:
        return await _export_database(session, directory.shared)
    folder, name = directory.database.parent, directory.database.name
    names = [f"{name}{ending}" for ending in ENDINGS]
    try:
        policy = reading(context, directory.own)
        paths = [f"{folder.name}/{name}" for name in names]
        found = await read_files(context, policy, directory.own, paths, most=DATABASE_BYTES)
    except FAULTS as error:
        return KeptDatabase(unkept=(f"{name}: it could not be read: {error or 'it took too long'}",))
    if found[0].state == "missing":
        return KeptDatabase()
    if wrong := [_fault(label, file) for label, file in zip(names, found, strict=True) if not _is_fine(file)]:
        return KeptDatabase(unkept=tuple(wrong))
    copies = {label: file.content for label, file in zip(names, found, strict=True) if file.state == "file"}
    paths_kept = keep_bytes(context, session.id, copies)
    return KeptDatabase(artifacts={"database": paths_kept[name]})


async def _export_database(session: Session, database: SessionDatabase) -> KeptDatabase:
    """Store what a session has on the database server as SQL."""
    context, name = session.context, f"agent_{session.id}.sql"
    if context.databases is None:
        return KeptDatabase()
    try:
        content = await context.databases.export(database, DATABASE_BYTES)
    except FAULTS as error:
        return KeptDatabase(unkept=(f"{name}: it could not be exported: {error or 'it took too long'}",))
    if content is None:
        return KeptDatabase()
    return KeptDatabase(artifacts={"database": keep_bytes(context, session.id, {name: content})[name]})


def _is_fine(file: FoundFile) -> bool:
    return file.state in ("file", "missing")


def _fault(name: str, file: FoundFile) -> str:
    large = f"it is larger than {DATABASE_BYTES // 2**20} MiB"
    return f"{name}: {large if file.state in ('large', 'crowded') else 'it is not a readable regular file'}"
