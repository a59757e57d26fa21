"""The private folder of a session that nobody changed: it serves another one, which then makes and removes little."""

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
DEEPEST = 32  # of what we write, nothing lies deeper than refs do; and each level costs a descriptor
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Fingerprint = tuple[tuple[str, int, int, int], ...]
Stamp = tuple[int, int, int]


def fingerprint(folder: Path) -> Fingerprint | None:
    """Name, inode, size and change time of every entry; `None` when there are more than ours could be.

    The change time cannot be set by anybody, and folders are opened by descriptor, never through a link.
    """
    try:
        return _entries(folder)
    except OSError:  # it was taken away while we looked, or cannot be looked at: then it is not as we wrote it
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
    """Inode, size and change time of each of *names* below *folder*; `None` where one is not to be had.

    With every folder on the way to a place among them, a link in its stead shows as another folder.
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
    """There is more than we wrote."""


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
# All that we write into it, by folders. What was changed shows in a change time, which nobody can set; of two changes
# within some milliseconds an older kernel may not show the second, so folders that are that young are listed, too.
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
COARSE_NS = 1_000_000  # some file systems keep whole seconds


@dataclass(frozen=True, slots=True)
class ReuseKey:
    """What a private folder can serve for: sessions on the same base, whose inputs have the same names."""

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
    """`None` for one that no other session could use."""
    is_mounted: bool = False
    """Whether it came with its workspace, in place and mounted."""
    written: dict[str, bytes] = field(default_factory=dict)
    """What lies in the files that it was given."""
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
        """Say what the folder of *worker* is like."""
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
        """Make the box of one that is not needed any more; `False` where there is none."""
        written = None if self.use is None else self.trash.spares.take(self.session_dir, self.use)
        if self.use is None or written is None:
            return False
        self.written = written
        if self.use.stays_mounted:
            self._take_mount()
        return True

    def _take_mount(self) -> None:
        """Bring the workspace along to its place; where others of its step lie there already, make it anew."""
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
        """See how the folder is when the agent is let in."""
        if self.use is None:
            self._git = fingerprint(self.session_dir / GIT)
            return
        self._all = stamps(self.session_dir, (*_HOLDS, *_inputs(self.use)))
        if self._all is None or all(stamp[2] % COARSE_NS == 0 for stamp in self._all.values()):
            self.use, self._git = None, fingerprint(self.session_dir / GIT)  # change times that tell too little
            return
        # What is added to a folder shows in its change time, except in the moment after we changed it ourselves.
        since = time.time_ns() - MOMENT_NS
        held = {"": ENTRIES, "input": set(self.use.inputs), **HOLDS}
        self._listed = {name: held[name] for name in held if self._all is None or _last_change(self._all, name) > since}
        if self.use.stays_mounted and workspace.is_visible:
            self._layer = stamps(workspace.changes, _layer(workspace))
            self._mounts = table_version()

    def has_history(self) -> bool:
        """Say whether the agent's gitdir is not as it was."""
        if self.use is None:
            return self._git is None or fingerprint(self.session_dir / GIT) != self._git
        return self._all is None or not self._is_same(_HISTORY, HISTORY)

    def leave(self, workspace: Workspace) -> None:
        """Let the workspace stay mounted for another session, if nobody changed anything."""
        workspace.stays = (
            not workspace.keep
            and self._layer is not None
            and self._is_alone(workspace)
            and stamps(workspace.changes, _layer(workspace)) == self._layer
            and self._is_untouched()
        )

    def _is_alone(self, workspace: Workspace) -> bool:
        """Say whether nothing lies beside the workspace, and nothing is mounted in it; without a sandbox, all can."""
        try:
            is_only = os.listdir(self.path.parent) == [WORKER]
        except OSError:
            return False
        is_same = not workspace.has_pointer or table_version() == self._mounts
        return is_only and (is_same or list_mounts(self.path) == [self.path])

    def keep_spare(self, workspace: Workspace | None) -> bool:
        """Keep the box for another session if it is as it was; `False` where it is to be thrown away."""
        stays = workspace is not None and workspace.stays
        if self.is_mounted and workspace is None:  # nobody came so far as to open it
            unmount_overlay(self.path)
        if self.use is None or not (stays or self._is_untouched()):
            return False
        # A killed session is one that has a gitdir, and layers: until those are made, it must not look like one.
        os.rename(f"{self.session_dir}/{GIT}", gitdir_aside(self.session_dir))  # noqa: PTH104
        if stays:
            _move(self.path.parent, f"{self.session_dir}/{WORKSPACE}")
        else:
            for name in LAYERS:  # never the same again: the kernel may have them mounted in a dying namespace
                self.trash.throw(f"{self.session_dir}/{name}")
        if self.trash.spares.keep_spare(self.session_dir, self.use, self.written):
            return True
        if stays:
            unmount_overlay(self.session_dir / MOUNTED)
        return False

    def _is_untouched(self) -> bool:
        return self.use is not None and self._is_same((*_HOLDS, *_inputs(self.use)), self._listed)

    def _is_same(self, names: Iterable[str], folders: Iterable[str]) -> bool:
        """Say whether *names* are as they were; stamps first, as the list of a folder that was changed can be long."""
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
    """Say where the gitdir of a folder lies that waits for its next session."""
    return f"{session_dir}/{ASIDE}"


def _stays_mounted(context: RunContext, worker: WorkerSpec, path: Path) -> bool:
    """Say whether a session has a workspace that moves as a whole, and leaves nobody who could still write in it.

    Where set-up lays something into it, the layers are others; and a base of its own may go with it.
    """
    if not context.kind.mounts_on_host or not context.base_stays:
        return False
    if worker.count != 1 or path.name != WORKER or worker.function is not None:  # functions run outside of the sandbox
        return False
    if worker.task.nearest_setup is not None or context.project.setup is not None or context.project.included:
        return False
    # On the host's network two agents can hand each other what they hold open.
    is_shut = context.sandbox.mounts and not NETWORKS[network_of(worker.task, worker.adapter)].shares_host
    return is_shut or (not context.sandbox.mounts and context.enforcer.holds_fleet != frozenset())


def _move(source: Path | str, target: Path | str) -> bool:
    """Move a folder, with what is mounted in it, to where its parents may not be yet."""
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
    """Say when *folder* was changed last; of the box itself, which nobody but us should change, that is not noted."""
    return all_stamps[folder][2] if folder else time.time_ns()


def _layer(workspace: Workspace) -> tuple[str, ...]:
    """Name what of the layer is ours: the folder itself, and the pointer in it where there is one."""
    return ("", ".git") if workspace.has_pointer else ("",)
