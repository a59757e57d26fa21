"""Keep an ended agent's work: seal it in a sandbox, import the pack, and create the branch; or keep the raw files."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.errors import Broken, ShoalError
from shoal.git.commits import contents
from shoal.git.diff import list_changed_paths
from shoal.git.gitdir import write_gitdir
from shoal.git.imports import MAX_BLOB_BYTES, ImportRefused, import_pack, release
from shoal.git.refs import ABSENT, Move, move, refusal, value
from shoal.git.run import git
from shoal.model.command import Command
from shoal.model.results import WorkerResult
from shoal.proc.free_space import DiskFull, above_floor
from shoal.sessions.context import RunContext
from shoal.sessions.executable_config import Flags, flag_changes
from shoal.sessions.sandboxed import git_environment, open_sandboxed
from shoal.sessions.seal import Seal, SealRequest, seal_work
from shoal.sessions.session_dir import SessionDir
from shoal.sessions.worker import Session, WorkerSpec
from shoal.workspaces.kind import Workspace
from shoal.workspaces.object_stores import objects_ready
from shoal.workspaces.overlay import is_empty

MOST_OBJECTS = 20_000
MOST_BYTES = 2**20
NAMED_AT_MOST = 20
NAME_CHARS = 300


async def find_secrets(context: RunContext, base: str, commit: str) -> tuple[str, ...]:
    """Name the files and commits since *base* that contain a secret, including earlier commits of the branch."""
    if not context.mask.has_long:
        return ()
    wanted = ("rev-list", "--objects", f"--max-count={MOST_OBJECTS}", commit, f"^{base}")
    done = await git(context.repository.git, *wanted, limit=MOST_OBJECTS * 200)
    rows = [line.partition(b" ") for line in done.stdout.split(b"\n")[:MOST_OBJECTS]]
    names = {name: path for name, _, path in rows if len(name) == context.repository.digits}  # the last may be cut off
    found: dict[str, None] = {}
    for name, content in zip(names, await contents(context.repository.git, list(names), limit=MOST_BYTES), strict=True):
        if content is not None and content.data and (secrets := context.mask.names_in(content.data)):
            found[f"{_place(name, content.kind, names[name])} ({', '.join(secrets)})"] = None
    return tuple(context.mask.text(place)[:NAME_CHARS] for place in list(found)[:NAMED_AT_MOST])


def _place(name: bytes, kind: str, path: bytes) -> str:
    if kind == "blob":
        return path.decode(errors="surrogateescape")
    return f"{kind} {name.decode()[:12]}"


LARGE_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWork:
    """Where the work is: on *branch*, nowhere because nothing changed, or still in raw files because of *failure*."""

    branch: str | None = None
    commit: str | None = None
    files_changed: int = 0
    refs: tuple[str, ...] = ()
    unkept: tuple[str, ...] = ()
    large: tuple[str, ...] = ()
    """Those of them that are too large for a branch."""
    special: tuple[str, ...] = ()
    unconverted: tuple[str, ...] = ()
    ignored: int = 0
    flags: Flags = field(default_factory=Flags)
    notes: tuple[str, ...] = ()
    """Remarks about how it was kept, if that is unusual."""
    secrets: tuple[str, ...] = ()
    failure: str | None = None
    is_disk_full: bool = False
    """Whether that is why it failed."""

    @property
    def must_stay(self) -> bool:
        """Return whether some of the work is only in the raw files."""
        return self.failure is not None or bool(self.unkept)

    @property
    def too_large(self) -> str | None:
        """Describe which files are not on the branch because of their size."""
        if not self.large:
            return None
        names = ", ".join(self.large[:LARGE_NAMED]) + (", …" if len(self.large) > LARGE_NAMED else "")
        count = "1 file is" if len(self.large) == 1 else f"{len(self.large)} files are"
        where = "the raw files have everything, the branch the rest" if self.commit else "its raw files stay"
        return f"{count} too large for a branch (over {MAX_BLOB_BYTES // 2**20} MiB): {names}; {where}"

    def on(self, result: WorkerResult, files: Path) -> WorkerResult:
        """Add to *result* where the work is; its raw files are in *files* if they could not be imported."""
        if self is NOTHING:
            return result
        return replace(
            result,
            branch=self.branch,
            commit=self.commit,
            files_changed=self.files_changed,
            unkept=(*self.unkept, *self.special),
            unconverted=self.unconverted,
            ignored=self.ignored,
            kept_refs=self.refs,
            executable=self.flags.held,
            instructions=self.flags.instructions,
            notes=(*result.notes, *self.notes),
            secrets=self.secrets,
            raw=str(files) if self.must_stay else None,
        )


NOTHING = KeptWork()
"""Nothing was changed."""


async def add_continued(context: RunContext, worker: WorkerSpec, work: KeptWork) -> KeptWork:
    """Count the files of the interrupted session that *worker* continued as its own work, even unchanged ones."""
    commit = work.commit or worker.base
    if worker.origin is None or commit is None or work.failure is not None:
        return work
    repository, branch = context.repository, f"refs/heads/{worker.branch}"
    if work.commit is None and not await move(repository, [Move(branch, commit, ABSENT)]):
        raise Broken(f"{worker.branch} exists already")
    paths = await list_changed_paths(repository.git, worker.origin, commit)
    flags = await flag_changes(repository.git, worker.origin, commit, paths, context.executable)
    return replace(work, branch=worker.branch, commit=commit, files_changed=len(paths), flags=flags)


async def keep_work(
    context: RunContext, workspace: Workspace, directory: SessionDir, *, branch: str, request: SealRequest
) -> KeptWork:
    """Bring the work to a branch; if the agent's own history is invalid, try again without it."""
    ref = f"refs/heads/{branch}"
    here = await value(context.repository, ref) if not workspace.is_overlay else None
    join = here if here not in (None, context.base.commit) else ""
    if workspace.is_overlay and not request.has_history and is_empty(workspace.changes):
        return NOTHING
    request = replace(request, join=join or "")
    try:
        async with _able_to_read(context, join) as there:
            seal = await seal_work(there, workspace, directory, request)
            result = await import_seal(there, seal, ref, here)
            if result.failure and request.has_history:
                why = result.failure
                seal = await seal_work(there, workspace, directory, replace(request, has_history=False))
                result = await import_seal(there, replace(seal, squashed=why), ref, here)
    except DiskFull as error:  # without their history the files take as much space
        return KeptWork(failure=f"sealing failed: {error}", is_disk_full=True)
    if result.commit is None and result.failure is None and here == context.base.commit:
        await move(context.repository, [Move(ref, ABSENT, here)])
    return result


