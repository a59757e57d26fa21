"""Overlay: the shared base below, a private layer above; 1-3 ms whatever the size of the repository."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.errors import Broken, Unavailable
from shoal.model.policy import Layers
from shoal.sandboxes.kind import RootLayers
from shoal.workspaces.kind import Workspace, WorkspaceHost, WorkspaceOrder
from shoal.workspaces.mount import mount_overlay, unmount, unmount_tree

STAYS = False
# Every sandbox starts with a copy of the host's mount table: 0.07 ms per mount, against 5 ms to mount inside it.
MAX_ON_HOST = 32
_on_host = {"mounts": 0}
"""How many overlays this process has mounted on the host; all runs of a process share that table."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """With *by_host*, the host mounts the layers; otherwise each sandbox does, in its own namespace.

    If *may_hide*, only sandboxes need to see it: they mount it themselves once many are mounted on the host.
    """

    by_host: bool
    may_hide: bool = False
    has_layers: bool = field(default=True, init=False, repr=False)
    links_branch: bool = field(default=False, init=False, repr=False)
    leaves_patch: bool = field(default=False, init=False, repr=False)

    @property
    def name(self) -> str:
        return "overlay"

    @property
    def mounts_on_host(self) -> bool:
        return self.by_host

    def as_unlinked(self) -> "Overlay":
        """Let sandboxes mount it, if many are mounted on the host already."""
        return replace(self, may_hide=True)

    @contextlib.asynccontextmanager
    async def open(self, order: WorkspaceOrder) -> AsyncIterator[Workspace]:
        """Lay a private upper over the base."""
        upper = order.session_dir / "upper"
        workspace = Workspace(
            path=order.path, index=order.base.index, changes=upper, has_pointer=order.pointer is not None
        )
        if order.is_mounted:
            if order.pointer is not None:
                _rewrite(f"{order.path}/.git", order.pointer)
            async with _hold_mount(workspace):
                yield workspace
            return
        work = order.session_dir / "work"
        for folder in (upper, work):
            os.mkdir(folder)  # noqa: PTH102 - half the time of Path.mkdir
        os.makedirs(order.path, exist_ok=True)  # noqa: PTH103
        if (
            order.pointer is not None
        ):  # below the mount: through it, the kernel would create and remove three more files
            (upper / ".git").write_bytes(order.pointer)
        kind = RootLayers if self.by_host else Layers
        layers = kind(lower=order.trees or order.base.trees, upper=upper, work=work, target=order.path)
        is_hidden = not self.by_host or (self.may_hide and (order.trees or _on_host["mounts"] >= MAX_ON_HOST))
        if order.trees or is_hidden:
            # Set-up's files are not shown when the work is sealed, so they cannot count as work.
            workspace.sealing = sealing(replace(layers, lower=order.base.trees))
        if is_hidden:
            workspace.layers = layers
            yield workspace
            return
        mount_overlay(layers)
        _on_host["mounts"] += 1
        async with _hold_mount(workspace):
            yield workspace


async def build(host: WorkspaceHost) -> Overlay:
    """Return it after a trial, mounted by the host if that is allowed, else by each sandbox."""
    layers = _make_trial_layers(host.trial)
    if _can_host_mount(layers):
        return Overlay(by_host=True)
    if await host.try_layers(layers):
        return Overlay(by_host=False)
    why = "neither the host nor a sandbox can mount one on this file system"
    raise Unavailable("isolation_strategy overlay", why, "ask for worktree, or auto")


def _make_trial_layers(folder: Path) -> Layers:
    for name in ("lower", "upper", "work", "target"):
        (folder / name).mkdir(parents=True)
    (folder / "lower" / "file").write_text("trial")
    return Layers(lower=(folder / "lower",), upper=folder / "upper", work=folder / "work", target=folder / "target")


def _can_host_mount(layers: Layers) -> bool:
    if os.geteuid() != 0:
        return False
    try:
        mount_overlay(layers)
    except Broken:
        return False
    unmount(layers.target)
    return True


@contextlib.asynccontextmanager
async def _hold_mount(workspace: Workspace) -> AsyncIterator[None]:
    """Unmount on exit, unless the workspace stays."""
    try:
        yield
    finally:
        if not workspace.stays:
            _on_host["mounts"] -= 1
            await unmount_tree(workspace.path)


def unmount_overlay(path: Path) -> None:
    """Unmount a workspace that stayed."""
    _on_host["mounts"] -= 1
    unmount(path)


def _rewrite(file: str, content: bytes) -> None:
    """Write a file through the mount, which would not see changes made directly in the upper layer."""
    fd = os.open(file, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, content)
        os.ftruncate(fd, len(content))
    finally:
        os.close(fd)


def sealing(layers: Layers) -> Layers:
    """View an ended agent's layers read-only, from any namespace."""
    above = () if layers.upper is None else (layers.upper,)
    return replace(layers, lower=(*above, *layers.lower), upper=None, work=None)


def is_empty(upper: os.PathLike[str]) -> bool:
    """Return whether the agent changed nothing: its layer, a folder of ours, has no entry.

    A file `.git` is not a change: it is our pointer if no sandbox can cover that path, and git never stores one.
    """
    try:
        with os.scandir(upper) as entries:
            return all(entry.name == ".git" and entry.is_file(follow_symlinks=False) for entry in entries)
    except OSError:  # its mode was changed: that is a change
        return False
