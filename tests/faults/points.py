"""Crash points: every durable effect of a command passes some, and a command can be killed at any of them.

The product knows nothing of this. In a process that is forked for one command, the interpreter reports each change to
the file system and each start of a process, and the doors of the ledger, of git and of mounts are wrapped. So an effect
that is added later has its crash points already, and the next sweep kills a run there.
"""

import inspect
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import shoal
from shoal.git import run as git_run
from shoal.store import database
from shoal.store.fold import fold
from shoal.store.kind import EventRow
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.store.requests import ControlRequest, post
from shoal.workspaces import mount
from tests.cli import warm

SRC = f"{Path(shoal.__file__).parent}/"
SEQUENCE = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NAMES = re.compile(r"(?<=import-)\w+|(?<=check-)\w+|(?<=seal-)\w+|[0-9a-f]{6,}|\d+")
MOUNT_READS = {"list_mounts", "table_version"}
GIT_READS = {
    "cat-file",
    "check-ignore",
    "check-ref-format",
    "config",
    "diff",
    "diff-tree",
    "for-each-ref",
    "log",
    "ls-files",
    "ls-tree",
    "merge-base",
    "rev-list",
    "rev-parse",
    "show",
    "status",
    "symbolic-ref",
    "var",
    "version",
}


@dataclass(frozen=True)
class Kill:
    """Where to die: at the *number*-th time the point *name* is passed, or any point if it has no name."""

    name: str | None
    number: int


@dataclass(frozen=True)
class Launch:
    """One command in a repository, where it dies, and where it writes the points it passed and its output."""

    words: tuple[str, ...]
    repo: Path
    env: dict[str, str]
    passed: Path
    said: Path
    kill: Kill | None = None
    at: float | None = None
    """When to begin, by the monotonic clock; `None` for now."""

    def start(self) -> BaseProcess:
        """Start the command in a process of its own."""
        started = warm.FORKED.Process(target=_become, args=(self,))
        started.start()
        return started

    def run(self, timeout: float = 100) -> int:
        """Run the command to its end and return its exit code, -9 for a kill."""
        command = self.start()
        command.join(timeout)
        is_over = command.exitcode is not None
        command.kill()
        command.join()
        code = command.exitcode
        command.close()
        assert is_over, f"shoal {self.words} did not end within {timeout} s; killed at {self.kill}"
        assert code is not None
        return code


def _become(launch: Launch) -> None:
    _Points(launch).install()
    streams = [str(launch.said), f"{launch.said}.err"]
    for stream in streams:
        Path(stream).touch()
    while launch.at is not None and time.monotonic() < launch.at:
        pass
    warm.become(list(launch.words), str(launch.repo), launch.env, streams)


