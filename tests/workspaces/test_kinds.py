"""Every kind of workspace keeps the same promises."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.git.checkout import repository_locked
from shoal.git.repository import inspect
from shoal.model.command import Command
from shoal.model.policy import Policy
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.host_probe import probe_sandbox
from shoal.sessions.open_session import prune
from shoal.sessions.sandboxed import open_sandboxed
from shoal.workspaces import overlay
from shoal.workspaces.base_checkouts import base_ready
from shoal.workspaces.directory import Directory
from shoal.workspaces.kind import Kind, WorkspaceOrder
from shoal.workspaces.mount import mount_overlay, unmount
from shoal.workspaces.overlay import Overlay, is_empty
from shoal.workspaces.worktree import Worktree
from tests.conftest import git, make_repo

KINDS = ["worktree", "directory", *(["overlay"] if os.geteuid() == 0 else [])]


def kind_named(name: str, pool: Path) -> Kind:
    kinds: dict[str, Kind] = {"overlay": Overlay(by_host=True), "directory": Directory(), "worktree": Worktree(pool)}
    return kinds[name]


@contextlib.asynccontextmanager
async def ordered(repo: Path, number: int = 0, name: str = "x") -> AsyncIterator[WorkspaceOrder]:
    state = repo / ".shoal"
    (state / "base").mkdir(parents=True, exist_ok=True)
    (state / f"box{number}").mkdir(exist_ok=True)
    found = await inspect(repo, os.environ)
    async with base_ready(found, git(repo, "rev-parse", "main"), state / "base") as base:
        path = state / "workspaces" / f"worker_{number}"
        branch = f"agent/{name}/{number:06x}"
        yield WorkspaceOrder(repository=found, base=base, path=path, session_dir=state / f"box{number}", branch=branch)


@pytest.mark.parametrize("name", KINDS)
async def test_a_workspace_is_private_and_gone_afterwards(repo: Path, name: str) -> None:
    kind = kind_named(name, repo / ".shoal/pool")

    async with ordered(repo) as order:
        async with kind.open(order) as workspace:
            (workspace.path / "README.md").write_text("mine\n")
            (workspace.path / "d0/f1.txt").unlink()
            (workspace.path / "new").mkdir()
            assert (order.base.tree / "README.md").read_text() == "scratch\n"
            assert (order.base.tree / "d0/f1.txt").exists()
        assert not workspace.path.exists() or not any(workspace.path.iterdir())
    assert (repo / "README.md").read_text() == "scratch\n"
    assert git(repo, "worktree", "list").count("\n") == 0
    assert str(repo) not in Path("/proc/self/mounts").read_text()


@pytest.mark.parametrize("name", KINDS)
async def test_a_kept_workspace_loses_nothing(repo: Path, name: str) -> None:
    kind = kind_named(name, repo / ".shoal/pool")

    async with ordered(repo) as order, kind.open(order) as workspace:
        (workspace.path / "README.md").write_text("mine\n")
        workspace.keep = True

    assert (workspace.changes / "README.md").read_text() == "mine\n"


def test_a_layer_is_empty_though_our_pointer_lies_in_it(tmp_path: Path) -> None:
    def found(*names: str) -> bool:
        layer = tmp_path / "-".join(names or ("none",))
        layer.mkdir()
        for name in names:
            (layer / name).write_text("x")
        return is_empty(layer)

    (tmp_path / "folder/.git").mkdir(parents=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link/.git").symlink_to("elsewhere")

    assert [found(), found(".git"), found("work"), found(".git", "work")] == [True, True, False, False]
    assert not is_empty(tmp_path / "folder")
    assert not is_empty(tmp_path / "link")


if os.geteuid() == 0:  # for nobody else there is such a case

    async def test_many_overlays_are_not_mounted_on_the_host_but_in_their_boxes(
        repo: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Changes in the sandbox are marked like those of root's own mounts, so that a seal and a sweep see the same."""
        monkeypatch.setattr(overlay, "MAX_ON_HOST", 1)
        sandbox = await probe_sandbox("bubblewrap", os.environ)
        kind = Overlay(by_host=True, may_hide=True)

        async with (
            ordered(repo, 0) as first,
            kind.open(first) as seen,
            ordered(repo, 1) as second,
            kind.open(second) as hidden,
        ):
            assert str(hidden.path) not in Path("/proc/self/mounts").read_text()
            script = "echo mine > README.md && rm -r d0 && mkdir d0 && echo x > d0/only"
            said = await in_box(sandbox, hidden.path, script, Policy(write=(hidden.path,), layers=hidden.layers))
            assert hidden.sealing is not None
            listed = await in_box(sandbox, hidden.path, "ls d0; cat README.md", Policy(layers=hidden.sealing))

            assert (seen.is_visible, hidden.is_visible) == (True, False)
            assert said == ""
            assert listed == "only\nmine\n"
            mount_overlay(replace(hidden.sealing, target=first.session_dir))
            try:
                assert [path.name for path in (first.session_dir / "d0").iterdir()] == ["only"]
            finally:
                unmount(first.session_dir)
        assert (repo / "README.md").read_text() == "scratch\n"


