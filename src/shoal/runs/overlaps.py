"""Report during a run which sessions changed the same files, as soon as the second of two has ended.

Commits inside an agent's sandbox are not inspected: they may be invalid until they are imported.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
from dataclasses import replace

from shoal.errors import FAULTS
from shoal.git.commits import since
from shoal.git.conflicts import Conflicted, Tried
from shoal.git.diff import list_touched_files
from shoal.git.merge import try_pairs
from shoal.model.events import OverlapSeen, Recorded, SessionEnded, StepEnded
from shoal.model.merge import Conflict, Overlap
from shoal.model.plan import Plan, Step, walk_stages
from shoal.model.results import Purpose, WorkerResult
from shoal.sessions.context import RunContext

MOST_SESSIONS = 2000
MOST_TOLD = 200
MOST_FILES = 5000
"""How many files of each session are compared."""
MOST_FOLDER_CHARS = 8 * 2**20  # ten times what the parent folders of that many usual paths have
MOST_PARTNERS = 20
SHOWN = 20
REST_SECONDS = 5.0
BATCH_SECONDS = 60.0


class Overlaps:
    """What is known about a run's sessions; *found* are the pairs that were reported."""

    def __init__(self, context: RunContext, alternatives: Container[str], mask: Callable[[str], str]) -> None:
        self.found: list[Overlap] = []
        self._site = context
        self._mask = mask
        self._alternatives = alternatives
        self._rivals: dict[str, dict[int, WorkerResult]] = {}
        self._news: asyncio.Queue[WorkerResult] = asyncio.Queue()
        self._ended: dict[str, WorkerResult] = {}
        self._places = TouchedPaths()

    def hear(self, recorded: Recorded) -> None:
        """Note finished work; of workers that are alternatives, only the chosen one's counts."""
        match recorded.event:
            case SessionEnded(result=result) if result.purpose is not Purpose.WORK:
                return  # a resolver's work contains that of both sides
            case SessionEnded(step=step, result=result) if result.commit and result.status.is_good:
                if step in self._alternatives:
                    self._rivals.setdefault(step, {})[result.index] = result
                else:
                    self._news.put_nowait(result)
            case StepEnded(step=step, selected=int(index)) if index in self._rivals.get(step, {}):
                self._news.put_nowait(self._rivals[step][index])
            case _:
                return

    async def watch(self) -> None:
        """Compare sessions as they end, all new ones at once, within the limits."""
        waiting: list[WorkerResult] = []
        while len(self._ended) < MOST_SESSIONS and len(self.found) < MOST_TOLD:
            come = await self._come()
            waiting += come
            if len(waiting) + len(self._ended) > 1:  # a single session has no overlap
                with contextlib.suppress(*FAULTS):  # the merge preview checks again, and reports what is wrong
                    async with asyncio.timeout(BATCH_SECONDS):
                        await self._compare_pairs(waiting)
                waiting = []
            self._finish(len(come))
        while True:  # the merge preview does the rest
            self._finish(len(await self._come()))

    async def rest(self) -> None:
        """Wait briefly until everything that has ended is compared."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                await self._news.join()

    async def _come(self) -> list[WorkerResult]:
        come = [await self._news.get()]
        while not self._news.empty():
            come.append(self._news.get_nowait())
        return come

    def _finish(self, number: int) -> None:
        for _ in range(number):
            self._news.task_done()

    async def _compare_pairs(self, fresh: Sequence[WorkerResult]) -> None:
        """Compare *fresh* sessions that touch the places of known ones, and report what a merge finds."""
        pairs: list[tuple[str, str]] = []
        for base in dict.fromkeys(str(result.base) for result in fresh):
            own = {str(result.commit): result for result in fresh if str(result.base) == base}
            for commit, paths in (await list_touched_files(self._site.repository, base, list(own))).items():
                session = own[commit].session
                self._ended[session] = own[commit]
                pairs += [(other, session) for other in self._places.add(session, paths[:MOST_FILES])]
        apart = await self._apart(pairs)
        tried = await try_pairs(self._site.repository, [self._commits(pair) for pair in apart])
        for pair, merge_try in zip(apart, tried, strict=True):
            await self._tell(pair, merge_try)

    async def _apart(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Leave out pairs that build on each other: they are one piece of work."""
        if not pairs:
            return []
        commits = list(dict.fromkeys(commit for pair in pairs for commit in self._commits(pair)))
        ancestry = await since(self._site.repository, [self._site.base.commit], commits)
        reach = {commit: ancestry.reach([commit]) for commit in commits}
        sides = {pair: self._commits(pair) for pair in pairs}
        return [pair for pair, (first, two) in sides.items() if first not in reach[two] and two not in reach[first]]

    def _commits(self, pair: tuple[str, str]) -> tuple[str, str]:
        first, two = (str(self._ended[session].commit) for session in pair)
        return first, two

    async def _tell(self, pair: tuple[str, str], tried: Tried) -> None:
        if len(self.found) >= MOST_TOLD:
            return
        conflicts = tried.conflicts if isinstance(tried, Conflicted) else ()
        shared = self._places.list_shared(*pair) or tuple(
            dict.fromkeys(path for conflict in conflicts for path in conflict.paths)
        )
        overlap = Overlap(
            one=pair[0],
            other=pair[1],
            paths=tuple(map(self._mask, shared[:SHOWN])),
            files=len(shared),
            conflicts=tuple(_mask(conflict, self._mask) for conflict in conflicts[:SHOWN]),
            step=_common_step(*(self._ended[session] for session in pair)),
        )
        self.found.append(overlap)
        is_last = len(self.found) == MOST_TOLD
        await self._site.ledger.append(OverlapSeen(run=self._site.run, overlap=overlap, is_last=is_last))


