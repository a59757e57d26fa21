"""Tools that work in a workspace, in its sandbox: the host never opens by path what an agent can write."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import Tool

from shoal.model.agent import TOOLS
from shoal.model.permissions import NOT_LISTED, PermissionManager


class CommandOutcome(Protocol):
    """How a command in a workspace ended, and the end of its output."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def output(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def limit(self) -> str | None: ...


class Workspace(Protocol):
    """A private folder in a sandbox, in which commands run."""

    async def run(
        self, command: str | Sequence[str], *, timeout: float | None = None, stdin: bytes | None = None
    ) -> CommandOutcome:
        """Run *command* in the folder, in the sandbox, and wait for it."""
        ...


@runtime_checkable
class HasPermissions(Protocol):
    """A workspace with rules for tools."""

    @property
    def permission_manager(self) -> PermissionManager: ...


@runtime_checkable
class HasWorkspace(Protocol):
    """Provides a workspace: a session that was opened with a plain `with`."""

    def as_workspace(self) -> Workspace:
        """Return the workspace that tools use."""
        ...


class OpenWorkspace(Protocol):
    """Opens a workspace for each prompt, for example `lambda index: IsolatedAgentSession(f"prompt-{index}", ".")`."""

    def __call__(self, index: int, /) -> AbstractAsyncContextManager[Workspace]:
        """Open the workspace of the prompt with *index*; it is closed after that prompt."""
        ...


READ_BYTES = 40_000  # below the 64 KiB of output that a session keeps for a command
SHELL_CHARACTERS = 30_000
SEARCH_LINES = 200
LIST_ENTRIES = 500
FILE_SECONDS = 30.0
SHELL_SECONDS = 120.0
LEAST_SECONDS = 0.1
MOST_LINES = 10**9
WORD_BYTES = 100_000  # an argument may not be longer than 128 KiB

# The names of the same tools in coding clients: a rule may use either.
CLIENT_NAMES = {"read": "Read", "write": "Write", "edit": "Edit", "list": "LS", "search": "Grep", "shell": "Bash"}

# POSIX programs, run by /bin/sh in the sandbox; the model reads their stderr.
READ = """
[ -e "$1" ] || { echo "there is no file $1" >&2; exit 3; }
[ -f "$1" ] || { echo "$1 is not a file" >&2; exit 3; }
awk 'END { print NR }' <"$1" >&2 || exit 3
tail -n "+$2" -- "$1" | head -n "$3" | head -c "$4"
"""
WRITE = """
mkdir -p -- "$(dirname -- "$1")" && cat >"$1"
"""
LIST = """
[ -e "$1" ] || { echo "there is no folder $1" >&2; exit 3; }
ls -1Apq -- "$1" | head -n "$2"
"""
SEARCH = """
[ -e "$2" ] || { echo "there is no file or folder $2" >&2; exit 3; }
grep -rnIE --exclude-dir=.git --exclude=.git -e "$1" -- "$2" | cut -c 1-300 | head -n "$3"
"""
EDIT = """
export LC_ALL=C
[ -f "$1" ] || { echo "there is no file $1" >&2; exit 3; }
scratch=$(mktemp -d) || exit 3
trap 'rm -rf "$scratch"' EXIT
cat >"$scratch/both" && cat <"$1" >"$scratch/text" || exit 3
(cd "$scratch" && awk -v size="$(tr -d '\\000' <text | wc -c)" -v cut="$2" "$3" >made)
case $? in
0) cat "$scratch/made" >"$1" ;;
4) echo "the old text is not in $1; read it, and give the text exactly as it stands there" >&2; exit 4 ;;
5) echo "the old text is in $1 more than once; give more of what is around it" >&2; exit 5 ;;
6) echo "$1 is not a text file" >&2; exit 6 ;;
*) exit 3 ;;
esac
"""
# Files are read whole, because a text may span lines; \\001 ends a record. No text ends with that, or contains a NUL.
AWK = r"""
function whole(file,   record, text, many) {
    while ((getline record < file) > 0) text = many++ ? text "\001" record : record
    return text
}
BEGIN {
    RS = "\001"; ORS = ""
    text = whole("text"); both = whole("both"); old = substr(both, 1, cut); new = substr(both, cut + 1)
    if (length(text) != size) exit 6
    if (!index(text, old) && index(text, "\r\n")) { gsub(/\n/, "\r\n", old); gsub(/\n/, "\r\n", new) }
    at = index(text, old)
    if (!at) exit 4
    if (index(substr(text, at + 1), old)) exit 5
    print substr(text, 1, at - 1); print new; print substr(text, at + length(old))
}
"""


def sandboxed_tools(workspace: Workspace | HasWorkspace) -> list[Tool[None]]:
    """Return the tools `read`, `write`, `edit`, `list`, `search` and `shell`, all of which work in *workspace*.

    It may be a session that synchronous code holds open with `with`, whatever loop the agent runs in.
    """
    workspace = workspace.as_workspace() if isinstance(workspace, HasWorkspace) else workspace
    hands = _WorkspaceTools(workspace)
    rules = workspace.permission_manager if isinstance(workspace, HasPermissions) else None
    named: dict[str, Callable[..., Awaitable[str]]] = {
        "read": hands.read,
        "write": hands.write,
        "edit": hands.edit,
        "list": hands.list,
        "search": hands.search,
        "shell": hands.shell,
    }
    # sequentially: two writes of one answer to the same file must stay in order
    return [Tool(_check_rules(name, function, rules), name=name, sequential=True) for name, function in named.items()]