@contextlib.asynccontextmanager
async def _able_to_read(context: RunContext, join: str | None) -> AsyncIterator[RunContext]:
    """Let the seal read a commit that the host made in a linked worktree meanwhile, if there is one."""
    if not join:
        yield context
        return
    async with objects_ready(context.repository, join, context.paths.objects, on_gather=context.on_gather) as objects:
        yield replace(context, base=replace(context.base, objects=objects))


def add_seal_notes(known: KeptWork, seal: Seal) -> KeptWork:
    """Add what the seal reported about single files, and why it failed."""
    return replace(
        known,
        unkept=seal.unkept,
        large=seal.large,
        special=seal.special,
        unconverted=seal.unconverted,
        ignored=seal.ignored,
        notes=tuple(_notes(seal)),
        failure=seal.failure,
    )


def _notes(seal: Seal) -> Iterator[str]:
    if seal.squashed is not None:
        kept = "no other changes remain" if seal.tip is None else "its files are kept as one commit"
        yield f"{kept}, without its own history: {seal.squashed}"
    if seal.is_partial:
        yield "some of its other branches or stashes were left out: checking them exceeded the limits"
    if seal.is_plain:
        yield (
            "its .gitignore or .gitattributes files are too expensive to apply: files are kept as they are, "
            "without those that the base ignores"
        )


async def import_seal(context: RunContext, seal: Seal, ref: str, here: str | None) -> KeptWork:
    """Import what was sealed, and move *ref* from *here* to it; the base of *context* is what it builds on."""
    known = add_seal_notes(NOTHING, seal)
    if seal.failure or seal.tip is None or seal.pack is None:
        return known
    async with above_floor(context.paths.root):
        taken = await import_pack(
            context.repository,
            seal.pack,
            base=context.base.commit,
            tips=(seal.tip, *seal.extras),
            lender=context.base.objects,
            bounds=context.bounds,
        )
    if isinstance(taken, ImportRefused):
        return replace(known, failure=f"the work was refused: {taken.why}")
    extras = [f"refs/shoal/kept/{ref.removeprefix('refs/heads/agent/')}/{n}" for n, _ in enumerate(seal.extras)]
    moves = [Move(name, commit, ABSENT) for name, commit in zip(extras, seal.extras, strict=True)]
    has_work = seal.tip != context.base.commit
    if has_work:
        moves.append(Move(ref, seal.tip, here or ABSENT))
    try:
        await context.ledger.assert_owner(context.run)
        is_moved = await move(context.repository, moves)
    finally:
        release(taken)
    if not is_moved:
        why = await refusal(context.repository, ref, seal.tip)
        return replace(known, failure=f"{ref} {f'cannot be created: {why}' if why else 'was moved by somebody else'}")
    return replace(
        known,
        branch=ref.removeprefix("refs/heads/") if has_work else None,
        commit=seal.tip if has_work else None,
        files_changed=taken.files_changed,
        refs=tuple(extras),
        secrets=await find_secrets(context, context.base.commit, seal.tip) if has_work else (),
        flags=await flag_changes(
            context.repository.git, context.base.commit, seal.tip, taken.paths, context.executable
        ),
    )