async def in_box(sandbox: Sandbox, folder: Path, script: str, policy: Policy) -> str:
    """Run a script in the sandbox, and return its output."""
    said: list[bytes] = []
    command = Command(argv=("/bin/sh", "-c", script), cwd=folder, env={"PATH": "/usr/bin:/bin"})
    named = replace(policy, token="5e12", uid=os.getuid(), gid=os.getgid())
    async with open_sandboxed(sandbox, command, named, sink=lambda _stream, data: said.append(data)) as session_dir:
        await session_dir.wait()
    return b"".join(said).decode()


async def test_an_overlay_costs_only_what_is_changed(repo: Path) -> None:
    by_host = os.geteuid() == 0
    async with ordered(repo) as order, Overlay(by_host=by_host).open(order) as workspace:
        assert is_empty(workspace.changes)
        if not by_host:  # then the layers are mounted in the sandbox, where tests/sessions check them
            assert workspace.layers is not None
            return
        (workspace.path / "d0/f1.txt").write_text("x")
        assert not is_empty(workspace.changes)
        assert [path.name for path in (workspace.changes / "d0").iterdir()] == ["f1.txt"]


async def test_a_linked_worktree_is_listed_locked_and_clean(repo: Path) -> None:
    async with ordered(repo) as order, Worktree(repo / ".shoal/pool").open(order) as workspace:
        listed = git(repo, "worktree", "list", "--porcelain")
        assert f"worktree {workspace.path}" in listed
        assert "branch refs/heads/agent/x/000000" in listed
        assert "locked" in listed
        assert git(workspace.path, "status", "--porcelain") == ""


async def test_sixteen_worktrees_at_once_never_race(repo: Path) -> None:
    kind = Worktree(repo / ".shoal/pool")

    async def one(number: int) -> None:
        async with ordered(repo, number) as order, kind.open(order) as workspace:
            assert (workspace.path / "README.md").exists()

    async with asyncio.TaskGroup() as group:
        for number in range(16):
            group.create_task(one(number))
    assert not (repo / ".git/worktrees").exists()


async def test_the_end_of_a_session_leaves_the_folder_of_one_that_is_being_opened(repo: Path) -> None:
    """Sessions of a step share a parent folder, which the end of each removes if it is empty."""
    kind = Worktree(repo / ".shoal/pool")

    async with ordered(repo) as order, asyncio.TaskGroup() as group:
        async with repository_locked(order.repository.git):
            opening = group.create_task(opened(kind, order))
            while not order.path.parent.exists():
                await asyncio.sleep(0)
            prune(order.path.with_name("worker_of_another"), repo / ".shoal")
            assert order.path.is_dir()
        assert (await opening) == "scratch\n"


async def opened(kind: Kind, order: WorkspaceOrder) -> str:
    async with kind.open(order) as workspace:
        return (workspace.path / "README.md").read_text()


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_worktrees_of_many_processes_never_race(tmp_path: Path) -> None:
    """64 at once, 20 rounds: eight processes with eight sessions each, on one repository."""
    repo = make_repo(tmp_path / "repo", 100)
    here = Path(__file__).parents[2]
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from tests.workspaces.test_kinds import eight_opened\n"
        "asyncio.run(eight_opened(Path(sys.argv[1]), int(sys.argv[2])))\n"
    )
    for round_ in range(20):
        started = [
            subprocess.Popen(
                [sys.executable, "-c", program, repo, str(round_ * 100 + n * 8)], cwd=here, stderr=subprocess.PIPE
            )
            for n in range(8)
        ]
        for process in started:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said.decode()
    assert not (repo / ".git/worktrees").exists()


async def eight_opened(repo: Path, first: int) -> None:
    """Open eight worktrees at once, and close them."""

    async def one(number: int) -> None:
        async with ordered(repo, number) as order, Worktree(repo / ".shoal/pool").open(order) as workspace:
            assert (workspace.path / "README.md").exists()

    async with asyncio.TaskGroup() as group:
        for number in range(first, first + 8):
            group.create_task(one(number))


async def test_a_recycled_worktree_is_taken_from_the_pool_and_moved_to_the_new_base(repo: Path) -> None:
    kind = Worktree(repo / ".shoal/pool")
    async with ordered(repo, 1) as order, kind.open(order) as workspace:
        inode = workspace.path.stat().st_ino
        spare = order.session_dir / "index"
        spare.write_bytes(workspace.index.read_bytes())
        workspace.recycled = spare
    (repo / "later.txt").write_text("later\n")
    git(repo, "rm", "-q", "README.md")
    git(repo, "add", "later.txt")
    git(repo, "commit", "-qm", "later")

    async with ordered(repo, 2) as order, kind.open(order) as workspace:
        assert workspace.path.stat().st_ino == inode
        assert (workspace.path / "later.txt").read_text() == "later\n"
        assert not (workspace.path / "README.md").exists()
        assert git(workspace.path, "status", "--porcelain", "--branch") == "## agent/x/000002"