def _check_rules(
    name: str, function: Callable[..., Awaitable[str]], rules: PermissionManager | None
) -> Callable[..., Any]:
    """Ask the session's rules before each call, if it has rules for tools."""
    if rules is None or (rules.permissions.allowed_tools is None and not rules.permissions.deny):
        return function
    subject = TOOLS[name][0]

    @functools.wraps(function)
    async def check_then_call(**arguments: object) -> str:
        decisions = [rules.tool_allowed(label, str(arguments.get(subject, ""))) for label in (name, CLIENT_NAMES[name])]
        denied = [decision for decision in decisions if not decision and decision.rule != NOT_LISTED]
        if denied or not any(decisions):
            raise ToolFailed(f"{name} is not allowed here ({(denied or decisions)[0].rule}); do without it")
        return await function(**arguments)

    return check_then_call


class _WorkspaceTools:
    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def read(self, path: str, first_line: int = 1, lines: int = 2000) -> str:
        """Read a text file of the workspace, from a line on."""
        first = min(max(1, first_line), MOST_LINES)
        done = await self._script(READ, path, first, min(max(1, lines), MOST_LINES), READ_BYTES)
        total = int((done.error.split() or ["0"])[0])
        last = first + done.output.count("\n") - 1
        if len(done.output.encode(errors="replace")) >= READ_BYTES:
            return f"{done.output}[cut off in line {last} of {total}; lines {first} to {last} are shown]"
        if first > max(total, 1):
            return f"[there is no line {first}: the file has {total}]"
        return done.output if last >= total else f"{done.output}[lines {first} to {last} of {total}]"

    async def write(self, path: str, content: str) -> str:
        """Write a whole text file in the workspace, making its folders."""
        await self._script(WRITE, path, stdin=content.encode(errors="replace"))
        return f"wrote {path}"

    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace a text in a file; the old text must stand there exactly, and only once."""
        if not old:
            raise ToolFailed("the old text is empty; give the text to replace, or use `write` for a new file")
        before, after = old.encode(errors="replace"), new.encode(errors="replace")
        await self._script(EDIT, path, len(before), AWK, stdin=before + after)
        return f"edited {path}"

    async def list(self, path: str = ".") -> str:
        """List a folder of the workspace; folders end with a slash."""
        done = await self._script(LIST, path, LIST_ENTRIES + 1)
        names = done.output.splitlines()
        more = ["[more entries are not shown]"] if len(names) > LIST_ENTRIES else []
        return "\n".join([*names[:LIST_ENTRIES], *more]) or "the folder is empty"

    async def search(self, pattern: str, path: str = ".") -> str:
        """Find the lines of text files that match an extended regular expression."""
        done = await self._script(SEARCH, pattern, path, SEARCH_LINES + 1)
        if not done.output and done.error:
            raise ToolFailed(_shorten(done.error.strip()))
        found = done.output.splitlines()
        more = ["[more matches are not shown; search for less]"] if len(found) > SEARCH_LINES else []
        return _shorten("\n".join([*found[:SEARCH_LINES], *more])) or "no match"

    async def shell(self, command: str, seconds: float = SHELL_SECONDS) -> str:
        """Run a shell command in the workspace, and give its exit code and its output."""
        seconds = max(seconds, LEAST_SECONDS)
        done = await self._run(command, timeout=seconds)
        parts = [_ending(done, seconds), _shorten(done.output), _shorten(done.error)]
        return "\n".join(part.rstrip() for part in parts if part)

    async def _script(self, script: str, *arguments: object, stdin: bytes | None = None) -> CommandOutcome:
        # a lone dash would be standard input to tail and to grep
        words = ["./-" if argument == "-" else str(argument) for argument in arguments]
        done = await self._run(script, "sh", *words, timeout=FILE_SECONDS, stdin=stdin)
        if done.exit_code != 0:
            raise ToolFailed(_shorten(done.error.strip()) or _ending(done, FILE_SECONDS))
        return done

    async def _run(self, *words: str, timeout: float, stdin: bytes | None = None) -> CommandOutcome:
        """Run a shell in the workspace; report an impossible command line to the model as its own mistake."""
        if any("\0" in word or not _is_text(word) for word in words):
            raise ToolFailed("the input contains a NUL byte or an incomplete character; remove it")
        if any(len(word.encode()) > WORD_BYTES for word in words):
            raise ToolFailed(f"that is longer than {WORD_BYTES} bytes; write it into a file, and work with that")
        return await self._workspace.run(["/bin/sh", "-c", *words], timeout=timeout, stdin=stdin)


def _ending(done: CommandOutcome, seconds: float) -> str:
    if done.timed_out:
        return f"the command was ended after {seconds:g} seconds, or after the session's own limit"
    if done.limit:
        return f"the command met the session's limit of {done.limit}"
    return "a signal ended the command" if done.exit_code is None else f"exit code {done.exit_code}"


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shorten(text: str) -> str:
    if len(text) <= SHELL_CHARACTERS:
        return text
    half = SHELL_CHARACTERS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
