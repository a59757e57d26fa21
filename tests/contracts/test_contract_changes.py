"""Contracts about files: files that must exist, files that must change, and tests that may not be deleted."""

from dataclasses import replace
from pathlib import Path

from shoal.contracts.check import check
from shoal.model.contract import NoTestDeletions, SourceDiff
from tests.conftest import git
from tests.contracts.contracting import asked, benched, committed, non_empty

NO_LOSS = NoTestDeletions(type="no_test_deletions")


HOSTILE = """
echo secret > plain; ln -s plain link; ln -s /etc/passwd out; mkdir -p dir real; echo x > real/in; ln -s real through
: > empty; printf ' \\n\\t\\n' > blank; printf x > "new
line"; printf 'x' > -rf; head -c 2000000 /dev/zero | tr '\\0' ' ' > wide"""


PATHS = {
    **dict.fromkeys(("plain", "real/in", "large", "-rf"), True),
    **dict.fromkeys(
        ("link", "out", "through/in", "real", "empty", "blank", "wide", "none", "plai*", ":(glob)**"), False
    ),
    **dict.fromkeys(("../repo/plain", "/etc/passwd", "new\nline", "pla\0in", ".git/config"), False),
}


async def test_only_a_plain_file_with_something_in_it_is_one(repo: Path) -> None:
    commit = committed(repo, f"{HOSTILE}; head -c 104857600 /dev/zero | tr '\\0' x > large")

    found = await asked(repo, commit, *map(non_empty, PATHS))

    assert {path: one.is_met for path, one in zip(PATHS, found, strict=True)} == PATHS
    assert all(one.message.isprintable() for one in found)


async def test_names_with_newlines_are_data(repo: Path) -> None:
    commit = committed(repo, HOSTILE)

    async with benched(repo, commit) as bench:
        paths = {one.path for one in await bench.changes()}
        assert await bench.read("new\nline", 10) == b"x"
        assert await bench.read("wide", 1000) == b" " * 1000
        (told,) = await check([SourceDiff(type="source_diff", paths=("*line",), min_files=2)], bench)

    assert "new\nline" in paths
    assert told.message.startswith("1 files of *line are changed, but at least 2 are required; also changed: ")
    assert told.message.isprintable()


DIFFS = (
    (SourceDiff(type="source_diff"), True),
    (SourceDiff(type="source_diff", min_files=4), False),
    (SourceDiff(type="source_diff", paths=("src/**/*.py",)), True),
    (SourceDiff(type="source_diff", paths=("src/**/*.py",), min_files=2), False),
    (SourceDiff(type="source_diff", paths=("*.py",), exclude=("tests/**",)), True),
    (SourceDiff(type="source_diff", exclude=("tests/", "docs/", "src/")), False),
    (SourceDiff(type="source_diff", paths=("README.md",)), False),
)


async def test_source_has_to_be_changed(repo: Path) -> None:
    commit = committed(
        repo, "mkdir -p src/a tests docs; echo 1 > src/a/x.py; echo 2 > tests/test_x.py; echo 3 > docs/x.md"
    )

    found = await asked(repo, commit, *(contract for contract, _ in DIFFS))

    assert [one.is_met for one in found] == [is_met for _, is_met in DIFFS]


TESTS = """
mkdir -p tests src
printf 'def test_a():\\n    pass\\n\\nasync def test_b():\\n    pass\\n\\nclass TestX:\\n    def test_c(self): pass\\n' > tests/test_a.py
printf "it('adds', () => {})\\ntest('subtracts', () => {})\\n" > src/x.test.ts
printf 'func TestAdd(t *testing.T) {\\n}\\n' > src/x_test.go
printf 'no test\\n' > src/x.py
"""


LOSSES = (
    ("echo 1 >> src/x.py", None),
    ("printf 'def test_d(): pass\\n' >> tests/test_a.py", None),
    ("git mv tests/test_a.py tests/test_b.py", None),
    ("sed -i s/test_a/test_z/ tests/test_a.py", None),
    ("git rm -q src/x.py", None),
    ("rm tests/test_a.py; printf 'def test_a(): pass\\ndef test_b(): pass\\ndef test_c(): pass\\n' > tests/test_n.py", "test files are deleted: tests/test_a.py"),
    ("sed -i '/test_c/d; /class/d' tests/test_a.py; printf 'def test_c(): pass\\n' > tests/test_n.py", None),
    ("git rm -q src/x_test.go", "test files are deleted: src/x_test.go"),
    ("git mv tests/test_a.py tests/a.py", "test files are deleted: tests/test_a.py"),
    ("rm tests/test_a.py; ln -s ../src/x.py tests/test_a.py", "test files are deleted: tests/test_a.py"),
    (": > tests/test_a.py", "there were 3 tests in the changed test files, and 0 are left"),
    (": > tests/test_a.py; printf 'def test_x(): pass\\ndef test_y(): pass\\ndef test_z(): pass\\n' > tests/test_n.py", "no tests are left in tests/test_a.py"),
    ("echo '# later' > tests/test_a.py; sed 's/^/def test_x(): pass#/' src/x.test.ts src/x_test.go > tests/test_n.py", "no tests are left in tests/test_a.py"),
    ("sed -i '/test_b/d' tests/test_a.py", "there were 3 tests in the changed test files, and 2 are left"),
    ("sed -i 's/^def test_a/# def test_a/' tests/test_a.py", "there were 3 tests in the changed test files, and 2 are left"),
    ("sed -i \"s/^it(/it.skip(/\" src/x.test.ts", "there were 2 tests in the changed test files, and 1 are left"),
    ("sed -i \"s/^it(/xit(/\" src/x.test.ts", "there were 2 tests in the changed test files, and 1 are left"),
    ("git rm -q src/x_test.go src/x.test.ts tests/test_a.py", "test files are deleted: src/x.test.ts, src/x_test.go, tests/test_a.py"),
    ("head -c 5000000 /dev/zero > tests/test_a.py", "tests/test_a.py is too large to count its tests"),
)  # fmt: skip


async def test_tests_may_not_be_taken_away(repo: Path) -> None:
    git(repo, "checkout", "-q", "-B", "main", committed(repo, TESTS))
    commits = [committed(repo, script) for script, _ in LOSSES]

    async with benched(repo, None) as bench:
        found = [(await check([NO_LOSS], replace(bench, commit=commit)))[0] for commit in commits]

    assert [None if one.is_met else one.message for one in found] == [told for _, told in LOSSES]


async def test_tests_may_have_names_of_their_own(repo: Path) -> None:
    own = replace(NO_LOSS, patterns=("d0/**",))

    first, second = await asked(repo, committed(repo, "rm d0/f1.txt"), NO_LOSS, own)
    (third,) = await asked(repo, committed(repo, ": > d0/f1.txt"), own)

    assert first.is_met
    assert second.message == "test files are deleted: d0/f1.txt"
    assert third.message == "no tests are left in d0/f1.txt"
