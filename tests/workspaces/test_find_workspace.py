"""Which kind of workspace a name means, and the error if it is not available."""

import os
from pathlib import Path

import pytest

from shoal.errors import BadInput, Unavailable, UnknownName
from shoal.model.policy import Layers
from shoal.workspaces import overlay
from shoal.workspaces.kind import WorkspaceHost
from shoal.workspaces.registry import KINDS, find


def host(folder: Path, *, can_mount: bool) -> WorkspaceHost:
    async def try_layers(layers: Layers) -> bool:
        assert layers.target.is_dir()
        return can_mount

    return WorkspaceHost(pool=folder / "pool", trial=folder / "trial", try_layers=try_layers)


@pytest.fixture
def ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.parametrize("name", KINDS)
async def test_a_name_gives_its_own_kind(name: str, tmp_path: Path) -> None:
    assert (await find(name, host(tmp_path, can_mount=True))).name == name


@pytest.mark.usefixtures("ordinary_user")
async def test_auto_is_an_overlay_and_else_a_worktree(tmp_path: Path) -> None:
    with_mounts = await find("auto", host(tmp_path / "a", can_mount=True))
    without = await find("auto", host(tmp_path / "b", can_mount=False))

    assert with_mounts == overlay.Overlay(by_host=False)
    assert without.name == "worktree"


@pytest.mark.usefixtures("ordinary_user")
async def test_a_kind_asked_for_by_name_is_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="neither the host nor a sandbox"):
        await find("overlay", host(tmp_path, can_mount=False))


async def test_workspaces_that_stay_are_never_overlays(tmp_path: Path) -> None:
    assert (await find("auto", host(tmp_path, can_mount=True), stays=True)).name == "worktree"
    with pytest.raises(BadInput, match=r"cleanup_on_complete: false.*isolation_strategy: worktree"):
        await find("overlay", host(tmp_path, can_mount=True), stays=True)


async def test_an_unknown_name_is_reported_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'overlay'"):
        await find("overlai", host(tmp_path, can_mount=True))
