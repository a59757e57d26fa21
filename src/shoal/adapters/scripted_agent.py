"""The program of the scripted agent: reads its actions as JSON from stdin and does them, one after the other.

Run by path inside the wall (`python -I -S scripted_agent.py`), on any Python from 3.9: it imports nothing of ours,
and little else, so that it starts at once. Paths are relative to where it is run; what it may touch, the wall decides.
"""
# pathlib, subprocess and typing each take longer to import than all the rest of this program
# ruff: noqa: PTH103, PTH120, PTH123

import json
import os
import sys
import time
from collections.abc import Callable


class Failed(Exception):
    """An action did not work: the agent ends with 1."""


def main() -> None:
    """Do every action, and stop at the first that fails."""
    for action in json.load(sys.stdin.buffer):
        try:
            do(action)
        except (Failed, OSError) as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(1)


def do(action: dict[str, object]) -> None:
    """Do one action, whose only other key than the verb is `ignore_failure`."""
    is_quiet = action.pop("ignore_failure", False)
    ((verb, what),) = action.items()
    try:
        VERBS[verb](what)
    except Failed:
        if not is_quiet:
            raise


def write(file: dict[str, str]) -> None:
    """Make a file, and the folders above it."""
    put(file, "w")


def append(file: dict[str, str]) -> None:
    """Add to the end of a file."""
    put(file, "a")


def put(file: dict[str, str], mode: str) -> None:
    """Open a file in *mode* and write its content exactly."""
    os.makedirs(os.path.dirname(file["path"]) or ".", exist_ok=True)
    with open(file["path"], mode, encoding="utf-8", newline="") as out:
        out.write(file["content"])


def run(argv: list[str]) -> None:
    """Run a command without input, and wait for it."""
    nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    try:
        child = os.posix_spawnp(argv[0], argv, os.environ, file_actions=nothing)
    except OSError as error:
        raise Failed(f"run: {argv[0]}: {error.strerror}") from None
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise Failed(f"run: {argv[0]} ended with {code}" if code > 0 else f"run: {argv[0]} got signal {-code}")


def say(text: str) -> None:
    """Write a line at once, so that it stands before what the next command writes."""
    sys.stdout.buffer.write(f"{text}\n".encode())
    sys.stdout.buffer.flush()


def fail(text: str) -> None:
    """End the agent, and say why."""
    raise Failed(text)


VERBS: dict[str, Callable[..., object]] = {
    "write": write,
    "append": append,
    "delete": os.remove,
    "run": run,
    "sleep": time.sleep,
    "say": say,
    "fail": fail,
    "exit": sys.exit,
}

if __name__ == "__main__":
    main()
