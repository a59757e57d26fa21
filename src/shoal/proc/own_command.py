"""Run our own commands: what a page, a screen or a client of ours does is what a person would type."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.model.command import Command
from shoal.proc.output import HeadTailBuffer, LineSplitter
from shoal.proc.process import open_process
from shoal.proc.run import run
from shoal.proc.spawn import Stream

PROGRAM = (sys.executable, "-P", "-m", "shoal")  # `-P`: a folder `shoal` of the repository is not taken for ours
COMMAND_SECONDS = 600.0
MAX_OUTPUT_BYTES = 16 * 2**20
MAX_ERROR_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command came to: its exit code, its document or text, and its stderr."""

    code: int
    output: bytes
    error: str
    is_cut: bool = False

    @property
    def document(self) -> object:
        """Give the document that it printed; `None` where it printed none."""
        try:
            return json.loads(self.output)
        except ValueError:
            return None

    def as_fields(self) -> dict[str, object]:
        """Return what a page needs of it."""
        return {"code": self.code, "document": self.document, "error": self.error}


async def run_own(
    folder: Path, arguments: Sequence[str], environ: Mapping[str, str], *, seconds: float = COMMAND_SECONDS
) -> Outcome:
    """Run `shoal` with *arguments* in the repository at *folder*."""
    try:
        done = await run(_own_command(folder, arguments, environ), timeout=seconds, limit=MAX_OUTPUT_BYTES)
    except TimeoutError:
        return Outcome(3, b"", f"`shoal {arguments[0]}` took longer than {seconds:g} s and was ended")
    code = done.exit.code if done.exit.code is not None else 128 + (done.exit.signal or 0)
    return Outcome(code, done.stdout, done.stderr.decode(errors="replace"), is_cut=done.dropped > 0)


async def follow_own(
    folder: Path, arguments: Sequence[str], environ: Mapping[str, str], on_line: Callable[[str], None]
) -> Outcome:
    """Run `shoal` with *arguments*, and pass on each line of its stdout; whoever calls it says how long it may take."""
    lines, errors = LineSplitter(lambda line, _: on_line(line)), HeadTailBuffer(MAX_ERROR_BYTES)
    feeds = {Stream.STDOUT: lines.feed, Stream.STDERR: errors.feed}
    command = _own_command(folder, arguments, environ)
    async with open_process(command, sink=lambda stream, data: feeds[stream](data)) as process:
        ended = await process.wait()
    lines.close()
    code = ended.code if ended.code is not None else 128 + (ended.signal or 0)
    return Outcome(code, b"", errors.content().decode(errors="replace"))


def _own_command(folder: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> Command:
    return Command(argv=(*PROGRAM, *arguments), cwd=folder, env={**environ, "NO_COLOR": "1"})
