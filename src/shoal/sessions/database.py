"""The agent's own database, kept beside its results where that was asked for: read out by a short box, never opened."""

from shoal.errors import ShoalError
from shoal.sessions.artifacts import FoundFile, kept_bytes, read_files, reading
from shoal.sessions.context import RunContext
from shoal.sessions.session_dir import SessionDir

MOST_BYTES = 64 * 2**20
ENDINGS = ("", "-wal")
"""The file, and what SQLite has not written into it yet when the agent was killed."""


async def keep_database(
    context: RunContext, session: str, session_dir: SessionDir
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Copy the database, if the agent made one: its path as an artifact, and what could not be kept."""
    if not context.keeps_database:
        return {}, ()
    folder, name = session_dir.database.parent, session_dir.database.name
    names = [f"{name}{ending}" for ending in ENDINGS]
    try:
        policy = reading(context, session_dir.own)
        paths = [f"{folder.name}/{one}" for one in names]
        found = await read_files(context, policy, session_dir.own, paths, most=MOST_BYTES)
    except (ShoalError, OSError, ValueError, TimeoutError) as error:
        return {}, (f"{name}: it could not be read: {error or 'it took too long'}",)
    if found[0].state == "missing":
        return {}, ()
    if wrong := [_fault(label, one) for label, one in zip(names, found, strict=True) if not _is_fine(one)]:
        return {}, tuple(wrong)
    copies = {label: one.content for label, one in zip(names, found, strict=True) if one.state == "file"}
    paths_kept = kept_bytes(context, session, copies)
    return {"database": paths_kept[name]}, ()


def _is_fine(one: FoundFile) -> bool:
    return one.state in ("file", "missing")


def _fault(name: str, one: FoundFile) -> str:
    large = f"it is larger than {MOST_BYTES // 2**20} MiB"
    return f"{name}: {large if one.state in ('large', 'crowded') else 'it is no plain file that can be read'}"
