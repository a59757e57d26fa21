"""An agent that inspects: runs Python in the sandbox, and returns what it found."""

import json
import shlex
from typing import Any

from shoal.model.results import WorkerResult

PRELUDE = r"""
import ctypes, errno, json, os, signal, socket, stat, subprocess, sys, time
given = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def tried(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    return "done"
def call(*words):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    return errno.errorcode.get(ctypes.get_errno(), "?") if libc.syscall(*words) < 0 else "done"
def read(path):
    return tried(lambda: open(path, "rb").read(64))
def write(path):
    return tried(lambda: open(path, "a").write("canary"))
def program(*words):
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return done.returncode
def connect(family, address, kind=socket.SOCK_STREAM):
    def act():
        with socket.socket(family, kind) as client:
            client.settimeout(5)
            client.connect(address)
            client.send(b"canary")
    return tried(act)
"""


def looking(script: str, **given: object) -> str:
    """Write a Python script, run by the agent with *given* values, as a shell command."""
    return f"python3 - {shlex.quote(json.dumps(given))} <<'SHOAL_LOOKS'\n{PRELUDE}\n{script}\nSHOAL_LOOKS\n"


def found(result: WorkerResult) -> dict[str, Any]:
    """Read the JSON that the agent printed."""
    facts: dict[str, Any] = json.loads(result.output)
    return facts
