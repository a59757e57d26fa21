"""What this host offers to build a wall from, looked at once."""

import os
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.sandboxes.kind import wall_line
from shoal.sandboxes.seccomp import Strength, program

TRIAL_TOKEN = "trial"  # noqa: S105 - no secret: it only marks the line of a trial

ROOT_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr")
# Single files and folders, never the whole of /etc: as root a box could read shadow, ssh's host keys, /etc/ssl/private.
# Few, too: each is a mount, and ten of them cost 1.5 ms at every start.
ETC = (
    *("alternatives", "ca-certificates", "crypto-policies", "fonts", "host.conf", "hosts", "ld.so.cache"),
    *("ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "mime.types", "nsswitch.conf", "os-release"),
    *("pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "protocols", "services"),
    *("ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "timezone"),
)
ETC_PATTERN = "java-*"
RESOLVER = "resolv.conf"
SMALL_BYTES = 2**17
NEEDS_CAPABILITY = ("kcore", "kmsg")


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link of the host's root, as it is."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostRoot:
    """The part of the host that every box shows, read-only; *resolver* only with the host's network.

    It is looked at once and compared as itself, so that what follows from it can be remembered.

    *texts* are the small files among *etc*: a copy of a file costs a box nothing, a mount 0.3 ms.
    *devices* are shown in place of the host's own nodes of the same names, and *shares_devices* says that those could
    be changed from inside. *closed* are files of the kernel's that only their owner may read, and so nobody in a box.
    """

    links: tuple[Link, ...]
    folders: tuple[Path, ...]
    etc: tuple[Path, ...]
    resolver: tuple[Path, ...]
    texts: Mapping[Path, bytes] = field(default_factory=dict, repr=False)
    devices: tuple[Path, ...] = ()
    shares_devices: bool = False
    closed: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How a trial ended."""

    code: int | None
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def held(self) -> bool:
        """Say whether the wall came up and was found standing from inside."""
        return self.code == 0 and self.stderr.startswith(wall_line(TRIAL_TOKEN))

    @property
    def complaint(self) -> str:
        """Give the last thing it said."""
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else f"it ended with {self.code} and said nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxHost:
    """Programs, folders and filters that were found, and how the trials went."""

    root: HostRoot
    bwrap: Path | None
    unshare: Path | None
    python: Path
    filters: Mapping[Strength, bytes] | None = field(repr=False)
    tried: Mapping[str, Trial] = field(default_factory=dict)

    def with_trials(self, tried: Mapping[str, Trial]) -> "SandboxHost":
        """Add the outcome of trials."""
        return replace(self, tried={**self.tried, **tried})


def look(search: str, devices: tuple[Path, ...] = ()) -> SandboxHost:
    """Look at the host; *search* is the PATH on which programs are looked for. Nothing is run.

    *devices* are nodes to show in place of the host's, which have to be made by who owns those.
    """
    is_owner = Path("/dev/null").stat().st_uid == os.geteuid()
    root = host_root(Path("/"))
    return SandboxHost(
        root=replace(root, devices=devices, shares_devices=is_owner and not devices, closed=_closed_files()),
        bwrap=_find_program("bwrap", search),
        unshare=_find_program("unshare", search),
        python=Path(sys.executable),
        filters=_filters(),
    )


def host_root(top: Path) -> HostRoot:
    """See which of the allowed places exist below *top*, and which of them are links."""
    etc, usr = top / "etc", (top / "usr").resolve()
    root = [path for path in (top / name.lstrip("/") for name in ROOT_FOLDERS) if path.exists()]
    named = [path for path in (*(etc / name for name in ETC), *sorted(etc.glob(ETC_PATTERN))) if path.exists()]
    # A link to what every box has anyway stays a link; any other is followed, and shown as what it leads to.
    linked = [path for path in named if path.is_symlink() and path.resolve().is_relative_to(usr)]
    shown = tuple(path for path in named if path not in linked)
    return HostRoot(
        links=tuple(Link(path, str(path.readlink())) for path in (*root, *linked) if path.is_symlink()),
        folders=tuple(path for path in root if not path.is_symlink()),
        etc=shown,
        texts={path: path.read_bytes() for path in shown if _is_small(path)},
        resolver=tuple(path for path in (etc / RESOLVER,) if path.exists()),
    )


def _closed_files() -> tuple[Path, ...]:
    """Find what only its owner may read at the top of `/proc`, if we are that."""
    names = (name for name in sorted(os.listdir("/proc")) if not name.isdigit() and name not in NEEDS_CAPABILITY)
    return tuple(path for path in (Path("/proc", name) for name in names) if _is_closed(path.lstat()))


def _is_closed(seen: os.stat_result) -> bool:
    return stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & stat.S_IROTH


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= SMALL_BYTES and os.access(path, os.R_OK)


def _find_program(name: str, search: str) -> Path | None:
    found = shutil.which(name, path=search)
    return Path(found) if found else None


def _filters() -> dict[Strength, bytes] | None:
    try:
        return {strength: program(strength) for strength in Strength}
    except OSError:  # no libseccomp.so.2: the kinds that need it say so when they are asked for
        return None
