"""What a sandbox shows of the host: which mounts, in which order, and what must then be absent.

A sandbox begins empty. It gets the host's root, then directories in memory, then what the policy names, parents first;
a path of the policy that is visible already is not mounted again. Three rules keep the rest out:

- A hidden path needs nothing where nothing shows it. Where it lies below something read-only that is shown (a
  repository in `/usr/src`, or below a toolchain), the folder that holds it is masked by an empty one, in which only
  what the policy names comes back. A hidden path directly in, at, or below a writable one is a contradiction.
- A mount target is never below a directory that this sandbox, or an earlier one, could write: bubblewrap before 0.12
  follows a link left there onto the host. The one exception is a cover on `.git` at the top of a visible directory:
  for the agent's whole life it is a mount, and cannot be replaced.
- Nothing of the policy may lie over what every sandbox has (`/proc`, `/dev`, `/etc`...), nor above it.
"""

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from shoal.errors import BadInput
from shoal.model.command import Argument, InheritedBytes
from shoal.model.policy import NETWORKS, Network, Policy
from shoal.sandboxes.host import HostRoot

MEMORY_BYTES = 2**30
KERNEL = (Path("/proc"), Path("/dev"))
NOTHING = "/dev/null"
MEMORY = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108 - the sandbox's own


class MountKind(StrEnum):
    """What is at a mount target."""

    LINK = "link"
    KERNEL = "kernel"
    DEVICE = "device"
    CLOSED = "closed"
    MEMORY = "memory"
    SYSTEM = "system"
    COPY = "copy"
    READ = "read"
    WRITE = "write"
    MASK = "mask"
    COVER = "cover"


READ_ONLY = (MountKind.SYSTEM, MountKind.COPY, MountKind.READ)


@dataclass(frozen=True, slots=True)
class Mount:
    """One thing in the sandbox; *source* is a host path, or a link's text, and *content* a copied file's."""

    target: Path
    show: MountKind
    source: str = ""
    content: bytes = field(default=b"", repr=False)

    @property
    def argv(self) -> tuple[Argument, ...]:
        """Its arguments for bubblewrap."""
        target = str(self.target)
        match self.show:
            case MountKind.LINK:
                return ("--symlink", self.source, target)
            case MountKind.KERNEL:
                return (f"--{self.target.name}", target)
            case MountKind.DEVICE:
                return ("--dev-bind", self.source, target)
            case MountKind.CLOSED:  # a node in a mount without devices: nobody can open it
                return ("--ro-bind", NOTHING, target)
            case MountKind.MEMORY:
                return ("--perms", "1777", "--size", str(MEMORY_BYTES), "--tmpfs", target)
            case MountKind.MASK:
                return ("--tmpfs", target)
            case MountKind.COPY:
                return ("--perms", "0444", "--file", InheritedBytes(self.content), target)
            case MountKind.WRITE:
                return ("--bind", self.source, target)
            case MountKind.SYSTEM | MountKind.READ | MountKind.COVER:
                return ("--ro-bind", self.source, target)


@dataclass(frozen=True, slots=True)
class BareDirectory:
    """A hidden directory that leads to something visible: it may contain *names* and nothing else."""

    folder: Path
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedView:
    """What every sandbox has, and the parent directories; strings compare ten times as fast as paths."""

    placed: Mapping[str, Mount]
    leading: frozenset[str]


