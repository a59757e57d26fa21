"""The command without the imports of each start: forked from a process that has them already.

It gets everything that a started program gets: arguments, a folder, an environment, streams and its own process.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli import main

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__, "tests.cli.loaded"])


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def ran(words: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float) -> Said:
    """Run the command to its end, as `subprocess.run` would run the program."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        streams = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)]
        command = FORKED.Process(target=become, args=(list(words), str(cwd), dict(env), streams))
        command.start()
        command.join(timeout)
        is_over = command.exitcode is not None
        command.kill()
        command.join()
        code = command.exitcode
        command.close()
        assert is_over, f"shoal {words} took more than {timeout} s"
        assert code is not None
        out.seek(0)
        err.seek(0)
        return Said(code, out.read(), err.read())


def become(words: list[str], cwd: str, env: dict[str, str], streams: list[str]) -> None:
    """Become the program: nothing remains of the forked process except the imported modules."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_APPEND), fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    sys.argv = ["shoal", *words]
    main.main()
