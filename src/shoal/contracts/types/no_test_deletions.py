"""The contract `no_test_deletions`: no test file is deleted, and there are no fewer tests than before."""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.contracts.committed_files import fitting
from shoal.contracts.workbench import PLAIN, Change, Workbench, list_paths
from shoal.model.contract import NoTestDeletions

if TYPE_CHECKING:
    from shoal.pipeline.keys.contracts import ContractShape

KEYS = ("patterns",)
NEEDED = ()


def build(keys: "ContractShape", schemas: Mapping[str, str]) -> NoTestDeletions:
    """Build the contract that *keys* describe."""
    del schemas
    return NoTestDeletions(type=keys.type, only_warns=keys.only_warns, patterns=tuple(keys.patterns or ()))


async def check(contract: NoTestDeletions, bench: Workbench) -> str | None:
    """Return which tests are lost, or `None`."""
    from shoal.contracts.types.no_test_deletions import find_lost_tests  # it runs git, and compiles a regex

    return await find_lost_tests(bench, contract.patterns)


SCRIPTS = ("js", "jsx", "ts", "tsx", "mjs", "cjs", "mts", "cts")
CLASSES = ("java", "kt", "scala", "groovy", "cs", "swift")
USUAL = (
    *("test_*.py", "*_test.py", "*_test.go", "*_test.rs", "*_test.rb", "*_spec.rb", "*_test.exs", "*_test.dart"),
    *(f"*.{kind}.{end}" for kind in ("test", "spec") for end in SCRIPTS),
    *(f"*{kind}.{end}" for kind in ("Test", "Tests", "Spec") for end in CLASSES),
    *("*Test.php", "*_test.cc", "*_test.cpp", "*_test.c", "test_*.c", "test_*.cpp", "*.bats"),
    *("**/__tests__/**", "**/tests/**/*.rs"),
)
# No part of it may look far ahead: the files are an agent's, and could make it search forever.
DEFINITION = re.compile(
    rb"""^[ \t]*(?:
        (?:async[ \t]+)? def [ \t]+ (?:self\.)? test\w*                                 # Python, Ruby
      | func [ \t]+ (?:\([^)\n]{0,200}\)[ \t]*)? (?:Test|Fuzz|Example|test)\w* [ \t]* \( # Go, Swift
      | \#\[ (?:\w{1,50}::){0,5} (?:test|rstest|test_case|case) \b                       # Rust
      | @ (?:Test|ParameterizedTest|RepeatedTest|TestFactory|Property) \b               # Java, Kotlin
      | \[ (?:Test|Fact|Theory|TestCase|TestMethod|InlineData|DataRow) \b               # C#
      | (?:it|test|specify|scenario) (?:\.(?!skip|todo)\w{1,30}){0,5} [ \t]* (?:[('"`]|do\b)  # JavaScript, Ruby, Elixir
      | (?:public[ \t]+)? function [ \t]+ test\w* [ \t]* \(                             # PHP
      | (?:TEST (?:_F|_P|_CASE|_METHOD)? | SCENARIO) [ \t]* \(                          # C, C++
      | @test [ \t]+ ["']                                                             # bats
    )""",
    re.VERBOSE | re.MULTILINE,
)
MOST_FILES = 1000
MOST_BYTES = 4 * 2**20


async def find_lost_tests(bench: Workbench, patterns: Sequence[str]) -> str | None:
    """Return which tests the work deletes, or `None`; what cannot be counted counts as deleted."""
    changes = await bench.changes()
    tests = await fitting({path for change in changes for path in (change.old_path, change.path)}, patterns or USUAL)
    touched = [change for change in changes if change.old_path in tests or change.path in tests]
    if gone := [change for change in touched if _is_gone(change, tests)]:
        return f"test files are deleted: {list_paths([change.old_path for change in gone], bench.mask)}"
    if len(touched) > MOST_FILES:
        return f"{len(touched)} test files are changed, but at most {MOST_FILES} can be checked"
    before = after = 0
    emptied: list[str] = []
    for change in touched:
        old = await _count_tests(change.old_mode, change.old_path, bench.read_before)
        new = await _count_tests(change.mode, change.path, bench.read)
        if old is None or new is None:
            return f"{list_paths([change.path], bench.mask)} is too large to count its tests"
        before, after = before + old.tests, after + new.tests
        # Identified by name alone: its tests may be in another file now, but that is also so for a deleted file.
        if (old.tests and not new.tests) or (new.is_blank and not old.is_blank):
            emptied.append(change.path)
    if after < before:
        return f"there were {before} tests in the changed test files, and {after} are left"
    return f"no tests are left in {list_paths(emptied, bench.mask)}" if emptied else None


def _is_gone(change: Change, tests: Collection[str]) -> bool:
    was_test = change.old_path in tests and change.old_mode in PLAIN
    return was_test and (change.mode not in PLAIN or change.path not in tests)


@dataclass(frozen=True, slots=True)
class _TestFile:
    """The contents of a test file."""

    tests: int
    is_blank: bool


async def _count_tests(mode: str, path: str, read: Callable[[str, int], Awaitable[bytes | None]]) -> _TestFile | None:
    """Count the tests of one file; `None` if it is too large."""
    content = await read(path, MOST_BYTES) if mode in PLAIN else b""
    if content is None or len(content) >= MOST_BYTES:
        return None
    return _TestFile(sum(1 for _ in DEFINITION.finditer(content)), not content.strip())
