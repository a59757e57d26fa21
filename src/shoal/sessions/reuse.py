"""Reuse the directory of a session that changed nothing, so that the next session makes and removes little."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.model.policy import NETWORKS
from shoal.sessions.context import RunContext
from shoal.sessions.policy import network_of
from shoal.sessions.session_dir import User
from shoal.sessions.worker import WorkerSpec
from shoal.workspaces.kind import Workspace
from shoal.workspaces.mount import list_mounts, table_version
from shoal.workspaces.overlay import unmount_overlay
from shoal.workspaces.remove import Trash
from shoal.workspaces.spares import MOUNTED, WORKER, WORKSPACE

MOST_ENTRIES = 500
DEEPEST = 32  # nothing we write is deeper than refs; and each level costs a descriptor
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Fingerprint = tuple[tuple[str, int, int, int], ...]
Stamp = tuple[int, int, int]


def fingerprint(folder: Path) -> Fingerprint | None:
    """Return name, inode, size and change time of every entry; `None` if there are more than we could have written.

    Nobody can set the change time, and folders are opened by descriptor, never through a link.
    """
    try:
        return _entries(folder)
    except OSError:  # it was removed meanwhile, or cannot be read: then it is not as we wrote it
        return None


def _entries(folder: Path) -> Fingerprint | None:
    found: list[tuple[str, int, int, int]] = []
    top = os.open(folder, FOLDER)
    try:
        _list_entries(top, "", found)
    except _TooMany:
        return None
    finally:
        os.close(top)
    return tuple(sorted(found))


def stamps(folder: Path, names: Iterable[str]) -> dict[str, Stamp] | None:
    """Return inode, size and change time of each of *names* below *folder*; `None` if one is unavailable.

    With every folder on the way included, a link in place of one shows as another folder.
    """
    beginning = f"{folder}/"
    found: dict[str, Stamp] = {}
    try:
        for name in names:
            seen = os.lstat(beginning + name)
            found[name] = (seen.st_ino, seen.st_size, seen.st_ctime_ns)
    except OSError:
        return None
    return found


class _TooMany(Exception):
    """There are more entries than we wrote."""


def _list_entries(fd: int, place: str, found: list[tuple[str, int, int, int]]) -> None:
    with os.scandir(fd) as entries:
        for entry in entries:
            if len(found) >= MOST_ENTRIES or place.count("/") > DEEPEST:
                raise _TooMany
            seen = entry.stat(follow_symlinks=False)
            found.append((f"{place}/{entry.name}", seen.st_ino, seen.st_size, seen.st_ctime_ns))
            if entry.is_dir(follow_symlinks=False):
                _list_below(fd, place, entry.name, found)


def _list_below(fd: int, place: str, name: str, found: list[tuple[str, int, int, int]]) -> None:
    below = os.open(name, FOLDER, dir_fd=fd)
    try:
        _list_entries(below, f"{place}/{name}", found)
    finally:
        os.close(below)


GIT, ASIDE = "git", "git-aside"
LAYERS = ("upper", "work")
# All that we write into it, by folder. A change shows in the change time, which nobody can set. An older kernel may
# not show the second of two changes within some milliseconds, so folders that are that young are listed, too.
HISTORY: dict[str, set[str]] = {
    GIT: {"HEAD", "config", "index", "objects", "packed-refs", "refs"},
    f"{GIT}/objects": {"info"},
    f"{GIT}/objects/info": {"alternates"},
    f"{GIT}/refs": set(),
}
HOLDS: dict[str, set[str]] = {
    "own": {"home", "tmp", "data"},
    "own/home": {".gitconfig"},
    "own/tmp": set(),
    "own/data": set(),
    **HISTORY,
}
ENTRIES = {"own", "input", GIT, *LAYERS}
MOMENT_NS = 50_000_000
COARSE_NS = 1_000_000  # some file systems store whole seconds


@dataclass(frozen=True, slots=True)
class ReuseKey:
    """What a directory can be reused for: sessions on the same base, whose inputs have the same names."""

    index: Path
    inputs: tuple[str, ...]
    stays_mounted: bool
    """Whether their workspaces may stay mounted from one to the next."""


@dataclass(slots=True, kw_only=True)
class ReusableDir:
    """Whether a session may take over the directory of an earlier one, and leave its own."""

    trash: Trash
    session_dir: Path
    path: Path
    use: ReuseKey | None
    """`None` if no other session could use it."""
    is_mounted: bool = False
    """Whether it came with its workspace, in place and mounted."""
    written: dict[str, bytes] = field(default_factory=dict)
    """The content of the input files that were written."""
    _git: Fingerprint | None = field(default=None, init=False)
    _all: dict[str, Stamp] | None = field(default=None, init=False)
    _layer: dict[str, Stamp] | None = field(default=None, init=False)
    _mounts: int = field(default=0, init=False)
    _listed: dict[str, set[str]] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls,
        context: RunContext,
        worker: WorkerSpec,
        session_dir: Path,
        path: Path,
        prompts: Mapping[str, object],
        user: User | None,
    ) -> "ReusableDir":
        """Describe the directory of *worker*."""
        is_plain = context.kind.has_layers and not worker.task.inputs and not worker.limits.is_exact
        names = (*prompts, *(("passwd", "group", "git") if user else ()))
        is_known = is_plain and context.cleanup and not context.repository.is_shallow
        use = (
            ReuseKey(context.base.index, tuple(sorted(names)), _stays_mounted(context, worker, path))
            if is_known
            else None
        )
        return cls(trash=context.trash, session_dir=session_dir, path=path, use=use)

    def take(self) -> bool:
        """Take over a spare directory; `False` if there is none."""
        written = None if self.use is None else self.trash.spares.take(self.session_dir, self.use)
        if self.use is None or written is None:
            return False
        self.written = written
        if self.use.stays_mounted:
            self._take_mount()
        return True

    def _take_mount(self) -> None:
        """Move the workspace to its path; if others of its step are there already, mount it anew."""
        try:
            if not os.path.lexists(self.path.parent):
                self.is_mounted = _move(f"{self.session_dir}/{WORKSPACE}", self.path.parent)
                return
        except OSError:
            pass
        if os.path.exists(f"{self.session_dir}/{MOUNTED}"):  # noqa: PTH110
            unmount_overlay(self.session_dir / MOUNTED)
            for name in (WORKSPACE, *LAYERS):
                self.trash.throw(f"{self.session_dir}/{name}")

    def note(self, workspace: Workspace) -> None:
        """Record the state of the directory when the agent starts."""
        if self.use is None:
            self._git = fingerprint(self.session_dir / GIT)
            return
        self._all = stamps(self.session_dir, (*_HOLDS, *_inputs(self.use)))
        if self._all is None or all(stamp[2] % COARSE_NS == 0 for stamp in self._all.values()):
            self.use, self._git = None, fingerprint(self.session_dir / GIT)  # change times that are too coarse
            return
        # An entry added to a folder shows in its change time, except right after we changed it ourselves.
        since = time.time_ns() - MOMENT_NS
        held = {"": ENTRIES, "input": set(self.use.inputs), **HOLDS}
        self._listed = {name: held[name] for name in held if self._all is None or _last_change(self._all, name) > since}
        if self.use.stays_mounted and workspace.is_visible:
            self._layer = stamps(workspace.changes, _layer(workspace))
            self._mounts = table_version()

    def has_history(self) -> bool:
        """Return whether the agent's gitdir has changed."""
        if self.use is None:
            return self._git is None or fingerprint(self.session_dir / GIT) != self._git
        return self._all is None or not self._is_same(_HISTORY, HISTORY)

    def leave(self, workspace: Workspace) -> None:
        """Leave the workspace mounted for another session, if nothing was changed."""
        workspace.stays = (
            not workspace.keep
            and self._layer is not None
            and self._is_alone(workspace)
            and stamps(workspace.changes, _layer(workspace)) == self._layer
            and self._is_untouched()
        )

    def _is_alone(self, workspace: Workspace) -> bool:
        """Return whether nothing is beside the workspace or mounted in it; without a sandbox, anything is possible."""
        try:
            is_only = os.listdir(self.path.parent) == [WORKER]
        except OSError:
            return False
        is_same = not workspace.has_pointer or table_version() == self._mounts
        return is_only and (is_same or list_mounts(self.path) == [self.path])

    def keep_spare(self, workspace: Workspace | None) -> bool:
        """Keep the directory for another session if it is unchanged; `False` if it must be removed."""
        stays = workspace is not None and workspace.stays
        if self.is_mounted and workspace is None:  # it was never opened
            unmount_overlay(self.path)
        if self.use is None or not (stays or self._is_untouched()):
            return False
        # A killed session is recognised by its gitdir and layers: until those exist, it must not look like one.
        os.rename(f"{self.session_dir}/{GIT}", gitdir_aside(self.session_dir))  # noqa: PTH104
        if stays:
            _move(self.path.parent, f"{self.session_dir}/{WORKSPACE}")
        else:
            for name in LAYERS:  # never reused: the kernel may have them mounted in a dying namespace
                self.trash.throw(f"{self.session_dir}/{name}")
        if self.trash.spares.keep_spare(self.session_dir, self.use, self.written):
            return True
        if stays:
            unmount_overlay(self.session_dir / MOUNTED)
        return False

    def _is_untouched(self) -> bool:
        return self.use is not None and self._is_same((*_HOLDS, *_inputs(self.use)), self._listed)

    def _is_same(self, names: Iterable[str], folders: Iterable[str]) -> bool:
        """Return whether *names* are unchanged; stamps first, because listing a changed folder can be slow."""
        now = stamps(self.session_dir, names)
        if now is None or self._all is None or any(self._all[name] != stamp for name, stamp in now.items()):
            return False
        try:
            return all(
                set(os.listdir(f"{self.session_dir}/{folder}")) == self._listed[folder]
                for folder in folders
                if folder in self._listed
            )
        except OSError:
            return False


