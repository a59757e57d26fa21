"""Open and remove everything private to a session: workspace, gitdir, session directory, and a disk of its own."""

import contextlib
import functools
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from shoal.databases.session_database import SessionDatabase
from shoal.git.gitdir import user_config, write_gitdir, write_refs
from shoal.proc.free_space import room
from shoal.sessions.context import RunContext
from shoal.sessions.host_probe import assert_room
from shoal.sessions.policy import as_json
from shoal.sessions.reuse import ReusableDir, gitdir_aside
from shoal.sessions.sandboxed import hold_turn_early
from shoal.sessions.session_control import SessionControl
from shoal.sessions.session_dir import SessionDir, hold_session_dir
from shoal.sessions.setup.prepare import SetupPlan, finish_setup, set_up
from shoal.sessions.talking import talk_files
from shoal.sessions.worker import Session, WorkerSpec
from shoal.workspaces.kind import Kind, Workspace, WorkspaceOrder
from shoal.workspaces.quota import open_disk, settle
from shoal.workspaces.remove import clear_privileges


@contextlib.asynccontextmanager
async def open_session(
    context: RunContext,
    worker: WorkerSpec,
    *,
    control: SessionControl | None = None,
    is_held: bool = True,
    setup_as: WorkerSpec | None = None,
) -> AsyncIterator[Session]:
    """Open everything private to a session; on exit it is removed, unless the raw files must stay.

    The stop of *control* ends its set-up early, and later its agent. With *is_held*, the caller runs programs in it
    later, perhaps on the host. Otherwise the worker's own program starts at once, and its turn to start begins here.
    *setup_as* is the worker whose set-up it gets, if not *worker*.
    """
    assert_room(context.paths)
    control = control or SessionControl()
    starts_at_once = worker.is_program and not is_held
    async with (
        set_up(context, setup_as or worker, control.stop) as ready,
        hold_turn_early() if starts_at_once else contextlib.nullcontext(),
        _filled(context, worker, ready, control, is_seen=is_held or worker.function is not None) as session,
    ):
        yield session


@contextlib.asynccontextmanager
async def _filled(
    context: RunContext, worker: WorkerSpec, ready: SetupPlan, control: SessionControl, *, is_seen: bool
) -> AsyncIterator[Session]:
    path = context.workspace_path(worker.step, worker.index)
    session_dir = context.paths.session_dir(worker.session)
    files = _input_files(worker) | talk_files(worker)
    user = context.user if context.sandbox.mounts else None
    spare = ReusableDir.of(context, worker, session_dir, path, files, user)
    if not spare.take():
        os.mkdir(session_dir, 0o700)  # noqa: PTH102
    workspace: Workspace | None = None
    try:
        async with _disk(context, worker, session_dir, path) as disk, _shared_database(context, worker) as shared:
            with hold_session_dir(
                session_dir, worker.session, files, user, disk=disk, database=worker.database, written=spare.written
            ) as private:
                directory = replace(private, shared=shared)
                _user_config(context, directory)
                order = _order(context, worker, path, disk, ready.trees, is_mounted=spare.is_mounted)
                async with _kind(context, is_seen=is_seen).open(order) as workspace:
                    session = Session(
                        context=context,
                        worker=worker,
                        workspace=workspace,
                        directory=directory,
                        log=context.output_log(worker.session),
                        control=control,
                        has_history=spare.has_history,
                        free_at_start=room(session_dir).free_bytes,
                    )
                    _private_gitdir(session)
                    if not ready.is_nothing:
                        spare.use = None  # with what is copied into it, it fits this session only
                        directory.unopened.touch()
                        await finish_setup(session, ready, functools.partial(_make_again, session))
                    if worker.limits.is_exact:
                        settle(disk, worker.limits.disk_bytes or 0)
                    if workspace.can_recycle or not ready.is_nothing:
                        _mark(directory.opened)
                    spare.note(workspace)
                    yield session
                    spare.leave(workspace)
    finally:
        if workspace is not None and workspace.keep:
            await clear_privileges(session_dir, path)
        elif not spare.keep_spare(workspace):
            context.trash.throw(session_dir)
        _clear_folder(context, path)


def _input_files(worker: WorkerSpec) -> dict[str, str | bytes]:
    """Return the files that an agent gets to read, by name."""
    return {
        "prompt.md": worker.task.prompt,
        "system_prompt.md": worker.task.system_prompt,
        **({"permissions.json": as_json(worker.task.permitted)} if worker.task.has_permissions else {}),
        **{f"inputs/{name}": text for name, text in worker.task.inputs.items()},
    }


