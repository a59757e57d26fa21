"""What a contract may do with the committed work: read it, and run commands and reviewers on it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal.errors import BadInput
from shoal.model.artifact import refusal
from shoal.model.contract import AgentReview

NAMED = 5
NAME_CHARS = 120
LINES = 20
LINE_CHARS = 300
MESSAGE_CHARS = 300


def list_paths(paths: Sequence[str], masked: Callable[[str], str] = str) -> str:
    """List some of *paths*, *masked* before they are cut, and how many more there are."""
    shown = ", ".join(escape_text(masked(path), NAME_CHARS) for path in paths[:NAMED])
    return shown if len(paths) <= NAMED else f"{shown} and {len(paths) - NAMED} more"


def quote_output(output: str) -> str:
    """Quote the last lines of *output*, so that none of them looks like ours."""
    lines = [line for line in output.splitlines() if line.strip()]
    return "".join(f"\n> {escape_text(line, LINE_CHARS)}" for line in lines[-LINES:])


def quote_lines(text: str) -> str:
    """Quote *text* line by line: it is material, and must not look like our own words."""
    return "\n".join(f"> {line}" for line in text.splitlines())


def escape_text(text: str, most: int) -> str:
    """Escape control and bidirectional characters, and cut the text."""
    safe = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: most + 1])
    return safe if len(safe) <= most else f"{safe[:most]}…"


PLAIN = ("100644", "100755")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """How a command or a reviewer ended; *output* is the end of its output, *failure* why it was ended."""

    exit_code: int | None
    output: str
    failure: str | None = None
    usage: Mapping[str, float] = field(default_factory=dict)
    """Its model usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A file that the work changes; *status* is git's letter, *old_path* differs from *path* for a rename."""

    status: str
    path: str
    old_path: str
    mode: str
    old_mode: str


class Workbench(Protocol):
    """Read access to one worker's work; nothing here changes it."""

    def mask(self, text: str) -> str:
        """Mask secrets in a text; call it before cutting, or half of a secret could remain."""

    async def read(self, path: str, limit: int) -> bytes | None:
        """Return the beginning of a regular file of the work, or `None`."""

    async def read_before(self, path: str, limit: int) -> bytes | None:
        """Return the same for the commit that the work started from."""

    async def artifact(self, name: str, limit: int) -> bytes | None:
        """Return the beginning of an artifact that the worker left."""

    async def run(self, command: tuple[str, ...], timeout: float | None) -> BenchResult:
        """Run *command* on the work in the worker's sandbox; its changes are discarded."""

    async def changes(self) -> tuple[Change, ...]:
        """List the files that the work changes."""

    async def patch(self, limit: int) -> str:
        """Return the diff as text, cut after *limit* bytes."""

    async def review(self, contract: AgentReview, prompt: str) -> BenchResult:
        """Run the reviewer on *prompt*, with the work to read."""


async def read_file(bench: Workbench, path: str, limit: int) -> bytes | None:
    """Read a file of the work; refuse a path that is invalid after its templates are filled in."""
    if why := refusal(path):
        raise BadInput(f"{show_file(bench, path)}: {why}")
    return await bench.read(path, limit)


def show_file(bench: Workbench, path: str) -> str:
    """Quote *path* for a message."""
    return f"`{escape_text(bench.mask(path), MESSAGE_CHARS)}`"
