"""The project as a whole: its version, its public names, and what its files may not say."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shoal

ROOT = Path(__file__).parents[1]
ADRS = sorted(path.name for path in (ROOT / "docs" / "adr").glob("[0-9]*.md"))
SHOAL = Path(sys.executable).with_name("shoal")

# Put together here, so that this file does not hold them either.
FORBIDDEN = {
    "a registry's address": re.compile("(extra-)?index" + r"[-_]url|https?://\S*(/simple\b|registry\.)"),
    "a path of one machine": re.compile(r"(^|[\s\"'`=(:])/" + r"(work|root/\.pyenv)/"),
}


def tracked() -> list[Path]:
    """Every file that git keeps or would keep."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def seconds(*command: str | Path) -> float:
    """The best of five: what is left when nothing else was in the way."""

    def once() -> float:
        before = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - before

    return min(once() for _ in range(5))


def test_the_command_says_its_version() -> None:
    done = subprocess.run([SHOAL, "--version"], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["shoal", shoal.__version__]


def test_the_version_comes_at_once() -> None:
    assert seconds(SHOAL, "--version") < 10 * seconds(sys.executable, "-c", "pass")


def test_public_names_are_sorted_and_real() -> None:
    public = list(shoal.__all__)

    assert public == sorted(public)
    assert [name for name in public if not hasattr(shoal, name)] == []
    assert {"IsolatedAgentSession", "Task", "__version__"} <= set(public)


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what: str) -> None:
    pattern = FORBIDDEN[what]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]

    assert found == []


def test_every_decision_is_listed_in_order() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()

    assert re.findall(r"\((\d{4}-[\w-]+\.md)\)", index) == ADRS
    assert [int(name[:4]) for name in ADRS] == list(range(1, len(ADRS) + 1))


@pytest.mark.parametrize("name", ADRS)
def test_a_decision_says_why_what_and_what_follows(name: str) -> None:
    text = (ROOT / "docs" / "adr" / name).read_text()

    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence"]
    assert len(text.splitlines()) <= 40, "half a page"
