"""What a client is given of the user's own: the variables and login files that its adapter names, and no others."""

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.adapters.kind import Adapter
from shoal.adapters.login import tokens
from shoal.model.assignment import Assignment

LARGEST_LOGIN = 2**20


def handed(task: Assignment, adapter: Adapter, environ: Mapping[str, str]) -> dict[str, str]:
    """Take the variables that the client of *task* is given; permissions that list variables are kept to."""
    if adapter.client is None:
        return {}
    listed = task.permitted.env
    given = adapter.client.given(environ)
    return {name: value for name, value in given.items() if listed is None or name in listed}


def secrets_of(task: Assignment, adapter: Adapter, environ: Mapping[str, str]) -> dict[str, str]:
    """Give those of them that nobody may see."""
    given = handed(task, adapter, environ)
    keys = adapter.client.keys if adapter.client else ()
    return {name: value for name, value in given.items() if name in keys}


def login_secrets(adapter: Adapter, environ: Mapping[str, str]) -> dict[str, str]:
    """Give the tokens in the login files that a client is given."""
    return {name: value for content in _logins(adapter, environ).values() for name, value in tokens(content).items()}


@dataclass(frozen=True, slots=True)
class Laid:
    """The content of a login as it was laid into a private home, and when, in nanoseconds."""

    content: bytes = field(repr=False)
    at: int


def furnish(home: Path, files: Mapping[str, bytes], adapter: Adapter, environ: Mapping[str, str]) -> dict[str, Laid]:
    """Lay an agent's own files into its private home, before it is let in; logins are copies of the user's."""
    logins = _logins(adapter, environ)
    for place, content in {**logins, **files}.items():
        file = home / place
        file.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as out:
            out.write(content)
    return {name: Laid(content, time.time_ns()) for name, content in logins.items() if name not in files}


def login_files(adapter: Adapter, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Name the login files that the user has for the adapter's client."""
    names = adapter.client.logins if adapter.client else ()
    if not names:
        return ()
    home = Path(environ.get("HOME") or "/nowhere")
    return tuple(home / name for name in names if (home / name).is_file())


def _logins(adapter: Adapter, environ: Mapping[str, str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for file in login_files(adapter, environ):
        home = Path(environ.get("HOME") or "/nowhere")
        with contextlib.suppress(OSError), file.open("rb") as opened:
            found[str(file.relative_to(home))] = opened.read(LARGEST_LOGIN)
    return found
