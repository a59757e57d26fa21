"""What a wall is, whatever its kind."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.errors import BadInput
from shoal.model.command import Command
from shoal.model.policy import Layers, Policy

# The host's side of a wall runs in this folder and with these variables only: an agent's LD_PRELOAD or PATH
# must never reach a program that is not behind the wall yet.
OUTSIDE_CWD = Path("/")
OUTSIDE_ENV: Mapping[str, str] = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
LONGEST = 130_000
"""What the kernel takes for one word (128 KiB), with room for the name of a variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootLayers(Layers):
    """Layers of root's: marked by attributes that only root's own mount sees, so no user namespace is made for them."""


class Sandbox(Protocol):
    """A kind of wall."""

    @property
    def name(self) -> str:
        """The value of `sandbox`."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """Sentences that say what this wall does not hold."""

    @property
    def has_gaps_offline(self) -> bool:
        """Whether its gaps are open without a network too."""

    @property
    def confines(self) -> bool:
        """Whether it holds a command in at all."""

    @property
    def mounts(self) -> bool:
        """Whether it can show covers and layers; a wall that cannot leaves covers out and refuses layers."""

    def wrap(self, command: Command, policy: Policy) -> Command:
        """Put *command* behind the wall; its first line on stderr is then `wall_line(policy.token)`."""


def wall_line(token: str) -> bytes:
    """Give the line that a box says on stderr, before anything else, once the wall was found standing."""
    return f"shoal-wall-ok {token}\n".encode()


def nul_separated(words: tuple[str | Path, ...]) -> bytes:
    """Spell *words* for a program that reads them from a descriptor, where a NUL inside one would begin another."""
    texts = [str(word) for word in words]
    whole = "\0".join(texts)
    if whole.count("\0") >= max(1, len(texts)):
        bad = next(text for text in texts if "\0" in text)
        raise BadInput(f"{bad!r} holds a NUL sign, and can be neither a path, a variable nor an argument")
    # Refused its program, a box looks as if the wall could not be had, and nobody should be told to do without.
    if len(whole) > LONGEST // 4 and (size := max(len(os.fsencode(text)) for text in texts)) > LONGEST:
        raise BadInput(f"a variable or argument of {size} bytes is more than a program can be given; hand on a file")
    return os.fsencode(f"{whole}\0") if texts else b""
