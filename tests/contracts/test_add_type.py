"""Adding a type of contract takes one file and one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.model.contract import Contract
from shoal.pipeline.keys.contract_types import KINDS, load_module

TOY = '''"""A toy: a file of the work has a given word in it."""

from dataclasses import dataclass

from shoal.contracts.workbench import read_file, show_file
from shoal.model.contract import Contract
from shoal.pipeline.fields import Shape

KEYS = ("path", "word")
NEEDED = (("path",), ("word",))


class ToyKeys(Shape):
    word: str | None = None
    """For `toy`: the word that the file needs."""


SHAPE = ToyKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class HasWord(Contract):
    path: str
    word: str

    @property
    def promise(self) -> str:
        return f"{self.path} has the word {self.word}"


def build(keys, schemas):
    return HasWord(type=keys.type, only_warns=keys.only_warns, path=keys.path, word=keys.word)


async def check(contract, bench):
    content = await read_file(bench, contract.path, 1000) or b""
    return None if contract.word.encode() in content else f"{show_file(bench, contract.path)} lacks {contract.word}"
'''
PIPELINE = """
agents:
  writer: {{adapter: command, command: [sh, -c, 'echo "a fine day" > day.txt']}}
steps:
  - {{name: write, agent: writer, prompt: Write it, contract: {{type: toy, path: day.txt{word}}}}}
"""
START = "from shoal.cli.main import main; main()"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Copy the package, with one file and one line more."""
    copy = tmp_path / "copy" / "shoal"
    shutil.copytree(Path(shoal.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "contracts" / "types" / "toy.py").write_text(TOY)
    table, opening = copy / "pipeline" / "keys" / "contract_types.py", "KINDS = {\n"
    assert opening in table.read_text()
    line = '    "toy": "shoal.contracts.types.toy",\n'
    table.write_text(table.read_text().replace(opening, opening + line))
    return copy


def test_a_new_type_is_one_file_and_one_line(package: Path, repo: Path) -> None:
    met = check_of(run(package, repo, ", word: fine"))
    unmet = check_of(run(package, repo, ", word: rainy"))
    missing = run(package, repo, "")
    schema = shoal_of(package, repo, "schema").stdout

    assert met == {"status": "succeeded", "type": "toy", "is_met": True}
    assert unmet == {"status": "failed", "type": "toy", "is_met": False}
    assert missing.returncode == 2
    assert "`word` is missing; a contract of type `toy` needs it" in missing.stderr
    assert "For `toy`: the word that the file needs." in schema


def run(package: Path, repo: Path, word: str) -> "subprocess.CompletedProcess[str]":
    (repo / "shoal.yaml").write_text(PIPELINE.format(word=word))
    return shoal_of(package, repo, "run", "shoal.yaml", "--json")


def check_of(done: "subprocess.CompletedProcess[str]") -> dict[str, object]:
    """Return what became of the only worker, and of its only contract."""
    (step,) = json.loads(done.stdout)["steps"]
    (worker,) = step["worker_results"]
    (contract,) = worker["contracts"]
    return {"status": worker["status"], "type": contract["type"], "is_met": contract["passed"]}


def shoal_of(package: Path, repo: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command of the copy of the package."""
    env = {**os.environ, "PYTHONPATH": str(package.parent)}
    return subprocess.run([sys.executable, "-c", START, *words], cwd=repo, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("name", KINDS)
def test_the_module_of_a_type_defines_what_the_table_promises(name: str) -> None:
    module = load_module(name)

    assert all(key in module.KEYS for group in module.NEEDED for key in group)
    assert issubclass(module.build.__annotations__["return"], Contract)
    assert list(module.check.__annotations__) == ["contract", "bench", "return"]
