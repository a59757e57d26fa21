"""The last resort for work that no branch can hold: an archive of its raw files on a ref of ours, before they go."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import FAULTS, Broken
from shoal.git.commits import Commit, write_commit
from shoal.git.refs import ABSENT, Move, move, value
from shoal.git.run import git, git_text
from shoal.model.command import Command
from shoal.model.events import SessionEnded
from shoal.model.repository import Repository
from shoal.proc import Stream
from shoal.proc.free_space import above_floor
from shoal.runs.removable import ARCHIVE, Salvaged, command_to_unpack
from shoal.sessions.context import RunContext
from shoal.sessions.sandboxed import git_environment, open_sandboxed
from shoal.store.fold import fold
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.workspaces.mount import list_mounts, unmount
from shoal.workspaces.quota import open_disk_again
from shoal.workspaces.remove import remove_all

FOLDER = "refs/shoal/salvage"
SECONDS = 900.0
ERROR_BYTES = 2000
PARTS = ("upper", "git")
"""What of a session directory is work: its home may have the user's credentials."""
# As it lies there, with holes; in a sandbox, because a file of an agent's may be anything.
PACK = """
set -eu
exec tar --create --absolute-names --sparse --one-file-system --warning=no-file-ignored \\
  --use-compress-program='gzip -1' --file=- "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFiles:
    """A session directory or a workspace with files that are on no branch, and whose they are."""

    path: Path
    run: str
    session: str

    @property
    def ref(self) -> str:
        """The ref that is to hold their archive."""
        suffix = "" if self.path.name == self.session else "-workspace"
        return f"{FOLDER}/{self.run}/{self.session}{suffix}"


async def salvage_all(context: RunContext, found: Sequence[RawFiles]) -> Salvaged:
    """Archive the raw files one after the other; a ref holds each archive, and the ledger says so."""
    await remove_all(*context.paths.root.glob("salvage-*"))  # of a command that was killed
    refs: dict[Path, str] = {}
    failures: dict[Path, str] = {}
    for raw in found:
        try:
            refs[raw.path] = await _salvage(context, raw)
        except FAULTS as error:
            failures[raw.path] = str(error) or "it took too long"
    return Salvaged(refs=refs, failures=failures)


async def _salvage(context: RunContext, raw: RawFiles) -> str:
    for place in list_mounts(raw.path):
        unmount(place)
    async with open_disk_again(raw.path) if raw.path.name == raw.session else contextlib.nullcontext(raw.path) as disk:
        folders = [disk / part for part in PARTS] if raw.path.name == raw.session else [disk]
        folders = [folder for folder in folders if folder.is_dir() and any(folder.iterdir())]
        if not folders:
            return ""
        async with _archive(context, folders) as archive:
            await _hold(context.repository, raw, archive)
    await _record(context, raw)
    return raw.ref


@contextlib.asynccontextmanager
async def _archive(context: RunContext, folders: Sequence[Path]) -> AsyncIterator[Path]:
    """Pack *folders* into a file of ours; raise `Broken` where that is not all of them."""
    archive = context.paths.root / f"salvage-{secrets.token_hex(4)}"
    # by their whole names: Landlock does not let tar open the folder above them
    names = [_shorten_names(folders[0].parent), *map(str, folders)]
    env = git_environment(folders[0], folders[0])
    command = Command(argv=("/bin/sh", "-c", PACK, "salvage", *names), cwd=folders[0], env=env)
    policy = context.policy(token=secrets.token_hex(8), read=tuple(folders), write=())
    policy = replace(policy, capabilities=("CAP_DAC_READ_SEARCH",))
    said = bytearray()
    try:
        with archive.open("xb") as file:

            def take(stream: Stream, data: bytes) -> None:
                if stream is Stream.STDOUT:
                    file.write(data)
                else:
                    said.extend(data[:ERROR_BYTES])

            async with (
                above_floor(context.paths.root),
                open_sandboxed(context.sandbox, command, policy, sink=take) as process,
                asyncio.timeout(SECONDS),
            ):
                exit_ = await process.wait()
        if exit_.code != 0:
            raise Broken(f"tar cannot read all of it: {said.decode(errors='replace').strip()[-200:] or exit_}")
        yield archive
    finally:
        await remove_all(archive)


def _shorten_names(parent: Path) -> str:
    """Let tar name its entries from *parent* on; targets of symbolic links stay."""
    escaped = "".join(f"\\{char}" if char in "\\.[]*^$," else char for char in str(parent))
    return f"--transform=s,^{escaped}/,,S"


async def _hold(repository: Repository, raw: RawFiles, archive: Path) -> None:
    """Make a commit of *archive*, and hold it by the ref."""
    async with above_floor(archive.parent):
        blob = await git_text(repository.git, "hash-object", "-w", "--no-filters", "--", str(archive))
    tree = await _make_tree(repository, blob)
    text = f"Raw files of {raw.session}, which no branch could hold\n\nRun: {raw.run}\n"
    commit = write_commit(Commit(tree=tree, parents=(), message=text), repository, repository.lenders[0])
    if not await move(repository, [Move(raw.ref, commit, await value(repository, raw.ref) or ABSENT)]):
        raise Broken(f"{raw.ref} cannot be made")


async def _make_tree(repository: Repository, blob: str) -> str:
    done = await git(repository.git, "mktree", stdin=f"100644 blob {blob}\t{ARCHIVE}\n".encode())
    return done.stdout.decode().strip()


async def _record(context: RunContext, raw: RawFiles) -> None:
    """Record where the work of the session is now; one that the ledger does not know has only its ref."""
    run = fold(read_events(context.paths, raw.run)).runs.get(raw.run)
    for step in run.steps.values() if run is not None else ():
        session = step.sessions.get(raw.session)
        if session is not None and session.result is not None:
            refs = dict.fromkeys((*session.result.kept_refs, raw.ref))
            note = f"its raw files were archived: {command_to_unpack(raw.ref)}"
            notes = dict.fromkeys((*session.result.notes, note))
            result = replace(session.result, raw=None, kept_refs=tuple(refs), notes=tuple(notes))
            ended = SessionEnded(run=raw.run, step=step.step, session=raw.session, result=result)
            context.ledger.note(ended)
            await context.ledger.append(ended)


def list_raw_files(paths: StatePaths, found: Sequence[Path]) -> list[RawFiles]:
    """Say whose the raw files at *found* are; what no run in the ledger knows is of the run `unknown`."""
    owners: dict[Path, RawFiles] = {}
    for run in fold(read_events(paths)).runs.values():
        for session in (session for step in run.steps.values() for session in step.sessions.values()):
            workspace = paths.workspaces.joinpath(*Path(session.workspace).parts[-3:])
            for path in (paths.session_dir(session.session), workspace):
                owners[path] = RawFiles(path=path, run=run.run, session=session.session)
    return [owners.get(path) or RawFiles(path=path, run="unknown", session=path.name) for path in found]
