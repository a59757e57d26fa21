"""Adding a kind of workspace takes one file and one line."""

import json
from pathlib import Path

from tests.conftest import git
from tests.package_copy import PackageCopy

TOY = '''"""A toy: the base's files, written out by Python."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass

from shoal.workspaces.kind import Workspace, WorkspaceHost, WorkspaceOrder

STAYS = True


@dataclass(frozen=True, slots=True)
class Toy:
    name: str = "toy"
    has_layers: bool = False
    mounts_on_host: bool = False
    links_branch: bool = False
    leaves_patch: bool = False

    def as_unlinked(self) -> "Toy":
        return self

    @contextlib.asynccontextmanager
    async def open(self, order: WorkspaceOrder) -> AsyncIterator[Workspace]:
        shutil.copytree(order.base.tree, order.path, symlinks=True, dirs_exist_ok=True)
        (order.path / "toy.txt").write_text("from the toy\\n")
        workspace = Workspace(path=order.path, index=order.base.index, changes=order.path)
        try:
            yield workspace
        finally:
            if not workspace.keep:
                shutil.rmtree(order.path)


async def build(host: WorkspaceHost) -> Toy:
    return Toy()
'''
PIPELINE = """
runtime: {isolation_strategy: toy}
agents:
  writer: {adapter: command, command: [sh, -c, 'cat toy.txt README.md > seen.txt']}
steps:
  - {name: write, agent: writer, prompt: Write it}
"""


def test_a_new_kind_is_one_file_and_one_line(tmp_path: Path, repo: Path) -> None:
    package = PackageCopy.make(tmp_path)
    package.add_kind("workspaces/registry.py", "toy", TOY)
    (repo / "shoal.yaml").write_text(PIPELINE)

    document = json.loads(package.run(repo, "run", "shoal.yaml", "--json"))
    by_option = json.loads(package.run(repo, "run", "--isolation", "toy", "--json", "--task", "x", "--command", "ls"))
    schema = package.run(repo, "schema")

    (step,) = document["steps"]
    (worker,) = step["worker_results"]
    assert document["workspace"] == by_option["workspace"] == "toy"
    assert git(repo, "show", f"{worker['branch']}:seen.txt") == "from the toy\nscratch"
    assert not any((repo / ".shoal/workspaces").rglob("toy.txt"))
    assert '"toy"' in schema
