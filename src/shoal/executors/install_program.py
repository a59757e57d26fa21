"""A program that installs Shoal on a host: `shoal node install` runs it there, by that host's Python.

    program.py probe | install FOLDER VERSION BUILD MODE | switch VERSION BUILD | uninstall

It answers with one JSON object per line. Python 3.7 must be able to run it, for it says that 3.11 is needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NODE = Path.home() / ".local" / "share" / "shoal" / "node"
BUILDS = NODE / "builds"
NEEDED = (3, 11)
STAMP = "installed"
OUTPUT_CHARS = 2000
INSTALL_SECONDS = 600
STALE_SECONDS = 86_400
FAILED = 3


def answer(**fields: object) -> None:
    """Print an answer."""
    print(json.dumps(fields), flush=True)


def fail(why: str, remedy: str) -> None:
    """Answer why it cannot be done, and end."""
    answer(error=why.strip(), remedy=remedy)
    sys.exit(FAILED)


def probe() -> None:
    """Describe this host."""
    libc, version = platform.libc_ver()
    answer(
        python=sys.executable,
        version="{}.{}.{}".format(*sys.version_info),
        machine=platform.machine(),
        libc=libc or "musl",
        libc_version=version,
        builds=sorted(build for build in list_builds() if (BUILDS / build / STAMP).exists()),
        links={link.name: os.readlink(str(link)) for link in list_links()},  # noqa: PTH115 - Path.readlink is of 3.9
    )


def has_module(name: str) -> bool:
    """Say whether this Python has a module."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def list_builds() -> list[str]:
    """List what is installed, or half installed."""
    return sorted(path.name for path in BUILDS.iterdir()) if BUILDS.is_dir() else []


def list_links() -> list[Path]:
    """List the links, each of which names the build of a version."""
    return sorted(path for path in NODE.iterdir() if path.is_symlink()) if NODE.is_dir() else []


def install(folder: str, version: str, build: str, mode: str) -> None:
    """Make the virtual environment of a build, whole or not at all; one that is there is left as it is."""
    target = BUILDS / build
    is_new = not (target / STAMP).exists()
    if is_new:
        BUILDS.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(str(target), ignore_errors=True)
        try:
            fill(target, Path(folder), version, has_wheels=mode == "wheels")
        except BaseException:
            shutil.rmtree(str(target), ignore_errors=True)
            raise
        (target / STAMP).touch()
    answer(installed=build, is_new=is_new)


def fill(target: Path, folder: Path, version: str, *, has_wheels: bool) -> None:
    """Make the environment, and check that Shoal starts in it."""
    pip = make_venv(target)
    (wheel,) = folder.glob(f"shoal-{version}-*.whl")
    source = ["--no-index", "--find-links", str(folder)] if has_wheels else []
    done = call([*pip, "install", "--quiet", "--no-input", "--disable-pip-version-check", *source, str(wheel)])
    if done.returncode != 0:
        remedy = "add the missing wheels to that folder" if has_wheels else "send the wheels from here: --send-wheels"
        fail(f"its pip could not install what Shoal needs: {done.stdout[-OUTPUT_CHARS:]}", remedy)
    done = call([str(target / "bin" / "shoal"), "--version"])
    if done.returncode != 0 or done.stdout.split() != ["shoal", version]:
        fail(f"Shoal does not start there: {done.stdout[-OUTPUT_CHARS:]}", "mend what the message names")


def make_venv(target: Path) -> list[str]:
    """Make an environment, and return the command of its pip."""
    python = str(target / "bin" / "python")
    has_pip = has_module("ensurepip")
    done = call([sys.executable, "-m", "venv", *(() if has_pip else ("--without-pip",)), str(target)])
    if done.returncode != 0:
        fail(f"it can make no virtual environment: {done.stdout[-OUTPUT_CHARS:]}", "mend its Python")
    if not has_pip and not has_module("pip"):
        fail("its Python has neither ensurepip nor pip", "install python3-venv there (Debian, Ubuntu), or python3-pip")
    return [python, "-m", "pip"] if has_pip else [sys.executable, "-m", "pip", "--python", python]


def call(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, and give its output and its errors as one text."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_REQUIRE_VIRTUALENV")}
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=INSTALL_SECONDS,
            env=env,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, str(error))


def switch(version: str, build: str) -> None:
    """Use a build from now on: each link moves in one step."""
    for name in (version, "current"):
        aside = NODE / f".{name}.{os.getpid()}"
        aside.symlink_to(Path("builds", build))
        aside.replace(NODE / name)
    answer(current=build, removed=prune())


def prune() -> list[str]:
    """Remove builds that no link names and no process runs, and what killed installations left."""
    named = {Path(os.readlink(str(link))).name for link in list_links()}  # noqa: PTH115 - Path.readlink is of 3.9
    old = [build for build in list_builds() if build not in named and not is_in_use(build)]
    for build in old:
        shutil.rmtree(str(BUILDS / build), ignore_errors=True)
    for path in NODE.glob("incoming.*"):
        if path.stat().st_mtime < time.time() - STALE_SECONDS:
            shutil.rmtree(str(path), ignore_errors=True)
    return old


def is_in_use(build: str) -> bool:
    """Say whether a process runs a build: its command line names it."""
    sign = os.fsencode(str(BUILDS / build)) + b"/"
    return any(sign in line for line in read_command_lines())


def read_command_lines() -> Iterator[bytes]:
    """Read the command lines of all processes that this user may see."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def uninstall() -> None:
    """Remove all builds; the work that nodes keep lies elsewhere, and stays."""
    builds = list_builds()
    used = [build for build in builds if is_in_use(build)]
    if used:
        fail("nodes run there", "wait for the end of their runs, or stop them")
    shutil.rmtree(str(NODE), ignore_errors=True)
    answer(uninstalled=builds)


def main(words: Sequence[str]) -> None:
    """Do what *words* name, one at a time on this host."""
    if sys.version_info < NEEDED:
        version = "{}.{}".format(*sys.version_info)
        fail(f"its {sys.executable} is Python {version}", "name a Python 3.11 or newer of that host: --python PATH")
    if words[0] == "probe":
        probe()
        return
    NODE.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (NODE.parent / ".node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if words[0] == "install":
            install(*words[1:])
        elif words[0] == "switch":
            switch(*words[1:])
        elif words[0] == "uninstall":
            uninstall()


if __name__ == "__main__":
    main(sys.argv[1:])
