"""A secret of this repository's state, in a file that only this user can read."""

import contextlib
import os
import re
import secrets
import stat
from pathlib import Path

from shoal.errors import Broken
from shoal.store.paths import StatePaths

TOKEN_FILE = "mcp-token"  # noqa: S105 - a name
_VALID = re.compile(rb"[\w-]{40,128}\n?")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_BYTES = 256


def keep_token(paths: StatePaths) -> tuple[Path, str]:
    """Return the file of the token and the token; make one where there is none, or where others could read it."""
    path = paths.root / TOKEN_FILE
    paths.create()
    try:
        for _ in range(3):  # another process may make one at the same time
            if (token := _read(path)) is not None:
                return path, token
            _make(path)
    except OSError as error:
        raise Broken(f"{path} cannot be kept: {error.strerror}") from error
    raise Broken(f"{path} cannot be kept: something replaces it")


def _make(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    try:
        path.hardlink_to(draft)  # unlike a rename, it never replaces the token of another process
    except FileExistsError:
        if _read(path) is None:
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError), os.fdopen(os.open(path, _READ), "rb") as file:
        found = os.fstat(file.fileno())
        is_private = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        content = file.read(_MAX_BYTES)
        if is_private and _VALID.fullmatch(content):
            return content.decode().strip()
    return None
