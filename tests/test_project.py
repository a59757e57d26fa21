"""The project as a whole: its version, its public names, and what its files must not contain."""

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import shoal

ROOT = Path(__file__).parents[1]
ADRS = sorted(path.name for path in (ROOT / "docs" / "adr").glob("[0-9]*.md"))
SHOAL = Path(sys.executable).with_name("shoal")

# Concatenated, so that this file does not match them itself.
FORBIDDEN = {
    "a registry's address": re.compile("(extra-)?index" + r"[-_]url|https?://\S*(/simple\b|registry\.)"),
    "a path of one machine": re.compile(r"(^|[\s\"'`=(:])/" + r"(work|root/\.pyenv)/"),
}


def list_files() -> list[Path]:
    """Return every file that git tracks or would track."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in completed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def measure_cpu(*command: str | Path) -> float:
    """Return the CPU seconds of the best of five times, which depend less on what else this machine does."""

    def children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def measure_once() -> float:
        before = children()
        subprocess.run(command, check=True, capture_output=True)
        return children() - before

    return min(measure_once() for _ in range(5))


def test_the_command_says_its_version() -> None:
    completed = subprocess.run([SHOAL, "--version"], capture_output=True, text=True, check=True)

    assert completed.stdout.split() == ["shoal", shoal.__version__]


def test_the_version_comes_at_once() -> None:
    assert measure_cpu(SHOAL, "--version") < 5 * measure_cpu(sys.executable, "-c", "pass")


def test_public_names_are_sorted_and_real() -> None:
    public = list(shoal.__all__)

    assert public == sorted(public)
    assert [name for name in public if not hasattr(shoal, name)] == []
    assert {"IsolatedAgentSession", "Task", "__version__"} <= set(public)


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what: str) -> None:
    pattern = FORBIDDEN[what]
    matches = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in list_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]

    assert matches == []


def test_every_decision_is_listed_in_order() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()

    assert re.findall(r"\((\d{4}-[\w-]+\.md)\)", index) == ADRS
    assert [int(name[:4]) for name in ADRS] == list(range(1, len(ADRS) + 1))


@pytest.mark.parametrize("name", ADRS)
def test_a_decision_says_why_what_and_what_follows(name: str) -> None:
    text = (ROOT / "docs" / "adr" / name).read_text()

    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence"]
    assert len(text.splitlines()) <= 40, "half a page"
