"""Overlay: the shared base below, a private layer above; 1-3 ms whatever the size of the repository."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

from shoal.model.policy import Layers
from shoal.workspaces.kind import Order, Workspace
from shoal.workspaces.mount import mount_overlay, unmount


@dataclass(frozen=True, slots=True)
class Overlay:
    """*by_host* where we may mount; else each box mounts the layers in a namespace of its own."""

    by_host: bool

    @property
    def name(self) -> str:
        return "overlay"

    @contextlib.asynccontextmanager
    async def opened(self, order: Order) -> AsyncIterator[Workspace]:
        """Lay a private upper over the base."""
        upper, work = order.box / "upper", order.box / "work"
        for folder in (upper, work, order.path):
            folder.mkdir(parents=True, exist_ok=True)
        layers = Layers(lower=order.base.trees, upper=upper, work=work, target=order.path)
        workspace = Workspace(path=order.path, index=order.base.index, changes=upper)
        if not self.by_host:
            workspace.layers = layers
            workspace.sealing = sealing(layers)
            yield workspace
            return
        mount_overlay(layers)
        try:
            yield workspace
        finally:
            unmount(order.path)


def sealing(layers: Layers) -> Layers:
    """View an ended agent's layers read-only, from any namespace."""
    above = () if layers.upper is None else (layers.upper,)
    return Layers(lower=(*above, *layers.lower), upper=None, work=None, target=layers.target)


def is_empty(upper: os.PathLike[str]) -> bool:
    """Say whether the agent changed nothing: its layer, a folder of ours, has no entry."""
    try:
        with os.scandir(upper) as entries:
            return next(entries, None) is None
    except OSError:  # its mode was changed: that is a change
        return False
