"""Where everything is below a repository's `.shoal`."""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shoal.errors import BadInput, BadRepository, Broken

RESERVE = "reserve"
TRIAL = "trial-"
"""The prefix of a trial's folder among the session directories; the name of its process follows."""
LONGEST_ROOT = 400
"""SQLite cannot open a path of over 512 bytes, and names of sessions and its own suffixes follow this one."""


@dataclass(frozen=True)
class StatePaths:
    """The paths of Shoal's state below a repository's `.shoal`; *root* is absolute and resolved.

    Without slots, so that each path is made once.
    """

    root: Path

    @classmethod
    def of(cls, repo: Path) -> Self:
        """Return the paths of *repo*."""
        return cls((repo / ".shoal").resolve())

    @functools.cached_property
    def ledger(self) -> Path:
        """The database of runs, steps and sessions."""
        return self.root / "ledger.db"

    @functools.cached_property
    def store_choice(self) -> Path:
        """The file that names the server of the ledger, if it is on one."""
        return self.root / "store.json"

    @functools.cached_property
    def reserve(self) -> Path:
        """The file that reserves space for the ledger and for recovery, removed when the disk is full."""
        return self.root / RESERVE

    @functools.cached_property
    def sessions(self) -> Path:
        """The folder of the sessions' own databases."""
        return self.root / "sessions"

    @functools.cached_property
    def workspaces(self) -> Path:
        """The folder of the agents' workspaces."""
        return self.root / "workspaces"

    @functools.cached_property
    def session_dirs(self) -> Path:
        """The folder of the session directories."""
        return self.root / "boxes"

    @functools.cached_property
    def bases(self) -> Path:
        """The folder of shared read-only checkouts."""
        return self.root / "base"

    @functools.cached_property
    def objects(self) -> Path:
        """The folder of the objects that sandboxes may read, for each base."""
        return self.root / "objects"

    @functools.cached_property
    def setups(self) -> Path:
        """The folder of shared results of set-up commands."""
        return self.root / "setup"

    @functools.cached_property
    def locks(self) -> Path:
        """The folder of locks between processes."""
        return self.root / "locks"

    @functools.cached_property
    def pool(self) -> Path:
        """The folder of prepared workspaces."""
        return self.root / "pool"

    @functools.cached_property
    def results(self) -> Path:
        """The folder of runs' results: artifacts and patches."""
        return self.root / "results"

    def recording(self, run: str) -> Path:
        """Return the folder of what the agents of *run* and their models said to each other."""
        return self.results / component(f"{run}.recording")

    @functools.cached_property
    def runs(self) -> Path:
        """The folder of the runs' locks and output."""
        return self.root / "runs"

    @functools.cached_property
    def databases(self) -> Path:
        """The folder of what runs have on PostgreSQL servers, and of the files of servers of our own."""
        return self.root / "databases"

    @functools.cached_property
    def requests(self) -> Path:
        """The folder of requests to runs."""
        return self.root / "requests"

    def requests_of(self, run: str) -> Path:
        """Return the folder of requests to *run*."""
        return self.requests / component(run)

    def session_db(self, session: str) -> Path:
        """Name the database of *session*."""
        return self.sessions / f"{component(session)}.db"

    def workspace(self, run: str, step: str, index: int) -> Path:
        """Name the workspace of one worker."""
        return self.workspaces / f"{component(run)}/{component(step)}/worker_{index}"

    def session_dir(self, session: str) -> Path:
        """Return the session directory of *session*."""
        return self.session_dirs / component(session)

    @functools.cached_property
    def conversations(self) -> Path:
        """The folder of interrupted clients' conversations."""
        return self.root / "conversations"

    def conversation(self, run: str, name: str) -> Path:
        """Return the folder of one conversation of *run*."""
        return self.conversations / component(run) / component(name)

    def run_lock(self, run: str) -> Path:
        """Return the lock that the owner of *run* holds."""
        return self.runs / f"{component(run)}.lock"

    def run_output(self, run: str) -> Path:
        """Return the file for the output of a detached *run*."""
        return self.runs / f"{component(run)}.out"

    def open_output(self, run: str) -> int:
        """Open that file to append to it; raise `Broken` if that fails."""
        path = self.run_output(run)
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Broken(f"{path} cannot be written: {error.strerror}") from error

    def create(self) -> None:
        """Create the folders, for this user only; existing ones stay."""
        if (length := len(os.fsencode(self.root))) > LONGEST_ROOT:
            why = f"its path has {length} bytes, but Shoal supports at most {LONGEST_ROOT}"
            raise BadRepository(self.root, f"{why}; move the repository to a shorter path")
        try:
            for folder in (self.root, *self._folders()):
                folder.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError as error:
            raise BadRepository(
                Path(error.filename), "is not a folder; Shoal keeps its state there: move it away"
            ) from error
        except OSError as error:
            raise Broken(f"the folders below {self.root} cannot be created: {error.strerror}") from error

    def _folders(self) -> tuple[Path, ...]:
        return (
            self.sessions,
            self.workspaces,
            self.session_dirs,
            self.bases,
            self.objects,
            self.locks,
            self.pool,
            self.results,
            self.runs,
        )


def component(name: str) -> str:
    """Return *name* if it is a valid file name; otherwise raise `BadInput`."""
    # names come from YAML and from commands: none may leave its folder
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise BadInput(f"{name!r} is not a valid name of a run, step or session: it must be a plain file name")
    return name
