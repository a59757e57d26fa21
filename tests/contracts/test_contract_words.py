"""Agents' text, parsed for contracts: hostile verdicts, paths and test files."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.committed_files import fits, fitting
from shoal.contracts.review import ReviewVerdict, verdict
from shoal.contracts.types.no_test_deletions import DEFINITION, USUAL

GOOD = '{"verdict": "pass", "reasons": []}'


@pytest.mark.parametrize(
    "content", [b"\n" * 2_000_000, b"func (" * 500_000, b"def " * 700_000, b"it." * 900_000, b"#[a::" * 500_000]
)
def test_counting_tests_takes_no_time_whatever_the_file(content: bytes) -> None:
    for one in (content, content.replace(b" ", b"\n"), b"\n".join(content[:3_000_000].split(b" "))):
        assert sum(1 for _ in DEFINITION.finditer(one)) == 0


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (GOOD, True),
        (f"I looked.\n\n```json\n{GOOD}\n```\n", True),
        ('{\n  "verdict": "fail",\n  "reasons": ["a", "b"]\n}', False),
        ('{"reasons": [], "verdict": "pass"}', True),
        (f"{GOOD}\n{GOOD}", True),
        ('{"verdict": "pass"}', True),
        ('{"verdict": "PASS", "reasons": []}', None),
        ('{"verdict": true, "reasons": []}', None),
        ('{"verdict": "pass", "reasons": "none"}', None),
        ('{"verdict": "pass", "reasons": [1]}', None),
        ('{"verdict": "pass", "reasons": [], "but": 1}', True),
        ('{"verdict": "fail", "verdict": "pass", "reasons": []}', None),
        ('[{"verdict": "pass", "reasons": []}]', None),
        ('{"x": {"verdict": "pass", "reasons": []}}', None),
        (f'{{"verdict": "maybe", "reasons": []}}\n{GOOD}', None),
        ('{"verdict": ' * 10_000, None),
        ('{"reasons":[' * 20 + GOOD, None),
        ("", None),
    ],
)
def test_a_verdict_is_read_strictly(said: str, expected: bool | None) -> None:
    found = verdict(said)

    assert (found.is_pass if isinstance(found, ReviewVerdict) else None) is expected


@given(st.text(), st.sampled_from(["pass", "fail"]), st.lists(st.text(), max_size=3))
def test_the_last_word_of_a_reviewer_counts_whatever_it_said_before(before: str, word: str, reasons: list[str]) -> None:
    found = verdict(f"{before}\n{json.dumps({'verdict': word, 'reasons': reasons})}")

    assert isinstance(found, ReviewVerdict)
    assert found == ReviewVerdict(word == "pass", tuple(reasons))


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", "a/b/c.py", True),
        ("*.py", "c.pyc", False),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/a/b.py", False),
        ("src/**/*.py", "src/b.py", True),
        ("src/**/*.py", "src/a/a/b.py", True),
        ("src/**", "src/a/b", True),
        ("src/**", "source/a", False),
        ("docs/", "docs/a/b.md", True),
        ("**/tests/**", "a/tests/b", True),
        ("**/tests/**", "tests/b", True),
        ("**", "a\nb", True),
        ("[ab].txt", "b.txt", True),
        ("**/**/**/x", "x", True),
    ],
)
def test_patterns_mean_paths(pattern: str, path: str, expected: bool) -> None:
    assert fits(path, pattern) is expected


@given(st.lists(st.text(alphabet="ab.", min_size=1, max_size=3), min_size=1, max_size=40))
def test_patterns_take_no_time_whatever_the_path(parts: list[str]) -> None:
    path = "/".join(parts)

    assert fits(path, path.replace("b", "?"))
    assert fits(f"{path}/z", "**/*a*/**/*b*/**/*a*/**/nowhere/**/z") is False


async def test_others_go_on_while_thousands_of_deep_paths_are_looked_at() -> None:
    folder = "a/" * 1900
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        waiting = group.create_task(others())
        found = await fitting([f"{folder}{number}.txt" for number in range(2000)] + [f"{folder}test_a.py"], USUAL)
        waiting.cancel()

    assert found == {f"{folder}test_a.py"}
    assert turns > 20