class View:
    """The mounts of one sandbox."""

    def __init__(self, policy: Policy, root: HostRoot) -> None:
        shared = _everywhere(root, policy.network)
        self._placed = dict(shared.placed)
        self._leading = set(shared.leading)
        self._hidden = policy.hidden
        asked = _shows_of(policy)
        for path in sorted({*asked, *self._masks(asked), *self._frames(asked)}, key=lambda path: path.split("/")):
            self._place(path, asked.get(path, MountKind.MASK))
        for cover in policy.covers:
            self._cover(cover.source, cover.target, MountKind.WRITE if cover.is_writable else MountKind.COVER)

    @property
    def argv(self) -> tuple[Argument, ...]:
        """The arguments for bubblewrap; the last ones make everything of ours read-only."""
        masks = [mount.target for mount in self._placed.values() if mount.show is MountKind.MASK]
        shut = (word for path in (*masks, *KERNEL, Path("/")) for word in ("--remount-ro", str(path)))
        return (*(word for mount in self._placed.values() for word in mount.argv), *shut)

    @property
    def absent(self) -> tuple[Path, ...]:
        """The hidden paths that must not exist at all."""
        return tuple(path for path in self._hidden if str(path) not in self._leading)

    @property
    def bare(self) -> tuple[BareDirectory, ...]:
        """The hidden directories that lead to something visible."""
        return tuple(BareDirectory(path, self._names_in(path)) for path in self._hidden if str(path) in self._leading)

    def _names_in(self, folder: Path) -> tuple[str, ...]:
        depth = len(folder.parts)
        within = (mount.target.parts for mount in self._placed.values() if folder in mount.target.parents)
        return tuple({parts[depth]: None for parts in within})

    def _masks(self, asked: Mapping[str, MountKind]) -> Iterator[str]:
        """Find the directories to empty; called before the policy's own paths are placed, so it reads *asked*."""
        for path in map(_check_path, self._hidden):
            if path in asked or path in self._placed:
                raise BadInput(f"{path} cannot be both visible in the sandbox and hidden from it")
            above = _nearest(path, asked, self._placed)
            show = asked.get(above) or self._placed[above].show if above else MountKind.MASK
            if show is MountKind.WRITE or (show in READ_ONLY and above == _parent(path)):
                raise BadInput(f"{path} cannot be hidden, because {above} is visible in the sandbox")
            if show in READ_ONLY:
                yield _parent(path)

    def _frames(self, asked: Mapping[str, MountKind]) -> Iterator[str]:
        """Find the directories that only lead to something visible below `/tmp`; they are read-only like all others."""
        for path in asked:
            above = self._above(path)
            if above and above.show is MountKind.MEMORY and _parent(path) != str(above.target):
                first, *_ = path.removeprefix(f"{above.target}/").split("/")
                yield f"{above.target}/{first}"

    def _place(self, path: str, show: MountKind) -> None:
        above = self._above(path)
        if show is MountKind.READ and self._is_shown(path, above):
            return
        if show is MountKind.MASK and above and above.show is MountKind.MASK:
            return
        if path in self._placed or path in self._leading:
            raise BadInput(f"{path} cannot be made visible: every sandbox has its own {path}")
        if above and above.show in (MountKind.WRITE, MountKind.KERNEL, MountKind.LINK):
            raise BadInput(f"{path} cannot be made visible at that path, because it is below {above.target}")
        self._add_mount(Mount(Path(path), show, path))

    def _is_shown(self, path: str, above: Mount | None) -> bool:
        own = self._placed.get(path)
        if own:
            return own.show in (MountKind.LINK, *READ_ONLY)
        return bool(above and above.show in (MountKind.LINK, *READ_ONLY))

    def _cover(self, source: Path, target: Path, show: MountKind) -> None:
        path = _check_path(target)
        above = self._above(path)
        is_pointer = above is not None and target == above.target / ".git"
        if above and above.show in (MountKind.READ, MountKind.WRITE, MountKind.COVER) and not is_pointer:
            raise BadInput(f"{target} cannot be covered: an agent may have replaced what is below {above.target}")
        if path in self._leading:
            raise BadInput(f"{target} cannot be covered: something below it is visible in the sandbox")
        self._placed.pop(path, None)
        self._add_mount(Mount(target, show, str(source)))

    def _add_mount(self, mount: Mount) -> None:
        path = str(mount.target)
        self._placed[path] = mount
        self._leading.update(_folders_above(path))

    def _above(self, path: str) -> Mount | None:
        above = _nearest(path, self._placed)
        return self._placed[above] if above else None


@functools.lru_cache(maxsize=8)
def _everywhere(root: HostRoot, network: Network) -> SharedView:
    """Return what every sandbox of a host has."""
    etc = root.etc + (root.resolver if NETWORKS[network].shares_host else ())
    mounted = (path for path in (*root.folders, *etc) if path not in root.texts)
    mounts = (
        *(Mount(link.path, MountKind.LINK, link.text) for link in root.links),
        *(Mount(path, MountKind.SYSTEM, str(path)) for path in mounted),
        *(Mount(path, MountKind.COPY, content=text) for path, text in root.texts.items()),
        *(Mount(path, MountKind.KERNEL) for path in KERNEL),
        *(Mount(Path("/dev") / path.name, MountKind.DEVICE, str(path)) for path in root.devices),
        *(Mount(path, MountKind.CLOSED) for path in root.closed),
        *(Mount(path, MountKind.MEMORY) for path in MEMORY),
    )
    placed = {str(mount.target): mount for mount in mounts}
    return SharedView(placed, frozenset(folder for path in placed for folder in _folders_above(path)))


def _shows_of(policy: Policy) -> dict[str, MountKind]:
    asked = dict.fromkeys(map(_check_path, policy.read), MountKind.READ) | dict.fromkeys(
        map(_check_path, policy.write), MountKind.WRITE
    )
    if policy.layers:
        # Layers with an upper may still be read-only as a whole, with only parts below them writable.
        asked.setdefault(_check_path(policy.layers.target), MountKind.WRITE if policy.layers.upper else MountKind.READ)
    return asked


def _check_path(path: Path) -> str:
    if not path.is_absolute() or ".." in path.parts:
        raise BadInput(f"{path} must be an absolute path without `..`")
    return str(path)


def _nearest(path: str, *targets: Collection[str]) -> str | None:
    """Find the nearest of *targets* above a path."""
    return next((above for above in _folders_above(path) if any(above in some for some in targets)), None)


def _folders_above(path: str) -> Iterator[str]:
    """Yield the directories above a path, the nearest first."""
    while path != "/":
        path = _parent(path)
        yield path


def _parent(path: str) -> str:
    return path[: path.rindex("/")] or "/"
