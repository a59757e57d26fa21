"""Follow the ledgers of the shown repositories, and hold the documents that pages get when they change.

A page gets documents, not events: whoever was away, or reads slowly, gets the newest of each that changed since, once.
"""

import asyncio
import contextlib
import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.dashboard.documents import Document, plan_stages, run_card, run_page, session_row
from shoal.errors import BadInput
from shoal.model.events import (
    AgentActed,
    AgentEnded,
    AgentStarted,
    Recorded,
    RunEnded,
    RunResumed,
    RunStarted,
    SessionEnded,
    StepStarted,
)
from shoal.store.fold import Fold
from shoal.store.following import read_stamp
from shoal.store.killed_runs import find_dead, interrupt_runs
from shoal.store.paths import StatePaths
from shoal.store.progress import RunProgress, RunTail
from shoal.store.reader import read_events, read_session, store_at
from shoal.store.run_state import RunState, SessionState
from shoal.store.timeline import Lane, LaneDraft

POLL_SECONDS = 0.25
LONGEST_POLL_SECONDS = 2.0
PART_EVENTS = 100
CHANGES_A_SECOND = 200
"""How many changed documents a page is sent in a second; more come later, each in its newest form."""
DEAD_SECONDS = 5.0
"""Between two looks whether somebody still owns the runs that have not ended."""
BOARD_RUNS = 200
ALIVE_SECONDS = 15.0

Key = tuple[str, ...]
"""What a document is about: its kind, its site, its run, and its session where it is of one."""


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """One document with the number of its last change."""

    number: int
    document: Document
    text: str
    """The document as JSON, made once for all pages."""


@dataclass(slots=True)
class _RunFeed:
    """One run: its folded events, and the progress of its agents while it is alive."""

    fold: Fold = field(default_factory=Fold)
    plan: list[Document] | None = None
    """Its stages, read when somebody looks at the run."""
    tail: RunTail | None = None
    progress: RunProgress | None = None
    versions: dict[str, int] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)
    """When its steps began."""
    ended: dict[str, float] = field(default_factory=dict)
    """When its sessions ended."""
    lanes: dict[str, LaneDraft] = field(default_factory=dict)
    """What those sessions did that were at work while we looked."""
    is_dead: bool = False


