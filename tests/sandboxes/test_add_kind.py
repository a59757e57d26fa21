"""Adding a kind of sandbox takes one file and one line."""

import json
from pathlib import Path

from tests.conftest import git
from tests.package_copy import PackageCopy

TOY = '''"""A toy: runs the command as it is, in a shell that marks its environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.model.command import Command
from shoal.model.policy import Policy
from shoal.sandboxes.host import SandboxHost
from shoal.sandboxes.kind import ready_line

CONFINES = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    name: str = field(default="toy", init=False)
    confines: bool = field(default=CONFINES, init=False)
    mounts: bool = field(default=False, init=False)
    can_listen: bool = field(default=False, init=False)
    gaps: tuple[str, ...] = ("it is a toy",)
    has_gaps_offline: bool = True
    version: str = "1"
    known_escapes: frozenset[str] = frozenset()

    def wrap(self, command: Command, policy: Policy) -> Command:
        script = \'printf "%s" "$1" >&2; shift; exec env TOY=yes "$@"\'
        return replace(command, argv=("/bin/sh", "-c", script, "sh", ready_line(policy.token).decode(), *command.argv))


def trials(host: SandboxHost) -> Mapping[str, Command]:
    return {}


def build(host: SandboxHost) -> Toy:
    return Toy()
'''
PIPELINE = """
runtime: {sandbox: toy}
agents:
  writer: {adapter: command, command: [sh, -c, 'echo "$TOY" > toy.txt']}
steps:
  - {name: write, agent: writer, prompt: Write it}
"""


def test_a_new_kind_is_one_file_and_one_line(tmp_path: Path, repo: Path) -> None:
    package = PackageCopy.make(tmp_path)
    package.add_kind("sandboxes/registry.py", "toy", TOY)
    (repo / "shoal.yaml").write_text(PIPELINE)

    document = json.loads(package.run(repo, "run", "shoal.yaml", "--json"))
    by_option = package.run(repo, "run", "--sandbox", "toy", "--dry-run", "--task", "x", "--command", "true")
    schema = package.run(repo, "schema")

    (step,) = document["steps"]
    (worker,) = step["worker_results"]
    assert document["wall"] == "toy"
    assert "it is a toy" in document["notes"]
    assert git(repo, "show", f"{worker['branch']}:toy.txt") == "yes"
    assert "toy" in by_option
    assert '"toy"' in schema