class TouchedPaths:
    """Which sessions touch which places: a file, or a file where another has a folder."""

    def __init__(self) -> None:
        self._files: dict[str, list[str]] = {}
        self._folders: dict[str, list[str]] = {}
        self._paths: dict[str, frozenset[str]] = {}

    def add(self, session: str, paths: Sequence[str]) -> list[str]:
        """Add a session, and return those before it that touch the same places."""
        met: dict[str, None] = {}
        folders = _folders(paths)
        for path in paths:
            met |= dict.fromkeys([*self._files.get(path, ()), *self._folders.get(path, ())])
        for folder in folders:
            met |= dict.fromkeys(self._files.get(folder, ()))
        for path in paths:
            self._files.setdefault(path, []).append(session)
        for folder in folders:
            self._folders.setdefault(folder, []).append(session)
        self._paths[session] = frozenset(paths)
        order = {name: number for number, name in enumerate(self._paths)}
        return sorted(met, key=order.__getitem__)[:MOST_PARTNERS]

    def list_shared(self, first: str, other: str) -> tuple[str, ...]:
        """List the files that both changed."""
        return tuple(sorted(self._paths[first] & self._paths[other]))


@contextlib.asynccontextmanager
async def watch_overlaps(
    context: RunContext, alternatives: Container[str] = (), mask: Callable[[str], str] | None = None
) -> AsyncIterator[Overlaps]:
    """Report overlaps while this is open; the run waits for it only briefly, at its end.

    Of a step in *alternatives*, only the chosen worker counts. *mask* masks secrets in file names.
    """
    overlaps = Overlaps(context, alternatives, mask or context.mask.text)
    unsubscribe = context.ledger.subscribe(overlaps.hear)
    error: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(overlaps.watch())
            try:
                yield overlaps
                await overlaps.rest()
            except BaseException as raised:  # passed around the task group, which would wrap it
                error = raised
            watching.cancel()
    finally:
        unsubscribe()
    if error is not None:
        raise error


def alternatives_of(plan: Plan) -> frozenset[str]:
    """Name the steps of which only one worker's work will count."""
    steps = (stage for stage in walk_stages(plan.steps) if isinstance(stage, Step))
    return frozenset(step.name for step in steps if step.select is not None)


def _common_step(first: WorkerResult, other: WorkerResult) -> str | None:
    """Return the step of two sessions that did the same task; the items of a matrix are separate tasks."""
    step = first.session.rpartition("-")[0]
    return step if first.item is None and step == other.session.rpartition("-")[0] else None


def _folders(paths: Iterable[str]) -> set[str]:
    """Return the parent folders of *paths*, each once; of a path that is a thousand levels deep, not all are named."""
    seen: set[str] = set()
    left = MOST_FOLDER_CHARS
    for path in paths:
        above = path.rpartition("/")[0]
        while above and above not in seen and left > 0:
            seen.add(above)
            left -= len(above)
            above = above.rpartition("/")[0]
    return seen


def _mask(conflict: Conflict, mask: Callable[[str], str]) -> Conflict:
    return replace(conflict, paths=tuple(map(mask, conflict.paths[:SHOWN])), message=mask(conflict.message))
