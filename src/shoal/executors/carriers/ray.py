"""The carrier `ray`: the nodes of a Ray cluster.

Ray reads its settings when it is imported, so the token comes first, and `ray_cluster.py` is imported here alone.
"""

import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import Unavailable
from shoal.model.nodes import NodeAddress

if TYPE_CHECKING:
    from shoal.executors.carriers.ray_cluster import RayCarrier


@contextlib.asynccontextmanager
async def open_carrier(address: NodeAddress, environ: Mapping[str, str]) -> AsyncIterator["RayCarrier"]:
    """Join the cluster that *address* or `RAY_ADDRESS` names; without one, start one on this machine.

    A cluster that the program has joined already is used as it is.
    """
    place = f"ray://{address.place}" if address.place else environ.get("RAY_ADDRESS", "")
    is_ours = not place and "ray" not in sys.modules
    if is_ours:
        _set_token(environ)
    from shoal.executors.carriers import ray_cluster

    if ray_cluster.is_joined():
        yield ray_cluster.RayCarrier(address)
        return
    if not place and os.environ.get("RAY_AUTH_MODE") != "token":
        why = "this program imported ray without RAY_AUTH_MODE=token, and an open cluster runs anybody's code"
        raise Unavailable("a Ray cluster of our own", why, "join one first with ray.init(), or name one: ray://ADDRESS")
    await ray_cluster.join_cluster(place)
    try:
        yield ray_cluster.RayCarrier(address)
    finally:
        await ray_cluster.leave_cluster()


def _set_token(environ: Mapping[str, str]) -> None:
    """Guard clusters of ours with a token: whoever reaches the ports of a cluster runs code in it."""
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or Path.home(), ".local", "state")
    path = Path(state, "shoal", "ray-token")
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    os.environ.pop("RAY_AUTH_TOKEN", None)
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(path), RAY_USAGE_STATS_ENABLED="0")
