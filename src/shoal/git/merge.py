"""Merge commits in a gitdir of ours, without a checkout and without any driver, filter or hook."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal import proc
from shoal.errors import Broken, GitFailed
from shoal.git.commits import Commit, write_commit
from shoal.git.conflicts import Clean, Conflicted, ConflictReader, Tried, records
from shoal.git.gitdir import write_gitdir
from shoal.git.imports import migrate_packs, release_packs
from shoal.git.run import ENVIRONMENT, FLAGS, LIMITS, TIMEOUT, git
from shoal.model.command import Command
from shoal.model.repository import Repository

__all__ = [
    "Clean",
    "Conflicted",
    "MergeRepository",
    "Merged",
    "Tried",
    "combine_commits",
    "merge_commits",
    "try_pairs",
    "workbench",
]

MOST_BYTES = 256 * 2**20
# With messages, git flushes its output after each merge (2.39): all but the last byte.
VERB = ("merge-tree", "--write-tree", "--stdin", "--messages")
ANSWER_SECONDS = 5.0
PREFIX = "shoal-merge-"
FRESH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge commit that no ref holds yet."""

    commit: str
    resolved: tuple[str, ...] = ()
    """The files in which a conflict was resolved."""
    keeps: tuple[Path, ...] = field(default=(), compare=False)
    """What protects it from gc until `release_packs`, if it is held."""


Resolve = Callable[["MergeRepository", str, str, Conflicted], Awaitable[str | None]]
"""Returns the tree in which a conflict of two commits is resolved, or `None` if it cannot."""


async def merge_commits(repository: Repository, ours: str, theirs: str, message: str) -> Merged | Conflicted:
    """Merge *theirs* into *ours*; a side that contains the other is the result."""
    return await combine_commits(repository, (ours, theirs), message)


async def combine_commits(
    repository: Repository,
    commits: Sequence[str],
    message: str,
    *,
    resolve: Resolve | None = None,
    is_held: bool = False,
) -> Merged | Conflicted:
    """Merge *commits* one after the other, in order; the first conflict that *resolve* leaves is the result.

    A result that *is_held* is safe from gc until its packs are released.
    """
    whole = commits[0]
    resolved: dict[str, None] = {}
    async with workbench(repository) as bench:
        for commit in commits[1:]:
            if await bench.holds(whole, commit):
                continue
            if await bench.holds(commit, whole):
                whole = commit
                continue
            match await bench.try_merge(whole, commit):
                case Clean(tree):
                    whole = bench.commit(Commit(tree=tree, parents=(whole, commit), message=message))
                case Conflicted() as conflict:
                    chosen = None if resolve is None else await resolve(bench, whole, commit, conflict)
                    if chosen is None:
                        return conflict
                    whole = bench.commit(Commit(tree=chosen, parents=(whole, commit), message=message))
                    resolved |= dict.fromkeys(conflict.paths)
        await bench.publish(whole, commits)
        keeps = bench.hand_over_packs() if is_held else ()
    return Merged(whole, tuple(resolved), keeps)


async def try_pairs(repository: Repository, pairs: Sequence[tuple[str, str]]) -> list[Tried]:
    """Try to merge each pair of commits with one process; nothing is left in the repository."""
    if not pairs:
        return []
    with _shadow(repository) as shadow:
        asked = "".join(f"{ours} {theirs}\n" for ours, theirs in pairs).encode()
        done = await git(shadow, *VERB, stdin=asked, limit=MOST_BYTES)
        if done.dropped:
            raise Broken("the conflicts are more than can be looked at; merge fewer sessions at once")
    return records(done.stdout)


@contextlib.asynccontextmanager
async def workbench(repository: Repository) -> AsyncIterator["MergeRepository"]:
    """Open one git process that makes merges on request."""
    with _shadow(repository) as shadow, _fifo(shadow.parent / "asked") as (path, feed):
        asked = Command(
            argv=("git", *FLAGS, "-c", "core.fsync=none", *VERB),  # temporary objects need not be durable
            cwd=Path("/"),
            env={**ENVIRONMENT, "GIT_DIR": str(shadow)},
            stdin=path,
            limits=LIMITS,
        )
        output = _MergeOutput()
        async with proc.open_process(asked, sink=output.take) as process:
            bench = MergeRepository(repository, shadow, _RequestPipe(process, feed, output))
            try:
                yield bench
            finally:
                release_packs(bench.keeps)


