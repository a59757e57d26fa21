"""The faces of a run: lines for a person, one JSON document, or a stream of events."""

import sys
from pathlib import Path
from typing import Protocol

from shoal.cli import output
from shoal.cli.document import event_line, run_document, text
from shoal.cli.place import found
from shoal.cli.program import program
from shoal.cli.render.progress import Progress
from shoal.cli.render.report import Closing, report_lines
from shoal.engine.merge.candidates import INSIDE
from shoal.errors import Broken
from shoal.git.overlap import changes
from shoal.git.snapshot import is_hidden
from shoal.model.events import OverlapSeen, Recorded
from shoal.model.repository import Repository
from shoal.model.results import RunReport


class Face(Protocol):
    """What a run shows of itself."""

    def hear(self, recorded: Recorded) -> None:
        """Show one event, or nothing; a face never holds up the run."""

    async def conclude(self, report: RunReport, folder: Path) -> None:
        """Show the end."""


class Lines:
    """For a person: a line for each thing that happens, then the report."""

    def __init__(self, *, width: int = 0) -> None:
        self._progress = Progress(output.paint(), width=width)
        self._is_read = True

    def hear(self, recorded: Recorded) -> None:
        """Say what happened, for as long as somebody reads it."""
        line = self._progress.line(recorded)
        if line is not None and isinstance(recorded.event, OverlapSeen):
            output.tell(line)  # a warning, which belongs beside what is piped
        elif line is not None and self._is_read:
            try:
                output.say(line)
            except (output.Closed, Broken):
                self._is_read = False  # `shoal run | head -1`: the run itself goes on

    async def conclude(self, report: RunReport, folder: Path) -> None:
        """Print the report, with the files that several branches changed."""
        if not self._is_read:
            return
        repository = (await found(folder)).repository
        closing = Closing(
            changed=await _changed(report, repository),
            program=program(),
            folder=folder,
            can_merge=not is_hidden(repository),
        )
        try:
            output.say("\n".join(report_lines(report, closing, output.paint())))
        except output.Closed:
            self._is_read = False


class Document:
    """For a program: one JSON document on stdout, and the progress on stderr."""

    def __init__(self, *, width: int = 0) -> None:
        self._progress = Progress(output.paint(sys.stderr), width=width)

    def hear(self, recorded: Recorded) -> None:
        """Say what happened, beside the document."""
        if (line := self._progress.line(recorded)) is not None:
            output.tell(line)

    async def conclude(self, report: RunReport, folder: Path) -> None:
        """Print the document."""
        output.say(text(run_document(report)))


class Events:
    """For a program that follows: every event on a line of its own."""

    def __init__(self) -> None:
        self._is_read = True

    def hear(self, recorded: Recorded) -> None:
        """Print the event."""
        if self._is_read:
            try:
                output.say(event_line(recorded))
            except (output.Closed, Broken):
                self._is_read = False

    async def conclude(self, report: RunReport, folder: Path) -> None:
        """Say nothing: the last event said it."""


async def _changed(report: RunReport, repository: Repository) -> dict[str, tuple[str, ...]]:
    # who resolved a conflict changed by that what others had changed before
    workers = [worker for step in report.steps if INSIDE not in step.step for worker in step.worker_results]
    found: dict[str, tuple[str, ...]] = {}
    # What a worker built on is not its own change: steps that stand on each other do not overlap by that.
    for base in dict.fromkeys(worker.base or report.base for worker in workers):
        own = [worker for worker in workers if (worker.base or report.base) == base]
        commits = {worker.branch: worker.commit for worker in own if worker.branch and worker.commit}
        found |= await changes(repository.git, base, commits)
    return found
