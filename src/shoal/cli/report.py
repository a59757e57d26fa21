"""`shoal report`: a run for other readers, as a page, a comment, test results or a document."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Repo, Run
from shoal.cli.output import escape
from shoal.cli.render.html_report import AgentDiff, PageContent, page
from shoal.cli.render.junit import junit
from shoal.cli.render.markdown import markdown
from shoal.cli.render.timeline import MAX_LANES
from shoal.cli.repository import RepositoryState, find_place
from shoal.cli.status import status_document
from shoal.errors import BadInput, Broken, GitFailed
from shoal.git.diff import patch_beginning
from shoal.model.events import SessionEnded, StepStarted
from shoal.model.results import WorkerResult
from shoal.store.documents import text
from shoal.store.fold import report
from shoal.store.lookup import find_run
from shoal.store.reader import read_events, read_samples, read_session
from shoal.store.run_state import RunState
from shoal.store.timeline import Lane, read_lane

DIFF_BYTES = 128 * 1024
ALL_DIFF_BYTES = 4 * 2**20
STDOUT = "-"
PLOT_POINTS = 100


class Format(StrEnum):
    """What is printed on stdout."""

    MD = "md"
    JUNIT = "junit"
    JSON = "json"


Html = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Write one self-contained page; `-` prints it on stdout."),
]
Form = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="Print Markdown for a pull request (the default without --html), JUnit XML for CI, or JSON.",
        show_default=False,
    ),
]


def command(run: Run = None, html: Html = None, form: Form = None, repo: Repo = HERE) -> int:
    """Print or write a report of a run, for others to read.

    It is a page, a pull request comment, test results or JSON; by default, of the latest run. What agents wrote
    appears as text only: it cannot become markup, a mention, a link or a script.
    """
    if html == STDOUT and form is not None:
        raise BadInput("--html - and --format both write to stdout; name a file for the page")
    if html is not None and html != STDOUT:
        _assert_writable(Path(html))
    place = asyncio.run(find_place(repo))
    chosen = find_run(place.state(), run)
    if html is not None:
        _give_page(page(asyncio.run(_content(place, chosen))), html)
    if form is not None or html is None:
        output.print_out(_format(chosen, form or Format.MD).rstrip("\n"))
    return 0


def _format(run: RunState, form: Format) -> str:
    current = report(run, time.time())
    match form:
        case Format.MD:
            return markdown(current)
        case Format.JUNIT:
            return junit(current, run.started_at)
        case Format.JSON:
            return text(status_document(run, current))


def _assert_writable(path: Path) -> None:
    if path.is_dir():
        raise BadInput(f"--html {escape(str(path))}: it is a folder; name a file in it")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"--html {escape(str(path))}: there is no folder {escape(str(path.absolute().parent))}")


def _give_page(written: str, target: str) -> None:
    content = written.encode(errors="backslashreplace")
    if target == STDOUT:
        output.write_bytes(content)
        return
    path = Path(target).resolve()
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            path.write_bytes(content)
        else:
            _replace(path, content)
    except OSError as error:
        raise Broken(f"{escape(str(path))} could not be written: {error.strerror}") from error
    output.print_err(f"wrote {escape(target)}")


def _replace(path: Path, content: bytes) -> None:
    """Write a file completely or leave it unchanged."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


async def _content(place: RepositoryState, run: RunState) -> PageContent:
    now = time.time()
    current = report(run, now)
    workers = [worker for worker in current.workers if worker.branch]
    diffs = {session: diff async for session, diff in _diffs(place, run, workers)}
    samples = {
        worker.session: read_samples(place.paths, worker.session, PLOT_POINTS)
        for step in current.steps
        for worker in step.worker_results[:MAX_LANES]
    }
    lanes = tuple(_lanes(place, run, now))
    return PageContent(report=current, started_at=run.started_at, lanes=lanes, diffs=diffs, samples=samples)


@dataclass(frozen=True, slots=True)
class _Times:
    """When steps began and sessions ended, by name."""

    begun: dict[str, float]
    ended: dict[str, float]


def _times(place: RepositoryState, run: RunState) -> _Times:
    times = _Times({}, {})
    for recorded in read_events(place.paths, run.run):
        match recorded.event:
            case StepStarted(step=step):
                times.begun.setdefault(step, recorded.at)
            case SessionEnded(session=session):
                times.ended[session] = recorded.at
    return times


def _lanes(place: RepositoryState, run: RunState, now: float) -> Iterator[Lane]:
    """Make a lane for each session, including earlier attempts, in order of their start."""
    times = _times(place, run)
    sessions = [(step.step, session) for step in run.steps.values() for session in step.sessions.values()]
    for step, session in sorted(sessions, key=lambda entry: entry[1].seq):
        start = session.started_at
        queued = times.begun.get(step, start) if session.attempt == 1 and session.visit == 1 else start
        is_open = not session.status.is_ended
        end = times.ended.get(session.session, now if is_open else start)
        events = read_session(place.paths, session.session)
        yield read_lane(session.session, events, queued=min(queued, start), start=start, end=end)


async def _diffs(
    place: RepositoryState, run: RunState, workers: list[WorkerResult]
) -> AsyncIterator[tuple[str, AgentDiff]]:
    bases = {name: session.base for step in run.steps.values() for name, session in step.sessions.items()}
    left = ALL_DIFF_BYTES
    for worker in workers:
        if worker.commit is None:
            continue
        if worker.secrets:
            yield worker.session, AgentDiff(omission="not shown, because it contains your secrets")
        elif left <= 0:
            yield worker.session, AgentDiff(omission="not shown, because the page is large already")
        else:
            diff = await _read_diff(place, bases[worker.session], worker.commit, min(DIFF_BYTES, left))
            left -= len(diff.patch)
            yield worker.session, diff


async def _read_diff(place: RepositoryState, base: str, commit: str, most: int) -> AgentDiff:
    try:
        patch = await patch_beginning(place.repository.git, base, commit, most + 1)
    except GitFailed:  # `shoal clean --merged` and `git gc` remove commits for good
        return AgentDiff(omission="not shown, because its commit is no longer in the repository")
    return AgentDiff(patch=patch[:most], is_cut=len(patch) > most)
