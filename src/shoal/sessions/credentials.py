"""What a client gets from the user: only the variables and login files that its adapter names."""

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.adapters.kind import Adapter
from shoal.errors import FAULTS
from shoal.gateway.renew_login import login_lock
from shoal.model.gateway import GatewayAccess
from shoal.model.resolved_task import ResolvedTask
from shoal.sessions.artifacts import read_files, reading
from shoal.sessions.context import RunContext
from shoal.sessions.session_dir import SessionDir
from shoal.store.lock import hold_lock

TOKENS = ("token", "expir", "refresh")
"""Parts of the names of fields that a refresh changes."""
LATER = ("expir", "last_refresh")
SECRET = ("token", "key", "secret", "password")


def is_refreshed(old: bytes, new: bytes) -> bool:
    """Return whether *new* is *old* with other tokens and a later expiry; it must belong to the same account."""
    try:
        before, after = json.loads(old), json.loads(new)
        return _is_same(before, after, "") and _later(before, after)
    except (ValueError, RecursionError, OverflowError):  # a time that no clock can hold
        return False


def tokens(content: bytes) -> dict[str, str]:
    """Return the tokens of a login by name: they are secrets."""
    try:
        return dict(_tokens(json.loads(content), ""))
    except (ValueError, RecursionError):
        return {}


def _tokens(value: object, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key in value:
            yield from _tokens(value[key], str(key))
    elif isinstance(value, str) and any(part in name.lower() for part in SECRET):
        yield name, value


def _is_same(old: object, new: object, name: str) -> bool:
    """Compare two values in form, and in all that is not a token."""
    if type(old) is not type(new):
        return False
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_is_same(old[key], new[key], str(key)) for key in old)
    return old == new or (not isinstance(old, list) and any(part in name.lower() for part in TOKENS))


def _later(old: object, new: object) -> bool:
    """Return whether a time that both name is later in the new one, and none is earlier."""
    steps = list(_steps(old, new, ""))
    return max(steps, default=0) > 0 and min(steps, default=0) >= 0


def _steps(old: object, new: object, name: str) -> Iterator[int]:
    """Return for each time whether it moved forward (1), back (-1) or not (0); only sortable texts are compared."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            yield from _steps(old[key], new[key], str(key))
    elif any(part in name.lower() for part in LATER) and type(old) is type(new):
        before, after = (
            f"{moment:020.3f}" if isinstance(moment, int | float) else str(moment) for moment in (old, new)
        )
        yield (after > before) - (after < before)


LARGEST_LOGIN = 2**20


def client_variables(task: ResolvedTask, adapter: Adapter, environ: Mapping[str, str]) -> dict[str, str]:
    """Take the variables for the client of *task*, limited by permissions that list variables."""
    if adapter.client is None:
        return {}
    listed = task.permitted.env
    given = adapter.client.pick_variables(environ)
    return {name: value for name, value in given.items() if listed is None or name in listed}


def secrets_of(task: ResolvedTask, adapter: Adapter, environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of them that are secret."""
    given = client_variables(task, adapter, environ)
    keys = adapter.client.keys if adapter.client else ()
    return {name: value for name, value in given.items() if name in keys}


