"""An agent client: how to install it, its oldest supported version, and where its login is."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_VERSION = re.compile(r"(?<!\d)(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?")
Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A program that users install and log in to."""

    program: str
    install: str
    """The command that installs it."""
    login: str
    """The command that logs in, or another way to, for a person to read."""
    oldest: Version = ()
    version_arguments: tuple[str, ...] = ("--version",)
    keys: tuple[str, ...] = ()
    """Variables of the host that hold a credential; they are handed on, and masked everywhere."""
    settings: tuple[str, ...] = ()
    """Variables of the host that are handed on as they are: addresses, providers, certificates."""
    logins: tuple[str, ...] = ()
    """Files below the user's home that hold a login; they are copied into the private home."""
    scratch_files: tuple[str, ...] = ()
    """What it leaves in a workspace that is no work, as git's ignore patterns."""
    knows: tuple[str, ...] = ()
    """What it can be told and tells, for `shoal agents`: `model`, `system prompt`, `tool rules`, `usage`, `cost`, …"""
    conversations: tuple[str, ...] = ()
    """Files and folders below its home that keep its conversations; none where it cannot continue one."""
    aliases: tuple[str, ...] = ()
    """Other names of the program, by which some of its packages install it."""
    upstreams: tuple[str, ...] = ()
    """Models of the gateway that it can ask, by their names; it needs one of them."""
    held_login: str = ""
    """The login of it that the gateway can hold, by its name in `gateway.logins`."""
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Variables by which it chooses a provider, with the values that the gateway can be used with, besides none."""
    settings_files: tuple[str, ...] = ()
    """Those of its login files that are settings; on `network: gateway` it gets no others, and these without keys."""
    needs_login: bool = True
    heartbeat: str | None = None
    """Lines on stderr with this in them are a sign of life, and nothing else: they are not kept."""

    def version(self, output: str) -> Version | None:
        """Find the version in the output of `--version`."""
        found = _VERSION.search(output)
        return tuple(int(part or 0) for part in found.groups()) if found else None

    def is_too_old(self, version: Version | None) -> bool:
        """Return whether it is known to be too old."""
        return version is not None and version < self.oldest

    def pick_variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the host that it needs, and no others."""
        return {name: environ[name] for name in (*self.keys, *self.settings) if environ.get(name)}


OLDEST_MINOR = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterHost:
    """The Python interpreters and folders for our own programs in a sandbox."""

    python: Path
    own_python: Path
    programs: Path


def this_host() -> AdapterHost:
    """Inspect this host."""
    own = Path(sys.executable)
    python = usable_python(Path("/usr/bin/python3"), own)
    return AdapterHost(python=python, own_python=own, programs=Path(__file__).parent)


def usable_python(system: Path, own: Path) -> Path:
    """Prefer *system*, which every sandbox shows, if its real name is that of Python 3.9 or newer."""
    real = system.resolve()
    version = re.fullmatch(r"python3\.(\d+)", real.name)
    if real.is_file() and version and int(version[1]) >= OLDEST_MINOR:
        return real
    return own.resolve()