class _Points:
    """Counts the passings of each point, writes them down, and dies where it should."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._counts: Counter[str | None] = Counter()
        self._lock = threading.RLock()  # guards the counts: the ledger has a thread of its own
        self._log = os.open(launch.passed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._state = StatePaths.of(launch.repo)

    def install(self) -> None:
        """Wrap the doors and listen to the interpreter."""
        # The log and the streams are opened before: they are no effects of the command.
        database.Database.write = self._recording(database.Database.write)  # type: ignore[method-assign]
        _replace_everywhere(git_run.git, self._calling_git(git_run.git))
        for name, door in list(vars(mount).items()):
            is_ours = inspect.isfunction(door) and door.__module__ == mount.__name__
            if is_ours and not name.startswith("_") and name not in MOUNT_READS:
                wrap = self._awaiting if inspect.iscoroutinefunction(door) else self._calling
                _replace_everywhere(door, wrap(name, door))
        sys.addaudithook(self._audit)

    def reach(self, name: str) -> None:
        """Pass the point *name*, or die here."""
        with self._lock:
            self._counts[name] += 1
            self._counts[None] += 1
            os.write(self._log, f"{name}\t{_site()}\n".encode())
            kill = self._launch.kill
            if kill is not None and kill.name in (name, None) and self._counts[kill.name] == kill.number:
                os.kill(os.getpid(), signal.SIGKILL)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            program = Path(os.fsdecode(arguments[1][0])).name
            if program != "git":  # has its door
                self.reach(f"start {program}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self._reach_path("write", arguments[0])
        elif event in SEQUENCE:
            self._reach_path(event.split(".")[1], arguments[0])

    def _reach_path(self, verb: str, path: object) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            place = _shape(os.fsdecode(path), self._launch.repo)
            if place is not None:
                self.reach(f"{verb} {place}")

    def _recording(self, write: Callable[..., list[int]]) -> Callable[..., list[int]]:
        def recorded(log: database.Database, rows: Sequence[EventRow], *more: object) -> list[int]:
            kinds = [row.kind for row in rows] or ["claim"] * any(more)
            for kind in kinds:
                self.reach(f"before {kind}")
            numbers = write(log, rows, *more)
            for kind in kinds:
                self.reach(f"after {kind}")
            if {"GateOpened", "RunResumed"} & set(kinds):
                self._answer()
            return numbers

        return recorded

    def _answer(self) -> None:
        """Answer each gate that asks, through the folder of requests, as another process would."""
        for run in fold(read_events(self._state)).runs.values():
            for step in run.waiting:
                about = 0 if step.gate is None else step.gate.seq
                post(
                    self._state,
                    ControlRequest(kind="answer", run=run.run, step=step.step, about=about, answer="approve"),
                )

    def _calling(self, name: str, door: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **more: Any) -> Any:  # noqa: ANN401
            self.reach(f"before {name}")
            result = door(*given, **more)
            self.reach(f"after {name}")
            return result

        return called

    def _awaiting(self, name: str, door: Callable[..., Any]) -> Callable[..., Any]:
        async def awaited(*given: Any, **more: Any) -> Any:  # noqa: ANN401
            self.reach(f"before {name}")
            result = await door(*given, **more)
            self.reach(f"after {name}")
            return result

        return awaited

    def _calling_git(self, git: Callable[..., Any]) -> Callable[..., Any]:
        async def called(gitdir: Path, *args: str, **more: Any) -> Any:  # noqa: ANN401
            words = [word for word in args if not word.startswith("-") and "=" not in word]
            if words[0] in GIT_READS:
                return await git(gitdir, *args, **more)
            name = f"git {words[0]}{_refs_in(more.get('stdin', b''), words[0])}"
            self.reach(f"before {name}")
            done = await git(gitdir, *args, **more)
            self.reach(f"after {name}")
            return done

        return called


def _site() -> str:
    """Name the function of ours that is about to change something: its file and its name."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        place, name = frame.f_code.co_filename, frame.f_code.co_name
        if place.startswith(SRC) and not name.startswith("<"):
            return f"{place[len(SRC) :]}:{name}"
        frame = frame.f_back
    return ""


def _refs_in(stdin: bytes, command: str) -> str:
    if command != "update-ref":
        return ""
    refs = re.findall(r"update (refs/(?:heads/)?[^/\0]+)", stdin.decode(errors="replace"))
    return f" {refs[0]}" if refs else ""


def _shape(path: str, repo: Path) -> str | None:
    """Name what *path* is, without what differs from run to run; `None` outside of the repository."""
    if not os.path.isabs(path):  # below a folder that was opened: the request of somebody, or part of a tree that goes
        return "request" if path.endswith(".json") else "inside"
    if not path.startswith(f"{repo}/"):
        return None
    parts = _NAMES.sub("*", path[len(str(repo)) + 1 :]).split("/")
    if parts[:2] in ([".shoal", "boxes"], [".shoal", "workspaces"], [".shoal", "runs"], [".shoal", "requests"]):
        parts[2:3] = ["*"] * len(parts[2:3])
    if len(parts) > 3:
        parts = [*parts[:2], "…", "worker" if parts[1] == "workspaces" else parts[-1]]
    return "/".join(parts)


def _replace_everywhere(old: object, new: object) -> None:
    """Put *new* wherever a module of ours has bound *old*."""
    for name, module in list(sys.modules.items()):
        if name.startswith("shoal."):
            for key, value in list(vars(module).items()):
                if value is old:
                    setattr(module, key, new)
