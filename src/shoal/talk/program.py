"""The command `shoal-talk` as it lies in a sandbox: the program, with the interpreter of this host."""

import functools
from pathlib import Path

SOURCE = Path(__file__).with_name("talk_program.py")
SYSTEM = Path("/usr")  # shown in every sandbox


@functools.cache
def talk_program(python: Path) -> bytes:
    """Return the program, to be run by *python*, a path without links."""
    return f"#!{python} -IS\n".encode() + SOURCE.read_bytes()


def interpreter_files(python: Path) -> tuple[Path, ...]:
    """Return what a sandbox has to show for *python* to run."""
    return () if python.is_relative_to(SYSTEM) else (python, python.parent.parent / "lib")
