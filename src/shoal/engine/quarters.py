"""All that is private to a session, opened and removed: workspace, gitdir, lease, and a disk if it is asked for."""

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from shoal.engine.grants import as_json
from shoal.engine.ground import assert_room
from shoal.engine.job import Job
from shoal.engine.lease import Lease, leased
from shoal.engine.setup import Ready, laid, set_up
from shoal.engine.site import Site
from shoal.engine.spare import Spare, gitdir_aside
from shoal.engine.turns import begun_turn
from shoal.git.gitdir import user_config, write_gitdir, write_refs
from shoal.workspaces.kind import Kind, Order, Workspace
from shoal.workspaces.overlay import Overlay
from shoal.workspaces.quota import settle, sized


@contextlib.asynccontextmanager
async def opened(
    site: Site, job: Job, path: Path, *, is_seen: bool = True, starts: bool = False, stop: asyncio.Event | None = None
) -> AsyncIterator[tuple[Workspace, Lease, Spare]]:
    """Open everything private to a session; on leaving it is removed, unless the raw files must stay.

    *is_seen* says that programs on the host are to see the workspace; else only the boxes of the session surely do.
    *starts* says that its box is started at once: its turn to start begins here.
    *stop* cuts set-up short, if there is any: then the workspace is without it.
    """
    assert_room(site.paths)
    async with (
        set_up(site, job, stop) as ready,
        begun_turn() if starts else contextlib.nullcontext(),
        _filled(site, job, path, ready, is_seen=is_seen) as everything,
    ):
        yield everything


@contextlib.asynccontextmanager
async def _filled(
    site: Site, job: Job, path: Path, ready: Ready, *, is_seen: bool
) -> AsyncIterator[tuple[Workspace, Lease, Spare]]:
    box = site.paths.box(job.session)
    prompts: dict[str, str | bytes] = {
        "prompt.md": job.task.prompt,
        "system_prompt.md": job.task.system_prompt,
        **({"permissions.json": as_json(job.task.permitted)} if job.task.has_permissions else {}),
        **{f"inputs/{name}": text for name, text in job.task.inputs.items()},
    }
    user = site.user if site.sandbox.mounts else None
    spare = Spare.of(site, job, box, path, prompts, user)
    if not spare.taken():
        os.mkdir(box, 0o700)  # noqa: PTH102
    workspace: Workspace | None = None
    try:
        async with _disk(site, job, box, path) as disk:
            with leased(
                box, job.session, prompts, user, disk=disk, database=job.database, written=spare.written
            ) as lease:
                _user_config(site, lease)
                order = _order(site, job, path, disk, ready.trees, is_mounted=spare.is_mounted)
                async with _kind(site, is_seen=is_seen).opened(order) as workspace:
                    _private_gitdir(site, job, workspace, lease)
                    if not ready.is_nothing:
                        spare.use = None  # what is laid into it makes it this session's for good
                        renew = functools.partial(_renewed, site, job, workspace, lease)
                        await laid(site, job, ready, workspace, lease, renew)
                    if job.limits.is_exact:
                        settle(disk, job.limits.disk_bytes or 0)
                    if workspace.can_recycle or not ready.is_nothing:
                        _mark(lease.opened)
                    spare.note(workspace)
                    yield workspace, lease, spare
                    spare.leave(workspace)
    finally:
        if (workspace is None or not workspace.keep) and not spare.put(workspace):
            site.trash.throw(box)
        _cleared(site, path)


def _kind(site: Site, *, is_seen: bool) -> Kind:
    """Let an overlay be mounted in the boxes alone, where that is enough and the wall can."""
    if isinstance(site.kind, Overlay) and not is_seen and site.sandbox.mounts:
        return replace(site.kind, may_hide=True)
    return site.kind


@contextlib.asynccontextmanager
async def _disk(site: Site, job: Job, box: Path, path: Path) -> AsyncIterator[Path]:
    """Give the folder for all that the agent can write: *box* itself, or a disk of its own where its limit is exact."""
    if not job.limits.is_exact:
        yield box
        return
    is_overlay = isinstance(site.kind, Overlay)
    ours = site.base.index.stat().st_size + (0 if is_overlay else site.base.bytes)
    async with sized(box, (job.limits.disk_bytes or 0) + ours, None if is_overlay else path) as disk:
        yield disk


def _order(site: Site, job: Job, path: Path, disk: Path, trees: tuple[Path, ...], *, is_mounted: bool = False) -> Order:
    return Order(
        repository=site.repository,
        base=site.base,
        path=path,
        box=disk,
        branch=job.branch,
        trees=trees,
        pointer=None if site.sandbox.mounts else _pointer(f"{disk}/git"),
        is_mounted=is_mounted,
        has_own_disk=job.limits.is_exact,
    )


def _private_gitdir(site: Site, job: Job, workspace: Workspace, lease: Lease) -> None:
    ref = f"refs/heads/{job.branch}"
    named = {f"refs/heads/{site.repository.branch}": site.base.commit} if site.repository.branch else {}
    refs = {ref: site.base.commit, **named}
    aside = gitdir_aside(lease.box)
    if os.path.exists(aside):  # noqa: PTH110
        write_refs(aside, head=f"ref: {ref}", refs=refs)
        os.rename(aside, lease.git)  # noqa: PTH104
    else:
        write_gitdir(lease.git, site.repository, head=f"ref: {ref}", refs=refs, index=workspace.index)
    if not site.sandbox.mounts and not workspace.is_overlay:
        pointer = workspace.path / ".git"
        pointer.unlink(missing_ok=True)
        pointer.write_bytes(_pointer(lease.git))


def _renewed(site: Site, job: Job, workspace: Workspace, lease: Lease) -> None:
    """Make the home and the gitdir once more."""
    lease.home.mkdir()
    _user_config(site, lease)
    _private_gitdir(site, job, workspace, lease)


def _pointer(gitdir: Path | str) -> bytes:
    """Give the text of `.git`: a wall that cannot lay it over that path needs it in the workspace itself."""
    return f"gitdir: {gitdir}\n".encode(errors="surrogateescape")


def _user_config(site: Site, lease: Lease) -> None:
    """Tell git who commits, so that it works in any other repository that the agent makes, too."""
    file = f"{lease.home}/.gitconfig"
    if not os.path.exists(file):  # noqa: PTH110
        Path(file).write_text(user_config(site.repository.identity), errors="surrogateescape")


def _mark(file: Path) -> None:
    """Make *file* and let its time be now."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.utime(fd)
    finally:
        os.close(fd)


def _cleared(site: Site, path: Path) -> None:
    """Take the workspace's folder away; thrown where its removal would wait for the box's own mounts to be gone."""
    with contextlib.suppress(OSError):
        if isinstance(site.kind, Overlay) and site.sandbox.mounts and not os.listdir(path):
            site.trash.throw(path)
    prune(path, site.paths.workspaces)


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
