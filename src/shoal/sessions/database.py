"""Keep a copy of the agent's own database on request: a short sandbox reads it, and nobody opens it."""

from dataclasses import dataclass, field, replace

from shoal.errors import FAULTS
from shoal.model.results import WorkerResult
from shoal.sessions.artifacts import FoundFile, keep_bytes, read_files, reading
from shoal.sessions.worker import Session

MOST_BYTES = 64 * 2**20
ENDINGS = ("", "-wal")
"""The file, and what SQLite has not written into it yet when the agent was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDatabase:
    """The copy of an agent's database, as an artifact, or what could not be copied."""

    artifacts: dict[str, str] = field(default_factory=dict)
    unkept: tuple[str, ...] = ()

    def add_to(self, result: WorkerResult) -> WorkerResult:
        """Name in *result* what was kept and what was not."""
        if not self.artifacts and not self.unkept:
            return result
        artifacts = {**result.artifacts, **self.artifacts}
        return replace(result, artifacts=artifacts, unkept=(*result.unkept, *self.unkept))


async def keep_database(session: Session) -> KeptDatabase:
    """Copy the database, if it was asked for and the agent made one."""
    context, directory = session.context, session.directory
    if not context.keeps_database:
        return KeptDatabase()
    folder, name = directory.database.parent, directory.database.name
    names = [f"{name}{ending}" for ending in ENDINGS]
    try:
        policy = reading(context, directory.own)
        paths = [f"{folder.name}/{name}" for name in names]
        found = await read_files(context, policy, directory.own, paths, most=MOST_BYTES)
    except FAULTS as error:
        return KeptDatabase(unkept=(f"{name}: it could not be read: {error or 'it took too long'}",))
    if found[0].state == "missing":
        return KeptDatabase()
    if wrong := [_fault(label, file) for label, file in zip(names, found, strict=True) if not _is_fine(file)]:
        return KeptDatabase(unkept=tuple(wrong))
    copies = {label: file.content for label, file in zip(names, found, strict=True) if file.state == "file"}
    paths_kept = keep_bytes(context, session.id, copies)
    return KeptDatabase(artifacts={"database": paths_kept[name]})


def _is_fine(file: FoundFile) -> bool:
    return file.state in ("file", "missing")


def _fault(name: str, file: FoundFile) -> str:
    large = f"it is larger than {MOST_BYTES // 2**20} MiB"
    return f"{name}: {large if file.state in ('large', 'crowded') else 'it is no plain file that can be read'}"
