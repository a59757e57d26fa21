"""Every example and every command in the docs runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.pipeline.load import load
from tests.cli import warm
from tests.cli.warm import Said
from tests.conftest import git

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
SHOAL = Path(sys.executable).with_name("shoal")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


YAML = [(page.name, block) for page in PAGES for block in blocks(page, "yaml")]
PYTHON = [(page.name, block) for page in PAGES for block in blocks(page, "python")]
# What several pages say runs once.
LINES = dict.fromkeys(
    line.split("  #")[0].rstrip()
    for page in PAGES
    for block in blocks(page, "sh")
    for line in block.splitlines()
    if re.search(r"(^|\| )shoal ", line)
)


def shoal(repo: Path, line: str) -> Said:
    """Run a line of the docs; a shell reads it where it is more than the words of one command."""
    if not re.search(r"[|<>]", line):
        return warm.ran(shlex.split(line)[1:], cwd=repo, env=os.environ, timeout=100)
    words = ["sh", "-c", line.replace("shoal ", f"{SHOAL} ", 1)]
    done = subprocess.run(words, cwd=repo, capture_output=True, text=True, check=False, timeout=100)
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(("page", "block"), YAML, ids=[page for page, _ in YAML])
def test_a_document_in_the_docs_runs(repo: Path, page: str, block: str) -> None:
    (repo / "shoal.yaml").write_text(block.replace("make fix", "echo fixed > fixed"))
    load(repo / "shoal.yaml")

    done = shoal(repo, "shoal run shoal.yaml --json")

    assert done.code == 0, done.err
    assert git(repo, "branch", "--list", "agent/*")


@pytest.mark.parametrize(("page", "block"), PYTHON, ids=[page for page, _ in PYTHON])
def test_a_program_in_the_docs_runs(repo: Path, page: str, block: str) -> None:
    done = subprocess.run([sys.executable, "-c", block], cwd=repo, capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stderr
    if said := re.findall(r"# prints (.*)$", block, re.MULTILINE):
        assert done.stdout.splitlines() == said
    else:
        assert done.stdout.startswith("agent/")


def test_the_commands_in_the_docs_run_one_after_the_other(repo: Path) -> None:
    assert len(LINES) >= 6
    for line in LINES:
        done = shoal(repo, line)
        assert done.code == 0, (line, done.err)


def test_every_command_is_in_the_readme() -> None:
    done = subprocess.run([SHOAL, "--help"], capture_output=True, text=True, check=True)
    names = set(re.findall(r"^  ([a-z]+)  ", done.stdout, re.MULTILINE))
    text = "".join(page.read_text() for page in PAGES)

    assert {"run", "status", "logs", "diff", "open", "clean", "validate", "demo"} <= names
    assert not {name for name in names if f"shoal {name}" not in text and f"make {name}" not in text}
