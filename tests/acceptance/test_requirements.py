"""The table of requirements: every row has a verdict, and every test and script that it names is there."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("requirements.md")
ROWS = {"000": 33, "001": 31, "002": 93, "003": 24, "004": 48}
LATER = {
    "later: PostgreSQL and pooling",
    "later: auto-scaling",
    "later: containers",
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """A row of the table."""

    seed: str
    text: str
    verdict: str
    evidence: str

    @property
    def tests(self) -> list[str]:
        """The tests that it names."""
        return re.findall(r"`(tests/[^`]*)`", self.evidence)

    @property
    def scripts(self) -> list[str]:
        """The scripts that it names."""
        return re.findall(r"`(scripts/[^`]*)`", self.evidence)


def requirements() -> list[Requirement]:
    lines = [line for line in TABLE.read_text().splitlines() if re.match(r"\| \d{3} \|", line)]
    return [Requirement(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


def has_test(name: str) -> bool:
    """Look for a test at any depth: some are defined only where a condition holds, as for root."""
    file, _, test = name.partition("::")
    path = ROOT / file
    if not path.is_file():
        return False
    nodes = ast.walk(ast.parse(path.read_text()))
    return test in {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_requirement_of_every_seed_has_its_row() -> None:
    assert Counter(row.seed for row in requirements()) == ROWS


def test_what_is_met_names_tests_and_nothing_else() -> None:
    met = [row for row in requirements() if row.verdict == "met"]

    assert [row for row in met if not row.tests] == []
    assert [row for row in met if row.evidence != ", ".join(f"`{test}`" for test in row.tests)] == []


def test_every_test_that_is_named_is_there() -> None:
    named = {test for row in requirements() for test in row.tests}

    assert sorted(test for test in named if not has_test(test)) == []


def test_what_is_shown_names_its_script_of_the_bench_and_the_nearest_test() -> None:
    shown = [row for row in requirements() if row.verdict == "shown"]
    bench = (ROOT / "Makefile").read_text().partition("\nbench:")[2].partition("\n\n")[0]

    assert shown
    assert [row for row in shown if "shown by `make bench`" not in row.evidence or not row.tests] == []
    assert [row for row in shown if len(row.scripts) != 1 or row.scripts[0] not in bench] == []


def test_what_is_not_met_is_left_to_a_part_of_the_plan() -> None:
    others = [row for row in requirements() if row.verdict not in ("met", "shown")]

    assert {row.verdict for row in others} <= LATER
    assert [row for row in others if row.evidence] == []
