"""The repositories of this user that have runs: a small file for each, with the path of its state folder.

A file is only a pointer: its target is checked before it is used, and nothing but the list depends on it.
"""

import contextlib
import hashlib
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.store.paths import StatePaths

STATE_FOLDER = ".shoal"
MAX_BYTES = 4096
MAX_ENTRIES = 10_000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def register(paths: StatePaths, environ: Mapping[str, str]) -> None:
    """Record where the state of a repository is; if that fails, the list of all repositories lacks it."""
    content = os.fsencode(paths.root)
    with contextlib.suppress(OSError):
        folder = _make_folder(environ)
        if folder is None or len(content) > MAX_BYTES:
            return
        entry = folder / hashlib.sha256(content).hexdigest()[:32]
        if _read_entry(entry) == paths.root:
            return
        draft = entry.with_name(f".{entry.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        draft.write_bytes(content)
        draft.replace(entry)


def list_repositories(environ: Mapping[str, str]) -> list[StatePaths]:
    """List the existing state folders, and remove pointers to missing ones."""
    found = [StatePaths(root) for root in _list_roots(environ)]
    return sorted(found, key=lambda paths: paths.root)


def _list_roots(environ: Mapping[str, str]) -> Iterator[Path]:
    entries: list[Path] = []
    with contextlib.suppress(OSError):  # a home that cannot be read, or none
        if (folder := _find_folder(environ)) is not None:
            entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for entry in entries[:MAX_ENTRIES]:
        root = _read_entry(entry)
        if root is not None and _is_state(root):
            yield root
        else:
            with contextlib.suppress(OSError):
                entry.unlink()


def _is_state(root: Path) -> bool:
    """Return whether *root* is a state folder of this user."""
    try:
        found = root.lstat()
    except (OSError, ValueError):
        return False
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and ((root / "ledger.db").is_file() or (root / "store.json").is_file())


def _read_entry(entry: Path) -> Path | None:
    """Read the target of *entry*; `None` if it was not written by a Shoal of this user."""
    try:
        with os.fdopen(os.open(entry, _READ), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                return None
            content = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    root = Path(os.fsdecode(content))
    is_plain = len(content) <= MAX_BYTES and b"\0" not in content and ".." not in root.parts
    return root if is_plain and root.is_absolute() and root.name == STATE_FOLDER else None


def _make_folder(environ: Mapping[str, str]) -> Path | None:
    folder = _find_folder(environ)
    if folder is not None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _find_folder(environ: Mapping[str, str]) -> Path | None:
    return find_user_folder(environ, "repositories")


def find_user_folder(environ: Mapping[str, str], name: str) -> Path | None:
    """Find a folder of this user's state: never in the home of another user, which `sudo` may leave in HOME."""
    for base in _candidates(environ):
        nearest = next(folder for folder in (base, *base.parents) if folder.exists())
        if nearest.stat().st_uid == os.geteuid():
            return base / "shoal" / name
    return None


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    given = Path(environ.get("XDG_STATE_HOME") or "")
    if given.is_absolute():
        yield given
        return
    home = Path(environ.get("HOME") or "")
    if home.is_absolute():
        yield home / ".local" / "state"
    with contextlib.suppress(KeyError):
        yield Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".local" / "state"
