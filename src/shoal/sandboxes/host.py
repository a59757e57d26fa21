"""What this host offers for building sandboxes, inspected once."""

import os
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.errors import Unavailable
from shoal.sandboxes.kind import ready_line
from shoal.sandboxes.seccomp import Strength, program

TRIAL_TOKEN = "trial"  # noqa: S105 - no secret: it only marks the line of a trial

ROOT_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr")
# Single files and directories, never all of /etc: root's sandbox could read shadow, host keys and /etc/ssl/private.
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
LAUNCHER = Path(__file__).with_name("launcher.py")
NEEDS_CAPABILITY = ("kcore", "kmsg")
NO_LIBSECCOMP = "install it (`apt install libseccomp2` or `dnf install libseccomp`)"


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link in the host's root."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostRoot:
    """The part of the host that every sandbox shows, read-only; *resolver* only with the host's network.

    It is inspected once and compared by identity, so that what follows from it can be cached.

    *texts* are the small files among *etc*: a copy of a file costs a sandbox nothing, a mount 0.3 ms.
    *devices* are shown in place of the host's own nodes of the same names; *shares_devices* says that an agent could
    change those. *closed* are files of the kernel that only their owner, and so nobody in a sandbox, may read.
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
    """How the trial of a kind ended."""

    code: int | None
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def is_passed(self) -> bool:
        """Whether the sandbox came up and passed its check from inside."""
        return self.code == 0 and self.stderr.startswith(ready_line(TRIAL_TOKEN))

    @property
    def complaint(self) -> str:
        """The last line that it printed."""
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else f"exit code {self.code} and no message"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxHost:
    """Programs, folders and filters that were found, and how the trials went."""

    root: HostRoot
    bwrap: Path | None
    unshare: Path | None
    prlimit: Path | None
    python: Path
    launcher: Path = LAUNCHER
    filters: Mapping[Strength, bytes] | None = field(repr=False)
    tried: Mapping[str, Trial] = field(default_factory=dict)

    def with_trials(self, tried: Mapping[str, Trial]) -> "SandboxHost":
        """Add how trials ended."""
        return replace(self, tried={**self.tried, **tried})

    def require_filters(self, kind: str) -> Mapping[Strength, bytes]:
        """Return the system call filters; raise `Unavailable` for *kind* without libseccomp."""
        if self.filters is None:
            raise Unavailable(f"the {kind} sandbox", "libseccomp.so.2 is missing", NO_LIBSECCOMP)
        return self.filters

    def assert_passed(self, kind: str, remedy: str) -> None:
        """Raise `Unavailable` with *remedy* unless the trial of *kind* passed."""
        trial = self.tried.get(kind)
        if trial is None:
            raise Unavailable(f"the {kind} sandbox", "it has not been tried", "run `shoal doctor`")
        if not trial.is_passed:
            raise Unavailable(f"the {kind} sandbox", f"a trial of it failed with {trial.complaint!r}", remedy)


def inspect_host(search: str, devices: tuple[Path, ...] = ()) -> SandboxHost:
    """Inspect the host without running anything; *search* is the PATH to look for programs on.

    *devices* are nodes to show in place of the host's; only the owner of those can make them.
    """
    is_owner = Path("/dev/null").stat().st_uid == os.geteuid()
    root = host_root(Path("/"))
    return SandboxHost(
        root=replace(root, devices=devices, shares_devices=is_owner and not devices, closed=_find_closed()),
        bwrap=_find_program("bwrap", search),
        unshare=_find_program("unshare", search),
        prlimit=_find_program("prlimit", search),
        python=Path(sys.executable),
        filters=_filters(),
    )


def host_root(top: Path) -> HostRoot:
    """Find which of the allowed paths exist below *top*, and which of them are links."""
    etc, usr = top / "etc", (top / "usr").resolve()
    root = [path for path in (top / name.lstrip("/") for name in ROOT_FOLDERS) if path.exists()]
    named = [path for path in (*(etc / name for name in ETC), *sorted(etc.glob(ETC_PATTERN))) if path.exists()]
    # A link into what every sandbox shows stays a link; any other is followed, and its target is shown.
    linked = [path for path in named if path.is_symlink() and path.resolve().is_relative_to(usr)]
    shown = tuple(path for path in named if path not in linked)
    return HostRoot(
        links=tuple(Link(path, str(path.readlink())) for path in (*root, *linked) if path.is_symlink()),
        folders=tuple(path for path in root if not path.is_symlink()),
        etc=shown,
        texts={path: path.read_bytes() for path in shown if _is_small(path)},
        resolver=tuple(path for path in (etc / RESOLVER,) if path.exists()),
    )


def _find_closed() -> tuple[Path, ...]:
    """Find the files in `/proc` that only their owner may read, if we are the owner."""
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
    except OSError:  # no libseccomp.so.2: the kinds that need it say so when they are built
        return None