def gitdir_aside(session_dir: Path) -> str:
    """Return where a spare directory keeps its gitdir."""
    return f"{session_dir}/{ASIDE}"


def _stays_mounted(context: RunContext, worker: WorkerSpec, path: Path) -> bool:
    """Return whether a session's workspace moves as a whole, and nobody could still write in it afterwards.

    Set-up changes the layers; and a base of its own may be removed with the session.
    """
    if not context.kind.mounts_on_host or not context.base_stays:
        return False
    if worker.count != 1 or path.name != WORKER or worker.function is not None:  # functions run outside the sandbox
        return False
    if worker.task.nearest_setup is not None or context.project.setup is not None or context.project.included:
        return False
    # On the host's network, two agents can pass each other open descriptors.
    is_shut = context.sandbox.mounts and not NETWORKS[network_of(worker.task, worker.adapter)].shares_host
    return is_shut or (not context.sandbox.mounts and context.enforcer.holds_fleet != frozenset())


def _move(source: Path | str, target: Path | str) -> bool:
    """Move a folder, with what is mounted in it, to a path whose parents may not exist yet."""
    try:
        os.rename(source, target)  # noqa: PTH104
    except FileNotFoundError:
        if not os.path.isdir(source):  # noqa: PTH112
            return False
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        os.rename(source, target)  # noqa: PTH104
    return True


def _places(folders: Mapping[str, set[str]]) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for folder, names in folders.items() for name in sorted(names))


_HISTORY = (GIT, *_places(HISTORY))
_HOLDS = ("own", "input", *_places({name: names for name, names in HOLDS.items() if name not in HISTORY}), *_HISTORY)


def _inputs(use: ReuseKey) -> list[str]:
    return [f"input/{name}" for name in use.inputs]


def _last_change(all_stamps: Mapping[str, Stamp], folder: str) -> int:
    """Return when *folder* last changed; the directory itself, which only we change, is not recorded."""
    return all_stamps[folder][2] if folder else time.time_ns()


def _layer(workspace: Workspace) -> tuple[str, ...]:
    """Name the parts of the layer that we write: the folder itself, and the `.git` pointer if there is one."""
    return ("", ".git") if workspace.has_pointer else ("",)