def _kind(context: RunContext, *, is_seen: bool) -> Kind:
    """Let only sandboxes mount the workspace, where that suffices and the sandbox can do it."""
    return context.kind if is_seen or not context.sandbox.mounts else context.kind.as_unlinked()


@contextlib.asynccontextmanager
async def _disk(context: RunContext, worker: WorkerSpec, session_dir: Path, path: Path) -> AsyncIterator[Path]:
    """Yield the folder for all that the agent can write: *session_dir*, or a disk of its own with `disk: exact`."""
    if not worker.limits.is_exact:
        yield session_dir
        return
    has_layers = context.kind.has_layers
    ours = context.base.index.stat().st_size + (0 if has_layers else context.base.bytes)
    async with open_disk(session_dir, (worker.limits.disk_bytes or 0) + ours, None if has_layers else path) as disk:
        yield disk


@contextlib.asynccontextmanager
async def _shared_database(context: RunContext, worker: WorkerSpec) -> AsyncIterator[SessionDatabase | None]:
    """Hold what the session has on the run's database server, if there is one."""
    if context.databases is None:
        yield None
        return
    async with context.databases.hold_session(worker.session, worker.limits.disk_bytes) as database:
        yield database


def _order(
    context: RunContext,
    worker: WorkerSpec,
    path: Path,
    disk: Path,
    trees: tuple[Path, ...],
    *,
    is_mounted: bool = False,
) -> WorkspaceOrder:
    return WorkspaceOrder(
        repository=context.repository,
        base=context.base,
        path=path,
        session_dir=disk,
        branch=worker.branch,
        trees=trees,
        pointer=None if context.sandbox.mounts else _pointer(f"{disk}/git"),
        is_mounted=is_mounted,
        has_own_disk=worker.limits.is_exact,
    )


def _private_gitdir(session: Session) -> None:
    context, workspace, directory = session.context, session.workspace, session.directory
    ref = f"refs/heads/{session.worker.branch}"
    named = {f"refs/heads/{context.repository.branch}": context.base.commit} if context.repository.branch else {}
    refs = {ref: context.base.commit, **named}
    aside = gitdir_aside(directory.path)
    if os.path.exists(aside):  # noqa: PTH110
        write_refs(aside, head=f"ref: {ref}", refs=refs)
        os.rename(aside, directory.git)  # noqa: PTH104
    else:
        head, index = f"ref: {ref}", workspace.index
        write_gitdir(directory.git, context.repository, head=head, refs=refs, index=index, lenders=context.lenders)
    if not context.sandbox.mounts and not workspace.is_overlay:
        pointer = workspace.path / ".git"
        pointer.unlink(missing_ok=True)
        pointer.write_bytes(_pointer(directory.git))


def _make_again(session: Session) -> None:
    """Recreate the home and the gitdir."""
    session.directory.home.mkdir()
    _user_config(session.context, session.directory)
    _private_gitdir(session)


def _pointer(gitdir: Path | str) -> bytes:
    """Return the text of `.git`: a sandbox that cannot cover that path needs it in the workspace itself."""
    return f"gitdir: {gitdir}\n".encode(errors="surrogateescape")


def _user_config(context: RunContext, directory: SessionDir) -> None:
    """Configure who commits, also for any other repository that the agent creates."""
    file = f"{directory.home}/.gitconfig"
    if not os.path.exists(file):  # noqa: PTH110
        Path(file).write_text(user_config(context.repository.identity), errors="surrogateescape")


def _mark(file: Path) -> None:
    """Create *file* with the current time."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.utime(fd)
    finally:
        os.close(fd)


def _clear_folder(context: RunContext, path: Path) -> None:
    """Remove the workspace's folder; move it to the trash if the removal would wait for the sandbox's mounts to end."""
    with contextlib.suppress(OSError):
        if context.kind.has_layers and context.sandbox.mounts and not os.listdir(path):
            context.trash.throw(path)
    prune(path, context.paths.workspaces)


def prune(path: Path, root: Path) -> None:
    """Remove the workspace's folder and its parents as far as they are empty."""
    folder, end = str(path), str(root)
    while folder not in (end, "/"):
        try:
            os.rmdir(folder)  # noqa: PTH106
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.rpartition("/")[0] or "/"
