"""The program of the scripted agent: reads its actions as a line of JSON and does them, one after the other.

Run by path inside the sandbox (`python -I -S scripted_agent.py`), on any Python from 3.9: it imports nothing of ours,
and little else, so that it starts at once. Paths are relative to where it runs; the sandbox decides what it may touch.
It keeps to the tool rules in SHOAL_PERMISSIONS_FILE, as a client would: what changes a file is `Write(path)`, and a
command is `Bash(command)`.
"""
# pathlib, subprocess and typing each take longer to import than all the rest of this program
# ruff: noqa: PTH100, PTH103, PTH109, PTH120, PTH123

import json
import os
import sys
import time
from collections.abc import Callable


class Failed(Exception):
    """An action did not work: the agent ends with 1."""


class Denied(Exception):
    """A rule forbids an action: the agent ends with 1, even with `ignore_failure`."""


def main() -> None:
    """Run the actions, and stop at the first that fails."""
    rules = Rules(os.environ.get("SHOAL_PERMISSIONS_FILE"))
    for action in json.loads(sys.stdin.buffer.readline()):
        try:
            do(action, rules)
        except (Denied, Failed, OSError) as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(1)


def do(action: dict[str, object], rules: "Rules") -> None:
    """Run one action, whose only other key is `ignore_failure`."""
    is_quiet = action.pop("ignore_failure", False)
    ((verb, what),) = action.items()
    rules.check(verb, what)
    try:
        VERBS[verb](what)
    except Failed:
        if not is_quiet:
            raise


class Rules:
    """Which tools may be used: denials first, then the listed ones; without a list, all others."""

    def __init__(self, file: "str | None") -> None:
        self.deny: list[str] = []
        self.allow: list[str] | None = None
        if file:
            with open(file, "rb") as given:
                permissions = json.load(given)
            self.deny, self.allow = permissions["deny"], permissions["allowed_tools"]

    def check(self, verb: str, what: object) -> None:
        """Raise `Denied` for an action that is not allowed; `say`, `sleep`, `fail` and `exit` need no permission."""
        use = tool_use(verb, what)
        if use is None:
            return
        denied = next((rule for rule in self.deny if covers(rule, *use)), None)
        if denied is None and self.allow is not None and not any(covers(rule, *use) for rule in self.allow):
            denied = "allowed_tools"
        if denied is not None:
            raise Denied(f"denied by rule {denied}: {use[0]}({use[1]})")


def tool_use(verb: str, what: object) -> "tuple[str, str] | None":
    """Return which tool an action would be, and its argument."""
    if verb in ("delete", "receive") and isinstance(what, str):
        return "Write", place(what)
    if verb in ("write", "append") and isinstance(what, dict):
        return "Write", place(what["path"])
    if verb == "run" and isinstance(what, list):
        return "Bash", what[2] if what[:2] == ["/bin/sh", "-c"] and len(what) == 3 else " ".join(what)
    return None


def place(path: str) -> str:
    """Return a path relative to the workspace, normalised so that no detour escapes a rule."""
    whole, top = os.path.abspath(path), os.getcwd()
    return os.path.relpath(whole, top) if whole.startswith(f"{top}/") else whole


def covers(rule: str, tool: str, argument: str) -> bool:
    """Return whether `Tool` or `Tool(glob)` speaks of this use; `Bash(git:*)` is `git` alone and with more."""
    name, given, glob = rule.partition("(")
    glob = glob[:-1]
    if not fits(name, tool):
        return False
    forms = [glob, glob[:-2], f"{glob[:-2]} *"] if glob.endswith(":*") else [glob]
    return not given or any(fits(form, argument) for form in forms)


def fits(glob: str, text: str) -> bool:
    """Match a text; only `*` is special, and stands for anything."""
    first, *rest = glob.split("*")
    if not rest:
        return glob == text
    at = len(first)
    for piece in rest[:-1]:
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return text.startswith(first) and text.endswith(rest[-1]) and at + len(rest[-1]) <= len(text)


def write(file: dict[str, str]) -> None:
    """Make a file, and the folders above it."""
    write_file(file, "w")


def append(file: dict[str, str]) -> None:
    """Add to the end of a file."""
    write_file(file, "a")


def write_file(file: dict[str, str], mode: str) -> None:
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
    """Write a line at once, so that it comes before the output of the next command."""
    sys.stdout.buffer.write(f"{text}\n".encode())
    sys.stdout.buffer.flush()


def receive(path: str) -> None:
    """Announce the wait, then write the next message to a file."""
    say(json.dumps({"shoal": "receive"}))
    line = sys.stdin.buffer.readline()
    if not line:
        raise Failed("receive: no message can come any more")
    write({"path": path, "content": json.loads(line)["message"]})


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
    "receive": receive,
    "fail": fail,
    "exit": sys.exit,
}

if __name__ == "__main__":
    main()
