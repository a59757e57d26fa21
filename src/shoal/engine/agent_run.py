"""An agent's process behind its wall: started, heard, watched and judged."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Protocol

from shoal.adapters.blame import LONGEST
from shoal.adapters.events import number
from shoal.adapters.events import words as text_of
from shoal.adapters.kind import Reader
from shoal.engine.agent_box import agent_box, bounded, note_decision, note_grants, place_of
from shoal.engine.behind import Box, boxed
from shoal.engine.bounds import Bounds
from shoal.engine.credentials import Laid, furnish
from shoal.engine.hearing import Hearing
from shoal.engine.job import Job
from shoal.engine.lease import Lease
from shoal.engine.login import taken_back
from shoal.engine.site import Site
from shoal.engine.stall import stalled
from shoal.engine.watch import Ended, Ending, Watched, watched
from shoal.engine.words import Words
from shoal.limits.kind import Group
from shoal.model.activity import Act, Activity
from shoal.model.events import AgentEnded, AgentStarted
from shoal.model.permissions import Decision
from shoal.proc import Exit
from shoal.workspaces.kind import Workspace

LINGER_SECONDS = 2.0
"""For who has told its own end: time to write its last files; some wait long for hosts that they only report to."""
STALL_SECONDS = 900.0


class Talk(Reader, Protocol):
    """A reader who also speaks with the agent, and so watches over it in a way of its own."""

    async def watched(
        self,
        box: Box,
        bounds: Bounds,
        seconds: float | None,
        stop: asyncio.Event,
        grace: float,
        signs: Mapping[Ending, Awaitable[object]],
    ) -> Watched:
        """Do as `watched` does; that the agent is done is a sign that it adds itself."""


async def agent_run(
    site: Site,
    job: Job,
    workspace: Workspace,
    lease: Lease,
    words: Words,
    stop: asyncio.Event,
    talk: Talk | None = None,
) -> Ended:
    """Run the agent's own process to its end, or until something else ends it; *talk* is who speaks with it."""
    command, policy = agent_box(site, job, workspace, lease)
    if stop.is_set():  # it was stopped while it waited for its turn
        return Ended(ending=Ending.STOP, exit=Exit(code=None, signal=None), words=words)
    note_grants(site, job)
    logins = _furnished(site, job, workspace, lease)
    reader = talk or job.adapter.reader()
    hearing = None if reader is None else _hearing(site, job, words, reader)
    with site.enforcer.group(job.session, job.limits) as group:
        bounds = bounded(site, job, workspace, lease, group)

        def begun(pid: int) -> None:
            site.ledger.note(AgentStarted(run=site.run, session=job.session, pid=pid))

        with contextlib.closing(hearing or words) as sink:
            async with boxed(
                site.sandbox, command, policy, sink=sink.feed, join=group.wrap, begun=begun, gone=group.end_rest
            ) as box:
                signs = _signs(job, hearing, group, is_talk=talk is not None) if hearing else {}
                watch = talk.watched if talk else watched
                seen = await watch(box, bounds, job.seconds, stop, site.grace, signs)
    exit_ = seen.exit
    await _logins_back(site, job, lease, words, logins)
    site.ledger.note(AgentEnded(run=site.run, session=job.session, exit_code=exit_.code, signal=exit_.signal))
    limit = seen.limit or bounds.met(failed=exit_.code != 0 and seen.ending is not Ending.DONE)
    ending = Ending.LIMIT if limit and seen.ending is Ending.BY_ITSELF else seen.ending
    ended = Ended(ending=ending, exit=exit_, words=words, limit=limit)
    return ended if reader is None else _judged(job, ended, reader, seen)


def _hearing(site: Site, job: Job, words: Words, reader: Reader) -> Hearing:
    hum = job.adapter.client.hum if job.adapter.client else None
    return Hearing(words, reader, lambda one: _denied(site, job, one), hum)


def _furnished(site: Site, job: Job, workspace: Workspace, lease: Lease) -> dict[str, Laid]:
    """Lay a client's files and logins into its private home, and give the logins."""
    if job.adapter.client is None:
        return {}
    files = job.adapter.invocation(job.task, place_of(workspace, lease)).home
    return furnish(lease.home, files, job.adapter, site.environ)


async def _logins_back(site: Site, job: Job, lease: Lease, words: Words, logins: Mapping[str, Laid]) -> None:
    """Take renewed logins back where the user asked for that; else say so in the session's log."""
    for told in await taken_back(site, lease, logins, is_asked=job.task.agent.refresh_login):
        words.act(Activity(act=Act.TROUBLE, text=told))


def _signs(job: Job, hearing: Hearing, group: Group, *, is_talk: bool) -> dict[Ending, Awaitable[object]]:
    """Say what else ends a client: it has told its own end and lingers, or it shows no sign of life."""
    signs: dict[Ending, Awaitable[object]] = {Ending.STALL: stalled(hearing, group, _patience(job))}
    return signs if is_talk else {Ending.DONE: _lingered(hearing), **signs}


async def _lingered(hearing: Hearing) -> None:
    while True:
        await hearing.done.wait()
        await asyncio.sleep(LINGER_SECONDS)
        if hearing.done.is_set() and time.monotonic() - hearing.heard_at >= LINGER_SECONDS:
            return


def _patience(job: Job) -> float:
    return job.task.stall_timeout or STALL_SECONDS


def _judged(job: Job, ended: Ended, reader: Reader, seen: Watched) -> Ended:
    """Believe what the client told of itself, not its exit code."""
    failure = None
    if seen.ending in (Ending.BY_ITSELF, Ending.DONE):
        failure = _verdict(reader, seen.exit.code, ended.words.errors)
    if seen.ending is Ending.BY_ITSELF and seen.exit.signal is not None and not reader.is_done:
        failure = failure or f"it was ended by signal {seen.exit.signal}"
    if seen.ending is Ending.STALL:
        failure = f"it hung: nothing said and nothing done for {_patience(job):g} s"
    if seen.ending is Ending.DONE and failure is None:  # it was only slow to leave
        ended = replace(ended, exit=Exit(code=0, signal=None))
    usage, session = _told(reader)
    return replace(ended, failure=failure, usage=usage, client_session=session, is_judged=True)


def _verdict(reader: Reader, exit_code: int | None, errors: str) -> str | None:
    """Ask for the verdict; a reader that cannot give one, on what an agent made it read, has not found it good."""
    try:
        return reader.verdict(exit_code, errors)
    except Exception as error:
        return f"what it said cannot be judged: {type(error).__name__}: {error}"[:LONGEST]


def _told(reader: Reader) -> tuple[dict[str, float], str | None]:
    """Give what it spent and how it calls its conversation, as far as that is what it should be."""
    try:
        usage = {name: number(value) for name, value in reader.usage.items()}
        return usage, None if reader.session is None else text_of(reader.session)
    except Exception:
        return {}, None


def _denied(site: Site, job: Job, activity: Activity) -> None:
    what = f"{activity.tool}: {activity.text}" if activity.text else activity.tool
    note_decision(site, job, Decision(False, f"the client {job.adapter.name}", what))