class SiteFeed:
    """One repository: reads what is new in its ledger and in the logs of running agents."""

    def __init__(self, name: str, folder: Path, paths: StatePaths) -> None:
        self.name = name
        self.folder = folder
        self.paths = paths
        self._seen = 0
        self._stamp: tuple[int, ...] = ()
        self._runs: dict[str, _RunFeed] = {}
        self._runs_of: dict[str, str] = {}
        """The run of each session."""
        self._open: set[str] = set()
        """The runs without a recorded end."""
        self._changed: dict[str, set[str]] = {}
        self._dead_due_at = 0.0

    @property
    def runs(self) -> list[str]:
        """List the names of the runs in the order of their start."""
        return list(self._runs)

    def run(self, name: str) -> RunState:
        """Return the state of a run; raise `BadInput` if there is none of that name."""
        if name not in self._runs:
            self.read_ledger()  # it may have started a moment ago
        feed = self._runs.get(name)
        if feed is None:
            raise BadInput(f"no run named {name[:80]!r} in {self.name}")
        state = feed.fold.state()
        whole = interrupt_runs(state, {name}) if feed.is_dead else state
        return whole.runs[name]

    def session(self, name: str) -> SessionState:
        """Return the state of a session; raise `BadInput` if there is none of that name."""
        if name not in self._runs_of:
            self.read_ledger()
        if name in self._runs_of:
            for _, session in _sessions(self.run(self._runs_of[name])):
                if session.session == name:
                    return session
        raise BadInput(f"no session named {name[:80]!r} in {self.name}")

    def progress(self, name: str) -> RunProgress | None:
        """Return the progress of a run's agents; `None` if it was not seen alive."""
        feed = self._runs.get(name)
        return None if feed is None else feed.progress

    def page(self, name: str) -> Document:
        """Describe a whole run, with its sessions."""
        run, feed = self.run(name), self._runs[name]
        if feed.plan is None and (planned := store_at(self.paths).read_plan(name)) is not None:
            feed.plan = plan_stages(planned.plan)
        rows = [self._row(feed, step, session) for step, session in _sessions(run)]
        return {**run_page(self.name, run, feed.plan or (), feed.progress), "sessions": rows}

    def card(self, name: str) -> Document:
        """Describe a run for the board."""
        return run_card(self.name, self.run(name), self._runs[name].progress)

    def rows(self, name: str, changed: set[str]) -> Iterator[Document]:
        """Describe those sessions of a run that *changed*."""
        run, feed = self.run(name), self._runs[name]
        yield from (self._row(feed, step, session) for step, session in _sessions(run) if session.session in changed)

    def _row(self, feed: _RunFeed, step: str, session: SessionState) -> Document:
        agent = None if feed.progress is None else feed.progress.find(session.session)
        return session_row(step, session, agent, feed.versions.get(session.session, 0))

    def lanes(self, name: str, wanted: Collection[str]) -> dict[str, Lane]:
        """Return when the *wanted* sessions of a run did what."""
        run, feed = self.run(name), self._runs[name]
        found: dict[str, Lane] = {}
        for step, session in _sessions(run):
            if session.session in wanted:
                draft = feed.lanes.get(session.session) or self._read_lane(feed, session)
                start = session.started_at
                queued = feed.begun.get(step, start) if session.attempt == 1 and session.visit == 1 else start
                end = feed.ended.get(session.session, start if session.status.is_ended else time.time())
                found[session.session] = draft.lane(session.session, queued=min(queued, start), start=start, end=end)
        return found

    def _read_lane(self, feed: _RunFeed, session: SessionState) -> LaneDraft:
        """Read the log of a session that ended before we looked."""
        draft = LaneDraft()
        for recorded in read_session(self.paths, session.session):
            draft.take(recorded)
        if session.status.is_ended:
            feed.lanes[session.session] = draft
        return draft

    def poll(self) -> dict[str, set[str]]:
        """Read what is new; return the runs that changed, each with its changed sessions."""
        for _ in self.poll_in_parts():
            pass
        return self.take_changed()

    def begin(self) -> None:
        """Read the existing runs, and follow the live ones; what is there already is no change."""
        self.read_ledger()
        self._follow_changed()
        self.take_changed()

    def poll_in_parts(self) -> Iterator[None]:
        """Read what is new, and yield after each part, so that other tasks can run in between."""
        self.read_ledger()
        for name, feed in tuple(self._runs.items()):
            if feed.tail is not None and feed.progress is not None:
                yield from self._follow(name, feed, feed.tail, feed.progress)
        self._find_dead()

    def take_changed(self) -> dict[str, set[str]]:
        """Return the runs that changed since the last time, each with its changed sessions."""
        changed, self._changed = self._changed, {}
        return changed

    def read_ledger(self) -> None:
        """Read new events of runs and steps."""
        if (stamp := read_stamp(self.paths)) == self._stamp:
            return
        self._stamp = stamp
        for recorded in read_events(self.paths, after=self._seen):
            self._seen = recorded.seq
            self._take(recorded)

    def _take(self, recorded: Recorded) -> None:
        event = recorded.event
        feed = self._runs.setdefault(event.run, _RunFeed())
        feed.fold.take(recorded)
        match event:
            case RunStarted(run=run) | RunResumed(run=run):
                self._open.add(run)
            case RunEnded(run=run):
                self._open.discard(run)
            case StepStarted(step=step):
                feed.begun.setdefault(step, recorded.at)
            case SessionEnded(session=session):
                feed.ended[session] = recorded.at
        sessions = self._changed.setdefault(event.run, set())
        if (session := getattr(event, "session", "")) != "":
            sessions.add(session)
            self._runs_of[session] = event.run

    def _follow(self, name: str, feed: _RunFeed, tail: RunTail, progress: RunProgress) -> Iterator[None]:
        for count, recorded in enumerate(tail.read(), 1):
            progress.take(recorded)
            if isinstance(recorded.event, AgentStarted | AgentActed | AgentEnded):
                feed.lanes.setdefault(recorded.event.session, LaneDraft()).take(recorded)
            if session := getattr(recorded.event, "session", ""):
                feed.versions[session] = feed.versions.get(session, 0) + 1
                self._changed.setdefault(name, set()).add(session)
            if count % PART_EVENTS == 0:
                yield
        if tail.is_over:
            feed.tail = None

    def _find_dead(self) -> None:
        """Follow the live runs, and mark those that no process owns any more."""
        self._follow_changed()
        if time.monotonic() < self._dead_due_at:
            return
        self._dead_due_at = time.monotonic() + DEAD_SECONDS
        states = {name: self._runs[name].fold.state().runs[name] for name in self._open if not self._runs[name].is_dead}
        for name in find_dead(self.paths, states):
            self._runs[name].is_dead = True
            self._changed.setdefault(name, set()).update(session.session for _, session in _sessions(states[name]))

    def _follow_changed(self) -> None:
        """Follow the logs of the changed runs that have not ended."""
        for name in self._open & self._changed.keys():
            feed = self._runs[name]
            if feed.tail is None:
                feed.tail, feed.progress = RunTail(self.paths, name), feed.progress or RunProgress()


