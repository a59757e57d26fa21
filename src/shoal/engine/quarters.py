"""All that is private to a session, opened and removed: workspace, gitdir, lease, and a disk if it is asked for."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from shoal.engine.grants import as_json
from shoal.engine.ground import assert_room
from shoal.engine.job import Job
from shoal.engine.lease import Lease, leased
from shoal.engine.site import Site
from shoal.engine.touched import Fingerprint, fingerprint
from shoal.git.gitdir import user_config, write_gitdir
from shoal.workspaces.kind import Kind, Order, Workspace
from shoal.workspaces.overlay import Overlay
from shoal.workspaces.quota import settle, sized


@contextlib.asynccontextmanager
async def opened(
    site: Site, job: Job, path: Path, *, is_seen: bool = True
) -> AsyncIterator[tuple[Workspace, Lease, Fingerprint | None]]:
    """Open everything private to a session; on leaving it is removed, unless the raw files must stay.

    *is_seen* says that programs on the host are to see the workspace; else only the boxes of the session surely do.
    """
    assert_room(site.paths)
    box = site.paths.box(job.session)
    prompts: dict[str, str | bytes] = {
        "prompt.md": job.task.prompt,
        "system_prompt.md": job.task.system_prompt,
        **({"permissions.json": as_json(job.task.permitted)} if job.task.has_permissions else {}),
        **{f"inputs/{name}": text for name, text in job.task.inputs.items()},
    }
    box.mkdir(mode=0o700)
    workspace: Workspace | None = None
    try:
        async with _disk(site, job, box, path) as disk:
            with leased(box, job.session, prompts, site.user, disk=disk, database=job.database) as lease:
                # So that git works in any other repository that the agent makes, too.
                (lease.home / ".gitconfig").write_text(user_config(site.repository.identity), errors="surrogateescape")
                async with _kind(site, is_seen=is_seen).opened(_order(site, job, path, disk)) as workspace:
                    _private_gitdir(site, job, workspace, lease)
                    if job.limits.is_exact:
                        settle(disk, job.limits.disk_bytes or 0)
                    lease.opened.touch()
                    yield workspace, lease, fingerprint(lease.git)
    finally:
        if workspace is None or not workspace.keep:
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


def _order(site: Site, job: Job, path: Path, disk: Path) -> Order:
    return Order(
        repository=site.repository,
        base=site.base,
        path=path,
        box=disk,
        branch=job.branch,
        has_own_disk=job.limits.is_exact,
    )


def _private_gitdir(site: Site, job: Job, workspace: Workspace, lease: Lease) -> None:
    ref = f"refs/heads/{job.branch}"
    named = {f"refs/heads/{site.repository.branch}": site.base.commit} if site.repository.branch else {}
    refs = {ref: site.base.commit, **named}
    write_gitdir(lease.git, site.repository, head=f"ref: {ref}", refs=refs, index=workspace.index)
    if not site.sandbox.mounts:
        # A wall that cannot lay a pointer over `.git` needs it in the workspace itself.
        pointer = workspace.path / ".git"
        pointer.unlink(missing_ok=True)
        pointer.write_text(f"gitdir: {lease.git}\n", errors="surrogateescape")


def _cleared(site: Site, path: Path) -> None:
    """Take the workspace's folder away; thrown, because its removal waits for the box's own mounts to be gone."""
    with contextlib.suppress(OSError):
        if isinstance(site.kind, Overlay) and not os.listdir(path):
            site.trash.throw(path)
    prune(path, site.paths.workspaces)


def prune(path: Path, root: Path) -> None:
    """Remove the workspace's folder and its parents as far as they are empty."""
    for folder in (path, *path.parents):
        if folder == root:
            return
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return
