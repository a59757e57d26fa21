"""A client works inside the wall wherever it is installed: the wall shows what its command leads to."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE, CODEX, GOOSE, SYSTEM, Real, client_path, workers
from tests.conftest import git

Place = Callable[[Path, Path], Path]
"""Takes what the client's package holds and a home, and gives the folder for PATH."""


def copied(source: Path, target: Path) -> Path:
    """Copy a package without copying its bytes, where it lies on the same disk."""

    def link(one: str, other: str) -> None:
        try:
            os.link(one, other)
        except OSError:
            shutil.copy2(one, other)

    shutil.copytree(source, target, copy_function=link, symlinks=True)
    return target


def below_a_prefix(prefix: Path, modules: Path, program: str) -> Path:
    """Install as `npm install -g --prefix` does."""
    copied(modules, prefix / "lib" / "node_modules")
    real = (modules / ".bin" / program).resolve().relative_to(modules.resolve())
    return linked(prefix / "bin" / program, Path("../lib/node_modules") / real)


def linked(link: Path, target: Path) -> Path:
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    return link.parent


def by_npm_prefix(modules: Path, home: Path) -> Path:
    return below_a_prefix(home.parent / "npm", modules, "codex")


def by_nvm(modules: Path, home: Path) -> Path:
    folder = below_a_prefix(home / ".nvm" / "versions" / "node" / "v22.1.0", modules, "codex")
    shutil.copy2(Path(shutil.which("node", path=client_path("codex")) or "").resolve(), folder / "node")
    return folder


def in_dot_local(modules: Path, home: Path) -> Path:
    return below_a_prefix(home / ".local", modules, "codex")


def by_native_installer(modules: Path, home: Path) -> Path:
    versions = home / ".local" / "share" / "claude" / "versions"
    versions.mkdir(parents=True)
    copied((modules / ".bin" / "claude").resolve().parent, versions.parent / "package")
    (versions.parent / "package" / "claude.exe").rename(versions / "2.1.325")
    return linked(home / ".local" / "bin" / "claude", versions / "2.1.325")


def in_a_temporary_folder(modules: Path, home: Path) -> Path:
    return copied(next(modules.glob("@aaif/*/bin")), home.parent / "download")


@pytest.mark.parametrize(
    ("real", "place"),
    [
        (CODEX, by_npm_prefix),
        (CODEX, by_nvm),
        (CODEX, in_dot_local),
        (CLAUDE, by_native_installer),
        (GOOSE, in_a_temporary_folder),
    ],
    ids=["npm prefix", "nvm", "dot local", "native installer", "temporary folder"],
)
def test_a_client_works_wherever_it_is_installed(scene: MakeScene, tmp_path: Path, real: Real, place: Place) -> None:
    here = scene(real)
    own, *others = client_path(real.name).split(":")
    home = tmp_path / "someone"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("secret")
    folder = place(Path(own).parent / "node_modules", home)
    here.write([{"name": "w", "prompt": f"[[s:shell cmd=ls%20-a%20{home}%20%3E%20seen%202%3E%261]]"}])

    worker = workers(here.run(PATH=f"{folder}:{others[0]}:{SYSTEM}", HOME=str(home)))["w"]

    assert worker["status"] == "succeeded", worker
    assert ".ssh" not in git(here.repo, "show", f"{worker['branch']}:seen")
