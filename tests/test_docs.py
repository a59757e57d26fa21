"""Every example and every command in the docs runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import ExitCode
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
# A line on several pages runs once.
LINES = dict.fromkeys(
    line.split("  #")[0].rstrip()
    for page in PAGES
    for block in blocks(page, "sh")
    for line in block.splitlines()
    if re.search(r"(^|\| )shoal ", line)
)


def shoal(repo: Path, line: str) -> Said:
    """Run a line of the docs, in a shell if it has pipes or redirections."""
    if not re.search(r"[|<>]", line):
        return warm.ran(shlex.split(line)[1:], cwd=repo, env=os.environ, timeout=100)
    argv = ["sh", "-c", line.replace("shoal ", f"{SHOAL} ", 1)]
    completed = subprocess.run(argv, cwd=repo, capture_output=True, text=True, check=False, timeout=100)
    return Said(completed.returncode, completed.stdout, completed.stderr)


@pytest.mark.parametrize(("page", "block"), YAML, ids=[page for page, _ in YAML])
def test_a_document_in_the_docs_runs(repo: Path, page: str, block: str) -> None:
    (repo / "shoal.yaml").write_text(block.replace("make fix", "echo fixed > fixed"))
    load(repo / "shoal.yaml")

    printed = shoal(repo, "shoal run shoal.yaml --json")

    assert printed.code == 0, printed.err
    assert git(repo, "branch", "--list", "agent/*")


@pytest.mark.deep
@pytest.mark.parametrize(("page", "block"), PYTHON, ids=[page for page, _ in PYTHON])
def test_a_program_in_the_docs_runs(repo: Path, page: str, block: str) -> None:
    completed = subprocess.run([sys.executable, "-c", block], cwd=repo, capture_output=True, text=True, timeout=100)

    assert completed.returncode == 0, completed.stderr
    if expected := re.findall(r"# prints (.*)$", block, re.MULTILINE):
        assert completed.stdout.splitlines() == expected
    else:
        assert completed.stdout.startswith("agent/")


def test_the_commands_in_the_docs_run_one_after_the_other(repo: Path) -> None:
    assert len(LINES) >= 6
    for line in LINES:
        printed = shoal(repo, line)
        assert printed.code == 0, (line, printed.err)


def test_the_commands_of_the_readme_run_as_printed_in_a_fresh_repository(tmp_path: Path) -> None:
    repo = tmp_path / "fresh"
    subprocess.run(["git", "init", "-q", "-b", "main", repo], check=True)
    git(repo, "-c", "user.name=n", "-c", "user.email=n@localhost", "commit", "-q", "--allow-empty", "-m", "first")
    page = ROOT / "README.md"
    lines = [line.split("  #")[0].rstrip() for block in blocks(page, "sh") for line in block.splitlines()]
    (document,) = blocks(page, "yaml")
    (repo / "shoal.yaml").write_text(document)
    lines += re.findall(r"`(shoal (?:run|validate) shoal.yaml[^`]*)`", page.read_text())

    results = {line: shoal(repo, line) for line in lines if line.startswith("shoal ")}

    assert len(results) >= 10
    assert {line: result.err for line, result in results.items() if result.code != 0} == {}


def test_every_command_is_in_the_readme() -> None:
    completed = subprocess.run([SHOAL, "--help"], capture_output=True, text=True, check=True)
    names = set(re.findall(r"^  ([a-z]+)  ", completed.stdout, re.MULTILINE))
    text = "".join(page.read_text() for page in PAGES)

    assert {"run", "status", "logs", "diff", "open", "clean", "validate", "demo"} <= names
    assert not {name for name in names if f"shoal {name}" not in text and f"make {name}" not in text}


def test_the_docs_explain_every_exit_code() -> None:
    section = (ROOT / "docs" / "commands.md").read_text().split("## Exit codes")[1].split("\n## ")[0]

    assert re.findall(r"^\| (\d+) \|", section, re.MULTILINE) == [str(int(code)) for code in ExitCode]
