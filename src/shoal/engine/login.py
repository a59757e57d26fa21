"""Logins that a client renewed in its box: taken back into the user's home only where asked for, one at a time."""

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from shoal.adapters.login import is_refreshed
from shoal.engine.artifacts import read_out, reading
from shoal.engine.credentials import Laid
from shoal.engine.lease import Lease, own_folder
from shoal.engine.site import Site
from shoal.errors import ShoalError
from shoal.store.lock import held

LOCK_SECONDS = 30.0
LOCK = "logins.lock"
TOLD = "it renewed its login {name} in its box, and that was not taken back into your home: "
NOT_ASKED = "say `refresh_login: true` for this agent where a login may be used only once"
ANOTHER = "it is not the same login with newer tokens"
MOVED = "yours was changed meanwhile"


@contextlib.asynccontextmanager
async def lock_of_logins() -> AsyncIterator[None]:
    """Hold what guards the user's login files against every other Shoal of this user."""
    async with held(own_folder() / LOCK, timeout=LOCK_SECONDS):
        yield


async def taken_back(site: Site, lease: Lease, seeded: Mapping[str, Laid], *, is_asked: bool) -> list[str]:
    """Write renewed logins back where it *is_asked*; gives what a person should know of those that were not."""
    try:
        return await _taken_back(site, lease, seeded, is_asked=is_asked)
    except (ShoalError, OSError, ValueError, TimeoutError) as error:  # its work is good all the same
        return [f"whether it renewed its login cannot be told: {error}"]


async def _taken_back(site: Site, lease: Lease, seeded: Mapping[str, Laid], *, is_asked: bool) -> list[str]:
    names = [name for name, laid in seeded.items() if _is_touched(lease.home / name, laid)]
    if not names:
        return []
    found = await read_out(site, reading(site, lease.home), lease.home, names)
    new = {name: one.content for name, one in zip(names, found, strict=True) if one.state == "file"}
    changed = {name: content for name, content in new.items() if content != seeded[name].content}
    reasons = {
        name: await _returned(site, name, seeded[name].content, changed[name], is_asked=is_asked) for name in changed
    }
    return [TOLD.format(name=f"~/{name}") + why for name, why in reasons.items() if why]


def _is_touched(file: Path, laid: Laid) -> bool:
    """Say whether the file may be another than was laid there, without opening what an agent could write."""
    try:
        seen = file.lstat()
    except OSError:
        return False
    return seen.st_size != len(laid.content) or seen.st_mtime_ns > laid.at


async def _returned(site: Site, name: str, old: bytes, new: bytes, *, is_asked: bool) -> str | None:
    """Put one renewed login in the place of the old one, or say why not."""
    if not is_refreshed(old, new):
        return ANOTHER
    if not is_asked:
        return NOT_ASKED
    file = (Path(site.environ["HOME"]) / name).resolve()
    async with lock_of_logins():
        if not file.is_file() or file.read_bytes() != old:
            return MOVED
        with tempfile.NamedTemporaryFile("wb", dir=file.parent, prefix=f".{file.name}.", delete=False) as out:
            out.write(new)
            out.flush()
            os.fsync(out.fileno())
        Path(out.name).replace(file)  # made with mode 0600
    return None
