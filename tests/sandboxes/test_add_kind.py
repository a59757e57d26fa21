"""Adding a kind of sandbox takes one file and one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import shoal

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
    gaps: tuple[str, ...] = ("it is a toy",)
    has_gaps_offline: bool = True

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

START = "from shoal.cli.main import main; main()"


def test_a_new_kind_is_one_file_and_one_line(tmp_path: Path, repo: Path) -> None:
    package = tmp_path / "copy" / "shoal"
    shutil.copytree(Path(shoal.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "sandboxes" / "toy.py").write_text(TOY)
    registry = package / "sandboxes" / "registry.py"
    table = "KINDS = {\n"
    assert table in registry.read_text()
    registry.write_text(registry.read_text().replace(table, f'{table}    "toy": "shoal.sandboxes.toy",\n'))
    (repo / "shoal.yaml").write_text(PIPELINE)

    document = json.loads(shoal_of(package, repo, "run", "shoal.yaml", "--json"))
    by_option = shoal_of(package, repo, "run", "--sandbox", "toy", "--dry-run", "--task", "x", "--command", "true")
    schema = shoal_of(package, repo, "schema")

    (step,) = document["steps"]
    (worker,) = step["worker_results"]
    assert document["wall"] == "toy"
    assert "it is a toy" in document["notes"]
    content = subprocess.run(["git", "show", f"{worker['branch']}:toy.txt"], cwd=repo, capture_output=True, text=True)
    assert content.stdout == "yes\n"
    assert "toy" in by_option
    assert '"toy"' in schema


def shoal_of(package: Path, repo: Path, *words: str) -> str:
    """Run the command of the copy of the package, and return its output."""
    env = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run([sys.executable, "-c", START, *words], cwd=repo, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
