"""What adapters have to be told about this host; the only look that this room takes at it."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

OLDEST_MINOR = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Interpreters for programs of ours in a box, any that works and our own, and where the programs lie."""

    python: Path
    own_python: Path
    programs: Path


def this_host() -> Host:
    """Look at the host we are on."""
    own = Path(sys.executable)
    python = usable_python(Path("/usr/bin/python3"), own)
    return Host(python=python, own_python=own, programs=Path(__file__).parent)


def usable_python(system: Path, own: Path) -> Path:
    """Prefer *system*, which every box shows, if the file it leads to is named for 3.9 or newer."""
    real = system.resolve()
    version = re.fullmatch(r"python3\.(\d+)", real.name)
    if real.is_file() and version and int(version[1]) >= OLDEST_MINOR:
        return real
    return own.resolve()