def _sessions(run: RunState) -> Iterator[tuple[str, SessionState]]:
    for step in run.steps.values():
        for session in step.sessions.values():
            yield step.step, session


class ChangeFeed:
    """All shown repositories; pages wait here for changed documents."""

    def __init__(self, sites: Sequence[SiteFeed]) -> None:
        self.sites = {site.name: site for site in sites}
        self.instance = secrets.token_hex(4)
        """Numbers of another instance say nothing here."""
        self._numbers = itertools.count(1)
        self._last = 0
        self._messages: dict[Key, DocumentChange] = {}
        self._changed = asyncio.Condition()
        self._is_closed = False

    async def close(self) -> None:
        """End all streams, so that the server can end."""
        self._is_closed = True
        async with self._changed:
            self._changed.notify_all()

    async def wait_closed(self) -> None:
        """Return when the server ends."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_closed)

    def site(self, name: str) -> SiteFeed:
        """Find a shown repository."""
        if name not in self.sites:
            raise BadInput(f"no repository named {name[:80]!r} here")
        return self.sites[name]

    def begin(self) -> None:
        """Read the existing runs; their sessions are sent when they change, or with the page of the run."""
        for site in self.sites.values():
            site.begin()
            for run in site.runs:
                self._put(("run", site.name, run), site.card(run))

    async def follow(self) -> None:
        """Read what is new, again and again, until cancelled."""
        while True:
            before, spent = self._last, time.thread_time()
            for site in self.sites.values():
                for _ in site.poll_in_parts():
                    await asyncio.sleep(0)
                self._publish(site)
            if self._last > before:
                async with self._changed:
                    self._changed.notify_all()
            spent = time.thread_time() - spent  # reading takes at most a fifth of a processor
            await asyncio.sleep(min(max(POLL_SECONDS, 4 * spent), LONGEST_POLL_SECONDS))

    def _publish(self, site: SiteFeed) -> None:
        for run, sessions in site.take_changed().items():
            self._put(("run", site.name, run), site.card(run))
            for row in site.rows(run, sessions):
                key = ("session", site.name, run, str(row["session"]))
                self._put(key, {**row, "site": site.name, "run": run})

    def _put(self, key: Key, document: Document) -> None:
        known = self._messages.pop(key, None)
        if known is not None and known.document == document:
            self._messages[key] = known
            return
        self._last = next(self._numbers)
        text = json.dumps({"kind": key[0], "document": document})
        self._messages[key] = DocumentChange(self._last, document, text)  # the newest come last

    async def listen(self, after: str, run: tuple[str, str] | None) -> AsyncIterator[tuple[str, list[DocumentChange]]]:
        """Yield changes since *after*, the id of an earlier message: cards of all runs, and sessions of *run*."""
        instance, _, number = after.partition(".")
        seen = int(number) if instance == self.instance and number.isdigit() else 0
        while not self._is_closed:
            messages = self._since(seen, run)
            seen = self._last
            yield f"{self.instance}.{seen}", messages
            await asyncio.sleep(min(len(messages) / CHANGES_A_SECOND, LONGEST_POLL_SECONDS))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ALIVE_SECONDS), self._changed:
                    await self._changed.wait_for(lambda seen=seen: self._is_closed or self._last > seen)  # type: ignore[misc]

    def _since(self, seen: int, run: tuple[str, str] | None) -> list[DocumentChange]:
        found: list[DocumentChange] = []
        cards = 0
        for key, message in reversed(self._messages.items()):
            if message.number <= seen:
                break
            if key[0] == "run":
                cards += 1
                if cards <= BOARD_RUNS:
                    found.append(message)
            elif run is not None and key[1:3] == run:
                found.append(message)
        return found[::-1]
