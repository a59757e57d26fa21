"""A new kind of agent is one module and one entry point: the rest of Shoal finds it by its name."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, environment

MODULE = """\
from shoal.adapters.kind import Invocation
from shoal.model.policy import Network


class Toy:
    name, default_network, client = "toy", Network.NONE, None

    def invocation(self, task, place):
        return Invocation(argv=("sh", "-c", "cat > toy.txt && echo written"), stdin=task.prompt.encode())

    def reader(self):
        return None
"""
DOCUMENT = "agents: {mine: {adapter: toy}}\nsteps: [{name: write, agent: mine, prompt: hello}]\n"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    about = tmp_path / "packages" / "toy-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[shoal.adapters]\ntoy = toy_adapter:Toy\n")
    (about.parent / "toy_adapter.py").write_text(MODULE)
    return about.parent


def test_a_toy_adapter_is_one_module_and_one_line(repo: Path, packages: Path) -> None:
    (repo / "shoal.yaml").write_text(DOCUMENT)

    done = subprocess.run(
        [SHOAL, "run", "--json", "--sandbox", "none"],
        cwd=repo,
        env=environment(PYTHONPATH=str(packages)),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (worker,) = json.loads(done.stdout)["steps"][0]["worker_results"]
    assert (worker["status"], worker["output"]) == ("succeeded", "written\n")
    shown = subprocess.run(["git", "show", f"{worker['branch']}:toy.txt"], cwd=repo, capture_output=True, check=True)
    assert shown.stdout.startswith(b"hello")