class MergeRepository:
    """A gitdir to merge in, without a checkout; made by `workbench`."""

    def __init__(self, repository: Repository, shadow: Path, line: "_RequestPipe") -> None:
        self.repository = repository
        self._shadow = shadow
        self._line = line
        self.keeps: list[Path] = []
        """What protects the packs that were published from gc."""

    @property
    def gitdir(self) -> Path:
        """The gitdir with all objects made here."""
        return self._shadow

    async def try_merge(self, ours: str, theirs: str) -> Tried:
        """Merge two commits into a tree, or conflicts."""
        if (answer := await self._line.answer(ours, theirs)) is not None:
            return answer
        # This git prints nothing before its end: then use one process for each merge.
        done = await self.git(*VERB, stdin=f"{ours} {theirs}\n".encode())
        return records(done.stdout)[0]

    def commit(self, commit: Commit) -> str:
        """Make *commit*; only this bench has it until it is published."""
        return write_commit(commit, self.repository, self._shadow / "objects")

    async def publish(self, tip: str, known: Collection[str]) -> None:
        """Copy what *tip* has and *known* do not into the repository, as one pack; no ref holds it yet.

        Until this bench is closed, git's gc leaves the pack alone: one that began earlier would remove it.
        """
        if tip in known:
            return
        wanted = "".join(f"{revision}\n" for revision in (tip, *(f"^{commit}" for commit in dict.fromkeys(known))))
        # One pack is flushed to disk once; loose objects would be flushed hundreds of times.
        with tempfile.TemporaryDirectory(prefix="publish-", dir=self._shadow) as folder:
            pack = Path(folder, "pack")
            pack.mkdir()
            await git(self._shadow, "pack-objects", "-q", "--revs", str(pack / "pack"), stdin=wanted.encode())
            self.keeps += migrate_packs(Path(folder), self.repository.lenders[0])

    def hand_over_packs(self) -> tuple[Path, ...]:
        """Return what protects the published packs; whoever has it calls `release_packs`, and this bench does not."""
        keeps, self.keeps = tuple(self.keeps), []
        return keeps

    async def holds(self, outer: str, inner: str) -> bool:
        """Return whether *inner* is an ancestor of *outer*."""
        done = await self.git("merge-base", "--is-ancestor", inner, outer, accept=(0, 1))
        return done.ok

    async def git(self, *args: str, stdin: bytes = b"", accept: tuple[int, ...] = (0,)) -> proc.Completed:
        """Run another git command with this bench's objects."""
        return await git(self._shadow, *args, stdin=stdin, accept=accept, limit=MOST_BYTES)

    async def tree(self, commit: str) -> str:
        """Return the tree of *commit*."""
        done = await self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{tree}}")
        return done.stdout.decode().strip()


class _RequestPipe:
    """A connection to a process that answers each request before the next."""

    def __init__(self, process: proc.Process, feed: int, output: "_MergeOutput") -> None:
        self._process = process
        self._feed = feed
        self._output = output
        self._asked = 0
        self._is_mute = False

    async def answer(self, ours: str, theirs: str) -> Tried | None:
        """Send a request, and wait for the answer; `None` if this git answers only at its end."""
        if (
            self._asked == 0
        ):  # a trivial one: a merge with many conflicts may take longer than the time after which git counts as mute
            try:
                await self._ask(ours, ours, ANSWER_SECONDS)
            except TimeoutError:
                self._is_mute = True
        return None if self._is_mute else await self._ask(ours, theirs, TIMEOUT)

    async def _ask(self, ours: str, theirs: str, seconds: float) -> Tried:
        # A trivial request behind each: its answer flushes the last byte of the one before.
        os.write(self._feed, f"{ours} {theirs}\n{ours} {ours}\n".encode())  # far below what a pipe takes at once
        position, self._asked = self._asked, self._asked + 2
        async with asyncio.timeout(seconds):
            while len(self._output.answers) <= position:
                await self._more()
        return self._output.answers[position]

    async def _more(self) -> None:
        """Wait for more output of git; raise if it has ended."""
        async with asyncio.TaskGroup() as group:
            news, gone = group.create_task(self._output.news.wait()), group.create_task(self._process.wait())
            await asyncio.wait((news, gone), return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            gone.cancel()
        if not self._output.news.is_set():
            code = (await self._process.wait()).code
            raise GitFailed(VERB, -1 if code is None else code, self._output.complaint)
        self._output.news.clear()


class _MergeOutput:
    """The process's answers, in the order of the requests."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._reader = ConflictReader()
        self._errors = b""

    @property
    def answers(self) -> list[Tried]:
        return self._reader.found

    @property
    def complaint(self) -> str:
        return self._errors.decode(errors="replace")

    def take(self, stream: proc.Stream, chunk: bytes) -> None:
        if stream is proc.Stream.STDERR:
            self._errors = (self._errors + chunk)[-4000:]
            return
        self._reader.feed(chunk)
        if self._reader.pending_bytes > MOST_BYTES:
            raise Broken("the conflicts of one merge are more than can be looked at")
        self.news.set()


@contextlib.contextmanager
def _shadow(repository: Repository) -> Iterator[Path]:
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_gitdir(
            folder / "git",
            repository,
            head="ref: refs/heads/none",
            refs={},
            index=None,
            lenders=repository.lenders,
            loose_stat=False,
        )
        yield folder / "git"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _sweep(place: Path) -> None:
    """Remove folders of killed processes: unlocked, and not just created."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                facts = os.fstat(lock)
                if facts.st_uid == os.getuid() and time.time() - facts.st_mtime > FRESH_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


@contextlib.contextmanager
def _fifo(path: Path) -> Iterator[tuple[Path, int]]:
    """Make a named pipe, and hold it open: its reader ends when this does."""
    os.mkfifo(path, 0o600)
    # Opened for reading and writing, so that the child's open does not block.
    feed = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield path, feed
    finally:
        os.close(feed)
