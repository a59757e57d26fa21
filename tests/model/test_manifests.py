"""Of files that everybody changes, only the parts count that run code without being asked."""

import json
import time

import pytest

from shoal.model.executable_files import (
    MOST_BYTES,
    UNREADABLE,
    find_changed_hooks,
    is_manifest,
    is_repository,
    possible_repositories,
)

EVERY_DAY = [
    ("package.json", {"dependencies": {"a": "1"}}, {"dependencies": {"a": "2", "b": "1"}}),
    ("package.json", {"scripts": {"test": "jest"}}, {"scripts": {"test": "vitest", "lint": "eslint"}, "version": "2"}),
    ("package.json", {"packageManager": "pnpm@9.0.0"}, {"packageManager": "pnpm@9.1.0+sha512.aa"}),
    ("package.json", {"scripts": {"postinstall": "x"}}, {"scripts": {}}),
    ("package.json", {"scripts": {"prepare": "husky"}}, {"scripts": {"prepare": "husky"}, "version": "2"}),
    ("composer.json", {"require": {"a": "1"}}, {"require": {"a": "2"}, "scripts": {"test": "phpunit"}}),
]
RUNS = [
    ("package.json", {}, {"scripts": {"postinstall": "x"}}, "scripts.postinstall"),
    ("web/Package.JSON", {"scripts": {"prepare": "a"}}, {"scripts": {"prepare": "b"}}, "scripts.prepare"),
    ("package.json", None, {"simple-git-hooks": {"pre-commit": "x"}}, "simple-git-hooks"),
    ("package.json", {}, {"packageManager": "yarn@https://example.org/x.tgz"}, "packageManager"),
    ("package.json", {}, {"pnpm": {"onlyBuiltDependencies": ["x"]}}, "pnpm.onlyBuiltDependencies"),
    ("composer.json", {}, {"scripts": {"post-install-cmd": "x"}}, "scripts.post-install-cmd"),
    ("composer.json", {}, {"config": {"allow-plugins": True}}, "config.allow-plugins"),
]
PYPROJECT = '[project]\nname = "a"\n[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
HOOKS = [
    ('backend-path = ["."]', "build-system.backend-path"),
    ('[tool.hatch.build.hooks.custom]\npath = "x.py"', "tool.hatch.build.hooks"),
    ('[tool.hatch.build.targets.wheel.hooks.custom]\npath = "x.py"', "tool.hatch.build.targets.wheel.hooks"),
    ('[tool.poetry.build]\nscript = "x.py"', "tool.poetry.build"),
    ('[[tool.uv.index]]\nurl = "https://example.org"', "tool.uv.index"),
]


def content(said: object) -> bytes | None:
    return None if said is None else json.dumps(said).encode()


@pytest.mark.parametrize(("path", "before", "after"), EVERY_DAY)
def test_what_is_changed_every_day_does_not_count(path: str, before: object, after: object) -> None:
    assert is_manifest(path)
    assert find_changed_hooks(path, content(before), content(after)) == ()


@pytest.mark.parametrize(("path", "before", "after", "part"), RUNS)
def test_what_runs_by_itself_counts(path: str, before: object, after: object, part: str) -> None:
    assert is_manifest(path)
    assert find_changed_hooks(path, content(before), content(after)) == (part,)


@pytest.mark.parametrize(("text", "part"), HOOKS)
def test_what_builds_a_python_package_counts(text: str, part: str) -> None:
    assert find_changed_hooks("pyproject.toml", PYPROJECT.encode(), f"{PYPROJECT}{text}\n".encode()) == (part,)


def test_dependencies_of_a_python_package_do_not_count() -> None:
    after = PYPROJECT.replace('name = "a"', 'name = "a"\ndependencies = ["requests>=2.31.0", "pydantic==2.7.1"]')
    after += "[tool.ruff.lint]\nselect = ['ALL']\n"

    assert find_changed_hooks("pyproject.toml", PYPROJECT.encode(), after.encode()) == ()


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b'{"scripts": []}', b"[" * 100_000, b'{"a": ' + b"9" * 5000])
def test_what_cannot_be_read_counts_as_a_whole(text: bytes) -> None:
    assert find_changed_hooks("package.json", b"{}", text) == (UNREADABLE,)


def test_a_hostile_file_takes_no_time() -> None:
    line = b"a." * 12 + b"%d=1\n"
    few = b"".join(line % number for number in range(MOST_BYTES // 32))
    began = time.process_time()

    assert find_changed_hooks("pyproject.toml", None, few) == ()
    assert find_changed_hooks("pyproject.toml", None, b"a." * (MOST_BYTES // 2) + b"a = 1\n") == (UNREADABLE,)
    assert time.process_time() - began < 5


def test_folders_that_could_be_repositories_are_named() -> None:
    paths = ["bare/HEAD", "a/b/Objects/x", "a/hooks/pre-commit", "src/config.py", "config/x.yml", "x/config"]

    assert list(possible_repositories(paths)) == ["bare", "a/b", "a", "x"]


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        (("HEAD", "objects", "refs", "config"), True),
        (("head", "OBJECTS", "refs"), True),
        (("HEAD", "commondir"), True),
        (("objects", "refs", "config"), False),
        (("HEAD", "objects"), False),
    ],
)
def test_a_repository_is_known_by_what_git_looks_for(names: tuple[str, ...], is_one: bool) -> None:
    assert is_repository(names) is is_one
