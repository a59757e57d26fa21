"""What permissions come to: checked against base and host before an agent starts, and held by its wall."""

import contextlib
import json
import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.adapters.kind import Adapter
from shoal.engine.credentials import secrets_of
from shoal.engine.site import Site
from shoal.errors import BadInput, Unavailable
from shoal.model.assignment import Assignment
from shoal.model.command import Command
from shoal.model.permissions import NO_RULE, NOT_LISTED, Decision, Permissions
from shoal.model.plan import Plan
from shoal.model.policy import Network

# Sockets and devices of the host: to see one is to be able to speak to it, read-only or not.
ALIVE = tuple(map(Path, ("/dev", "/proc", "/run", "/sys", "/var/run")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a session's box shows otherwise than usual.

    *outside* is read-only. *parts*, from the workspace's top, are what may be written of it; `None` is all.
    """

    outside: tuple[Path, ...]
    parts: tuple[Path, ...] | None

    def read(self, workspace: Path) -> tuple[Path, ...]:
        """Say what is shown read-only besides."""
        return self.outside if self.parts is None else (*self.outside, workspace)

    def write(self, workspace: Path) -> tuple[Path, ...]:
        """Say what of the workspace may be written."""
        return (workspace,) if self.parts is None else tuple(workspace / part for part in self.parts)

    def assert_real(self, tree: Path) -> None:
        """Refuse parts that are not in *tree*, and links: each part becomes a mount, and a mount follows them."""
        for part in self.parts or ():
            _assert_real((tree,), part)


def granted(site: Site, task: Assignment, adapter: Adapter) -> Grant:
    """Turn the task's permissions into a grant.

    Raises `BadInput` for what cannot be meant, `Unavailable` for what cannot be held here; nothing is ever left out.
    """
    permissions = task.permitted
    network = network_of(task, adapter)
    _assert_holdable(site, permissions, network)
    outside = tuple(_outside(site, path) for path in permissions.outside)
    grant = Grant(outside=outside, parts=_parts(permissions.writable))
    for path in permissions.writable:  # the needless ones too: who names a path means something by it
        if path != ".":
            _assert_real(site.base.trees, Path(os.path.normpath(path)))
    if outside:
        # A wall refuses what it cannot show, and does so without any effect: better now than when the agent starts.
        site.sandbox.wrap(Command(argv=("true",), cwd=Path("/")), site.policy(token="", read=outside, write=()))
    return grant


def decisions_of(site: Site, task: Assignment, adapter: Adapter) -> tuple[Decision, ...]:
    """Say what is decided about the task before it starts."""
    credentials = frozenset(secrets_of(task, adapter, site.environ))
    return tuple(_decisions(task, task.permitted, network_of(task, adapter), credentials))


def assert_grants(site: Site, plan: Plan, adapters: Mapping[str, Adapter]) -> None:
    """Refuse a run of which one step cannot have what it may have, or cannot be held to it."""
    for step in plan.working:
        try:
            granted(site, step.task, adapters[step.name])
        except BadInput as error:
            raise BadInput(f"step {step.name}: {error}") from error


def outside_notes(plan: Plan) -> tuple[str, ...]:
    """Say which agents see something of the host, for every face of the run."""
    return tuple(
        f"step {step.name}: may read {path}, outside of its workspace"
        for step in plan.working
        for path in step.task.permitted.outside
    )


def network_of(task: Assignment, adapter: Adapter) -> Network:
    """Say which network an agent is on: the nearest word counts."""
    return task.network or task.agent.network or adapter.default_network


def as_json(permissions: Permissions) -> str:
    """Write permissions for an agent that is to keep to them; a list that nobody gave is null."""
    return json.dumps(asdict(permissions), indent=1) + "\n"


def _assert_holdable(site: Site, permissions: Permissions, network: Network) -> None:
    if permissions.hosts is not None and network is Network.HOST:
        why = (
            "with `network: host` every host can be reached, and a gateway that lets only some through is not there yet"
        )
        raise Unavailable("permissions.hosts", why, "use `network: none`, or leave `hosts` out")
    is_narrow = not _is_all(permissions.writable)
    if site.sandbox.name == "none" and (is_narrow or permissions.hosts is not None):
        what = "permissions.writable" if is_narrow else "permissions.hosts"
        raise Unavailable(what, "without a wall nothing holds it", "use the bubblewrap or the landlock wall")


def _outside(site: Site, path: str) -> Path:
    """Check one path of the host that an agent may read."""
    place = Path(path)
    if why := _unreadable(site, place):
        raise BadInput(f"permissions: {path} cannot be made readable: {why}")
    return place


def _unreadable(site: Site, place: Path) -> str | None:
    try:
        real = Path(os.path.realpath(place, strict=True))
    except (OSError, ValueError):
        return "it does not exist, or you may not look at it"
    if real != place:
        return f"it leads to {real}; name that"
    if not stat.S_ISDIR(mode := real.stat().st_mode) and not stat.S_ISREG(mode):
        return "it is neither a folder nor a plain file"
    if any(real == home or home.is_relative_to(real) for home in _homes(site)):
        return "it holds your home; name a folder in it"
    kept = (*site.hidden, site.paths.root, site.repository.git)
    if found := next((one for one in kept if _touches(real, one)), None):
        return f"{found} stays hidden from agents"
    if found := next((one for one in ALIVE if _touches(real, one)), None):
        return f"{found} holds sockets or devices of the host"
    return None


def _homes(site: Site) -> set[Path]:
    named = [site.environ.get("HOME", "")]
    with contextlib.suppress(KeyError):  # a container's user may have no entry
        named.append(pwd.getpwuid(os.getuid()).pw_dir)
    return {Path(os.path.realpath(one)) for one in named if one.strip("/")}


def _touches(path: Path, other: Path) -> bool:
    return path.is_relative_to(other) or other.is_relative_to(path)


def _is_all(writable: Iterable[str]) -> bool:
    return any(path == "." or os.path.normpath(path) == "." for path in writable)


def _parts(writable: tuple[str, ...]) -> tuple[Path, ...] | None:
    """Give the paths that may be written; one below another needs no mount of its own."""
    if _is_all(writable):
        return None
    parts = {Path(os.path.normpath(path)) for path in writable}
    return tuple(sorted(part for part in parts if not parts & set(part.parents)))


def _assert_real(trees: tuple[Path, ...], part: Path) -> None:
    for path in (*reversed(part.parents[:-1]), part):
        mode = next((mode for tree in trees if (mode := _mode(tree / path))), 0)
        if not mode or stat.S_ISCHR(mode):  # a layer's mark for what is there no more
            what = f"permissions: writable {str(part)!r} is not in the base"
            raise BadInput(f"{what}; commit it first, or name another")
        if not stat.S_ISDIR(mode) and (path != part or not stat.S_ISREG(mode)):
            why = f"{str(path)!r} is a link" if stat.S_ISLNK(mode) else f"{str(path)!r} is no folder"
            raise BadInput(f"permissions: writable {str(part)!r} cannot be opened: {why}; name a real path")


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except (OSError, ValueError):
        return 0


def _decisions(
    task: Assignment, permissions: Permissions, network: Network, credentials: frozenset[str]
) -> Iterator[Decision]:
    """Say what was granted and denied at the start, for the audit log; what is as usual is not worth a word."""
    yield from (Decision(True, path, f"read {path}") for path in permissions.outside)
    if not _is_all(permissions.writable):
        yield from (Decision(True, path, f"write {path}") for path in permissions.writable)
        yield Decision(False, NOT_LISTED, f"write anything{' else' if permissions.writable else ''} in the workspace")
    rule = NO_RULE if permissions.env is None else "env"
    names = task.secrets | task.agent.secrets | credentials
    yield from (Decision(True, rule, f"env {name}") for name in sorted(names))
    yield from (Decision(False, f"network: {network}", f"host {host}") for host in permissions.hosts or ())
    if permissions.allowed_tools is not None or permissions.deny:
        allowed = "all" if permissions.allowed_tools is None else ", ".join(permissions.allowed_tools) or "none"
        yield Decision(True, f"allow {allowed}; deny {', '.join(permissions.deny) or 'none'}", "tools")
