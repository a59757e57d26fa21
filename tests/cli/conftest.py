"""Fixtures of the command's tests: the real program, run like a user runs it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli import warm
from tests.cli.warm import Said
from tests.conftest import make_repo

SHOAL = Path(sys.executable).with_name("shoal")
TWO_AGENTS = """\
runtime: {max_concurrent_workers: 2}
agents:
  one: {adapter: scripted, script: [{write: {path: same.txt, content: "one\\n"}}, {say: "I am one"}]}
  two: {adapter: scripted, script: [{write: {path: same.txt, content: "two\\n"}}, {say: "I am two"}]}
  bad: {adapter: scripted, script: [{write: {path: half.txt, content: "half\\n"}}, {fail: "it broke"}]}
pipelines:
  - name: both
    steps: [{name: one, agent: one, prompt: go}, {name: two, agent: two, prompt: go}]
  - name: broken
    steps: [{name: bad, agent: bad, prompt: go}]
"""


Shoal = Callable[..., Said]


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SHOAL_"))}
    return clean | {"NO_COLOR": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"} | more


def shoal_in(repo: Path) -> Shoal:
    """Run `shoal` in *repo*, in a process of its own."""

    def run(*words: str, cwd: Path = repo, **env: str) -> Said:
        return warm.ran(words, cwd=cwd, env=environment(**env), timeout=60)

    return run


@pytest.fixture
def shoal(repo: Path) -> Shoal:
    """The command, in the repository."""
    return shoal_in(repo)


@pytest.fixture
def pipelines(repo: Path) -> Path:
    """A `shoal.yaml` in the repository, with two agents that write the same file and one that fails."""
    file = repo / "shoal.yaml"
    file.write_text(TWO_AGENTS)
    return file


@pytest.fixture(scope="module")
def ran_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository where the pipeline `both` has run; the tests of a module share it."""
    repo = make_repo(tmp_path_factory.mktemp("ran") / "repo")
    (repo / "shoal.yaml").write_text(TWO_AGENTS)
    assert shoal_in(repo)("run", "both").code == 0
    return repo


@pytest.fixture
def ran(ran_in: Path) -> Shoal:
    """The command, where the pipeline `both` has run."""
    return shoal_in(ran_in)
