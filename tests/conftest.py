"""Shared by all tests: coroutine tests run on a fresh loop, and scratch repositories are real ones."""

import asyncio
import atexit
import gc
import inspect
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests import outside

if TYPE_CHECKING:
    from tests.postgres import Server

BEFORE = pytest.StashKey[set[Path]]()
DEEP_SECONDS = 400
TEMPLATES: list[Path] = []

# Compile once a program that is started a thousand times.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The tests' list of the user's repositories is not the real one.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="shoal-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# Under nohup, or in the background of a shell, these are ignored, and would be in everything that the tests start.
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# Imported modules stay, so the garbage collector need not scan them, now or later.
gc.disable()


# The time of an example says more about the machine than about us.
# Half of the usual examples: each run draws others, and all tests share eight minutes.
settings.register_profile("patient", deadline=None, max_examples=50)
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the long sweeps more time than a test of `make test` has: on a busy machine they need it."""
    for item in items:
        if item.get_closest_marker("deep") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(DEEP_SECONDS))


def pytest_collection_finish() -> None:
    """Freeze what was imported, so that only the tests' garbage is collected."""
    gc.freeze()
    gc.enable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what exists outside."""
    session.config.stash[BEFORE] = outside.planted()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a test left something outside of its own folder, or a mount in it."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a worker of xdist: others still run
        return
    scratch: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    before = session.config.stash[BEFORE]
    left = (outside.planted() - before) | outside.mounts_below(scratch)
    if left:
        reporter.write_line(f"\n{outside.told(left)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def _templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hold a folder with repositories to copy."""
    TEMPLATES.append(tmp_path_factory.mktemp("templates"))
    yield
    TEMPLATES.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test on a fresh event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in wanted}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


def git(repo: Path, *args: str, **env: str) -> str:
    """Run git like the user, with a fixed identity, and return its output."""
    identity = {
        "GIT_AUTHOR_NAME": "Ada",
        "GIT_AUTHOR_EMAIL": "ada@example.org",
        "GIT_COMMITTER_NAME": "Ada",
        "GIT_COMMITTER_EMAIL": "ada@example.org",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
    }
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", *args], cwd=repo, env=clean | identity | env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"git {args}: {done.stderr}"
    return done.stdout.strip()


def make_repo(path: Path, files: int = 5, **init: str) -> Path:
    """Make a repository of many small files with one commit on `main`."""
    template = TEMPLATES[0] / "-".join(["repo", str(files), *init.values()])
    if not template.exists():
        _made(template, files, *init.values())
    shutil.copytree(template, path, symlinks=True)
    git(path, "update-index", "-q", "--refresh")
    return path


def _made(path: Path, files: int, *init: str) -> None:
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main", *init)
    for number in range(files):
        folder = path / f"d{number // 200}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}.txt").write_text(f"line {number}\n" * 20)
    (path / "README.md").write_text("scratch\n")
    git(path, "add", "-A")
    git(path, "commit", "-qm", "base")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A small real repository."""
    return make_repo(tmp_path / "repo")


@pytest.fixture
def new_repo(tmp_path: Path) -> Callable[..., Path]:
    """Make more repositories below the test's own folder."""
    return lambda name, files=5: make_repo(tmp_path / name, files)


@pytest.fixture(scope="session")
def server() -> Iterator["Server"]:
    """Run a PostgreSQL server for all tests of this process."""
    from tests.postgres import Server  # imports psycopg, which most tests do without

    running = Server("max_connections=300")
    running.start()
    yield running
    running.close()