def login_secrets(adapter: Adapter, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the tokens in the login files that a client gets."""
    return {name: value for content in _logins(adapter, environ).values() for name, value in tokens(content).items()}


@dataclass(frozen=True, slots=True)
class CopiedLogin:
    """The content of a login as copied into a private home, and when, in nanoseconds."""

    content: bytes = field(repr=False)
    at: int


CREDENTIALS = tuple(
    re.compile(pattern, re.IGNORECASE | re.VERBOSE)
    for pattern in (
        rb"""( (?:api[_-]?key|[\w-]*token|secret|passw(?:or)?d|credential|authorization)["']? [ \t]* [:=] \s* ["']?
              (?:(?:bearer|basic|token)[ ]+)? )  ([^\s"',}\]\[]{4,})""",
        rb"""(\b(?:bearer|basic)[ ]+)  ([^\s"',}\]]{8,})""",
        rb"""(?<![\w-])()  ((?:(?:sk|pk|gsk|xai|gh[a-z]|glpat|github_pat|xox[a-z]|hf)[-_]|AIza)[\w-]{16,})""",
        rb"""(["'\s\[,][\w-]+=)  ([\w-]{16,})  (?=["'\s\],]|$)""",  # aider's `api-key: [gemini=…]`
    )
)
"""Values of a settings file that look like credentials, by what stands before them or by how they begin."""


def replace_credentials(content: bytes, token: str) -> bytes:
    """Put *token* in the place of everything in a settings file that looks like a credential."""
    for pattern in CREDENTIALS:
        content = pattern.sub(rb"\1" + token.encode(), content)
    return content


def furnish(
    home: Path,
    files: Mapping[str, bytes],
    adapter: Adapter,
    environ: Mapping[str, str],
    access: GatewayAccess | None = None,
) -> dict[str, CopiedLogin]:
    """Lay an agent's own files into its private home, before it is let in; logins are copies of the user's.

    With *access* to the gateway it gets no logins, and its settings with our token in the place of every credential.
    """
    logins = _logins(adapter, environ)
    if access is not None:
        named = adapter.client.settings_files if adapter.client else ()
        settings = {name: replace_credentials(logins[name], access.token) for name in named if name in logins}
        logins, files = {}, {**settings, **files}
    for place, content in {**logins, **files}.items():
        file = home / place
        file.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as out:
            out.write(content)
    return {name: CopiedLogin(content, time.time_ns()) for name, content in logins.items() if name not in files}


def login_files(adapter: Adapter, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """List the user's login files for the adapter's client."""
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


LOCK_SECONDS = 30.0
TOLD = "it renewed its login {name} in its sandbox; the copy in your home was not updated: "
NOT_ASKED = "set `refresh_login: true` for this agent if a login can be used only once"
ANOTHER = "it is not the same login with newer tokens"
MOVED = "yours has changed meanwhile"


async def return_logins(
    context: RunContext, session_dir: SessionDir, seeded: Mapping[str, CopiedLogin], *, is_asked: bool
) -> list[str]:
    """Write renewed logins back if *is_asked*; return remarks for people about those that were not."""
    try:
        return await _return_logins(context, session_dir, seeded, is_asked=is_asked)
    except FAULTS as error:  # its work counts all the same
        return [f"cannot determine whether it renewed its login: {error}"]


async def _return_logins(
    context: RunContext, session_dir: SessionDir, seeded: Mapping[str, CopiedLogin], *, is_asked: bool
) -> list[str]:
    names = [name for name, laid in seeded.items() if _is_touched(session_dir.home / name, laid)]
    if not names:
        return []
    found = await read_files(context, reading(context, session_dir.home), session_dir.home, names)
    new = {name: file.content for name, file in zip(names, found, strict=True) if file.state == "file"}
    changed = {name: content for name, content in new.items() if content != seeded[name].content}
    reasons = {
        name: await _return_login(context, name, seeded[name].content, changed[name], is_asked=is_asked)
        for name in changed
    }
    return [TOLD.format(name=f"~/{name}") + why for name, why in reasons.items() if why]


def _is_touched(file: Path, laid: CopiedLogin) -> bool:
    """Return whether the file may have changed since it was copied, without opening what an agent could write."""
    try:
        seen = file.lstat()
    except OSError:
        return False
    return seen.st_size != len(laid.content) or seen.st_mtime_ns > laid.at


async def _return_login(context: RunContext, name: str, old: bytes, new: bytes, *, is_asked: bool) -> str | None:
    """Replace the old login with the renewed one, or return why not."""
    if not is_refreshed(old, new):
        return ANOTHER
    if not is_asked:
        return NOT_ASKED
    file = (Path(context.environ["HOME"]) / name).resolve()
    async with hold_lock(login_lock(file), timeout=LOCK_SECONDS):
        if not file.is_file() or file.read_bytes() != old:
            return MOVED
        with tempfile.NamedTemporaryFile("wb", dir=file.parent, prefix=f".{file.name}.", delete=False) as out:
            out.write(new)
            out.flush()
            os.fsync(out.fileno())
        Path(out.name).replace(file)  # created with mode 0600
    return None
