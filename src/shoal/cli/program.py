"""How this program is called, so that what we print can be typed."""

import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """Give `shoal` where the shell finds it, else the path by which it was started."""
    started = Path(sys.argv[0])
    found = shutil.which("shoal")
    if found is not None or not started.is_file():
        return "shoal"
    return shlex.quote(str(started.absolute()))
