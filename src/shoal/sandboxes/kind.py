"""What a sandbox is, whatever its kind."""

import os
import resource
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.errors import BadInput
from shoal.model.command import Command
from shoal.model.policy import Layers, Policy

# The host's side of a sandbox runs in this directory and with these variables only: an agent's LD_PRELOAD or PATH
# must never reach a program that is not confined yet.
OUTSIDE_CWD = Path("/")
OUTSIDE_ENV: Mapping[str, str] = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
TRUE = Command(argv=("/bin/true",), cwd=OUTSIDE_CWD, env=OUTSIDE_ENV)
START = "start"
"""The name of the socket on which a sandbox waits for one byte, or its end, where somebody is to listen in it first."""
MAX_ARGUMENT_BYTES = 130_000
"""What the kernel accepts for one argument (128 KiB), with room for the name of a variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootLayers(Layers):
    """Overlay layers of root, marked by trusted attributes, so that they need no user namespace."""


# The kernel counts these for each user, in all sandboxes together: an agent is refused more before the user is.
MAX_USER_SHARE = {"sigpending": 8_192, "msgqueue": 409_600}
RESOURCES = {"sigpending": resource.RLIMIT_SIGPENDING, "msgqueue": resource.RLIMIT_MSGQUEUE}
# What no sandbox separates; `shoal doctor` lists it below each.
SHARED_KERNEL = (
    "counts per user are shared with your own programs: inotify instances and watches, epoll watches, pipe buffers, "
    "locked memory, open files on their way through sockets",
    "files that several agents, or an agent and your programs, can open can be locked by each of them (flock)",
    "terminals are shared by all agents: one can leave the others without, but not the host",
)


def user_shares() -> dict[str, int]:
    """Return an agent's share of each per-user limit, within our own."""
    hard = {name: resource.getrlimit(kind)[1] for name, kind in RESOURCES.items()}
    return {
        name: share if hard[name] == resource.RLIM_INFINITY else min(share, hard[name])
        for name, share in MAX_USER_SHARE.items()
    }


class Sandbox(Protocol):
    """A kind of sandbox."""

    @property
    def name(self) -> str:
        """The value of `sandbox`."""

    @property
    def confines(self) -> bool:
        """Whether it keeps an agent from anything at all."""

    @property
    def has_gaps_offline(self) -> bool:
        """Whether its gaps are open without a network too."""

    @property
    def mounts(self) -> bool:
        """Whether it can show covers and layers; a sandbox that cannot leaves covers out and refuses layers."""

    @property
    def can_listen(self) -> bool:
        """Whether, on `network: gateway`, it has a network of its own and waits on the socket `START` there."""

    @property
    def version(self) -> str | Command:
        """Its version, or the command that prints it."""

    @property
    def known_escapes(self) -> Set[str]:
        """The escapes of the doctor, by key, that are among its gaps."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """Sentences that say what this sandbox does not protect."""

    def wrap(self, command: Command, policy: Policy) -> Command:
        """Put *command* into the sandbox; its first line on stderr is then `ready_line(policy.token)`."""


def ready_line(token: str) -> bytes:
    """Return the line that a sandbox prints on stderr first, once it has been checked from inside."""
    return f"shoal-wall-ok {token}\n".encode()


def nul_separated(words: tuple[str | Path, ...]) -> bytes:
    """Encode *words* for a program that reads them NUL-separated; refuse a word with a NUL byte."""
    texts = [str(word) for word in words]
    whole = "\0".join(texts)
    if whole.count("\0") >= max(1, len(texts)):
        bad = next(text for text in texts if "\0" in text)
        raise BadInput(f"{bad!r} contains a NUL byte, which no path, variable or argument can have")
    try:
        encoded = os.fsencode(f"{whole}\0")
    except UnicodeEncodeError as error:
        raise BadInput(f"no path, variable or argument can contain half a surrogate pair: {error}") from None
    # If exec refused it, the sandbox would seem unavailable, and users would be advised to do without it.
    if len(whole) > MAX_ARGUMENT_BYTES // 4 and (size := max(map(_size, texts))) > MAX_ARGUMENT_BYTES:
        raise BadInput(f"a variable or argument of {size} bytes is too long for the kernel; pass a file instead")
    return encoded if texts else b""


def _size(text: str) -> int:
    return len(os.fsencode(text))