MAX_PATCH_BYTES = 64 * 2**20


async def add_patch(context: RunContext, work: KeptWork, result: WorkerResult) -> WorkerResult:
    """Write the work as a patch into the results folder if its kind of workspace has no branch, and name the patch."""
    if not context.kind.leaves_patch or work.commit is None:
        return result
    options = ("--binary", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all")
    gitdir, base = context.repository.git, context.base.commit
    done = await git(gitdir, "diff", *options, base, work.commit, limit=MAX_PATCH_BYTES)
    if done.dropped:
        where = f"`git --git-dir={gitdir} diff --binary {base} {work.commit}` prints it"
        note = f"its patch is larger than {MAX_PATCH_BYTES // 2**20} MiB and was not written; {where}"
        return replace(result, notes=(*result.notes, note))
    target = context.paths.results / f"{result.session}.patch"
    target.write_bytes(done.stdout)
    return replace(result, artifacts={**result.artifacts, "patch": str(target)})


SECONDS = 120.0

# Everything touched since the start in any way (content, mode, times, flags, attributes: all change the ctime) is
# recreated. Files first: they are deleted, so that git later only finds missing files.
CLEAN = """
set -eu
find . -xdev -type d ! -perm 755 -exec chmod 00755 {} \\;
find . -xdev -mindepth 1 ! -path ./.git ! -type d -cnewer "$MARK" -delete
git clean -ffdxq -e /.git
"""
# In a sandbox of its own, after the folders: files inherit from the folder that they are created in.
RESTORE = """
set -eu
git read-tree --reset -u "$BASE"
git update-index -q --refresh
test -z "$(git status --porcelain --ignored)"
"""


async def recycle(session: Session) -> Path | None:
    """Reset the workspace and return its index, or `None` if it cannot be used again."""
    context, workspace, directory = session.context, session.workspace, session.directory
    gitdir = directory.path / f"recycle-{secrets.token_hex(3)}"
    write_gitdir(
        gitdir,
        context.repository,
        head=context.base.commit,
        refs={},
        index=workspace.index,
        lenders=context.lenders,
        loose_stat=False,
    )
    try:
        await _run(session, gitdir, CLEAN)
        await asyncio.to_thread(renew_folders, workspace.path, directory.opened.stat().st_mtime_ns, directory.path)
        await _run(session, gitdir, RESTORE)
    except (ShoalError, OSError, TimeoutError):
        return None
    return gitdir / "index"


async def _run(session: Session, gitdir: Path, script: str) -> None:
    context, workspace, opened = session.context, session.workspace, session.directory.opened
    env = git_environment(gitdir, workspace.path)
    env |= {"MARK": str(opened), "BASE": context.base.commit}
    command = Command(argv=("/bin/sh", "-c", script, "recycle"), cwd=workspace.path, env=env)
    policy = context.policy(token=secrets.token_hex(8), read=(opened,), write=(workspace.path, gitdir))
    policy = replace(policy, uid=os.getuid(), gid=os.getgid())
    async with open_sandboxed(context.sandbox, command, policy, sink=lambda _stream, _data: None) as process:
        async with asyncio.timeout(SECONDS):
            done = await process.wait()
    if done.code != 0:
        raise Broken("the worktree cannot be reset")


def renew_folders(top: Path, since: int, aside: Path) -> None:
    """Replace each folder that was touched after *since*, *top* included, by a new one with the same entries.

    A folder has more than can be inspected and reset: special modes, flags, access lists, a version, times.
    New folders are made in *aside*, where they inherit nothing from the agent's. Nothing else may use *top* meanwhile.
    """
    for folder in reversed(_list_touched_folders(str(top), since)):
        fresh = f"{aside}/fresh-{secrets.token_hex(4)}"
        os.mkdir(fresh)  # noqa: PTH102 - hundreds of them: making a Path takes longer than making a folder
        os.chmod(fresh, 0o755)  # noqa: PTH101, S103
        for name in os.listdir(folder):
            os.rename(f"{folder}/{name}", f"{fresh}/{name}")  # noqa: PTH104
        os.rmdir(folder)  # noqa: PTH106
        os.rename(fresh, folder)  # noqa: PTH104


def _list_touched_folders(top: str, since: int) -> list[str]:
    """List them, each before those inside it."""
    found, rest = [], [top]
    while rest:
        place = rest.pop()
        if os.lstat(place).st_ctime_ns >= since:
            found.append(place)
        with os.scandir(place) as entries:
            rest += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return found
