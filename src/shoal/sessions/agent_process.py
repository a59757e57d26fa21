"""Run an agent's process in its sandbox, read its output, watch its limits, and decide how it ended."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from shoal.adapters.events import LONGEST, MAX_NAME_CHARS, number
from shoal.adapters.events import words as text_of
from shoal.adapters.kind import Reader
from shoal.errors import first_error
from shoal.limits.kind import LimitGroup
from shoal.model.activity import Act, Activity
from shoal.model.budget import BUDGET
from shoal.model.events import AgentEnded, AgentStarted, ClientHeard
from shoal.model.permissions import Decision
from shoal.proc import Exit
from shoal.sessions.client_output import ClientOutput
from shoal.sessions.clocks import WorkClock
from shoal.sessions.credentials import CopiedLogin, furnish, return_logins
from shoal.sessions.limit_watch import SessionBounds, wait_for_breach
from shoal.sessions.model_access import ModelAccess, open_model
from shoal.sessions.output_log import OutputLog
from shoal.sessions.policy import agent_command, network_of, note_decision, note_grants, session_bounds
from shoal.sessions.sandboxed import SandboxedProcess, open_sandboxed
from shoal.sessions.worker import Session, WorkerSpec


class Ending(Enum):
    """Why the agent's process ended."""

    BY_ITSELF = "by itself"
    TIME = "time"
    STOP = "stop"
    LIMIT = "limit"
    DONE = "done"
    """It reported its own end, did not exit, and was ended."""
    STALL = "stall"
    REFUSED = "refused"
    """It was refused its next request to a model: its budget is reached, or a replay diverged."""
    NO_GATEWAY = "no gateway"
    """The process that asked its model has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnd:
    """How an agent ended, and its output."""

    ending: Ending
    exit: Exit
    log: OutputLog
    limit: str | None = None
    failure: str | None = None
    """Why it failed, if there is a better explanation than its exit code."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """Its model usage, under the names of a report."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """The resources it used, under the names of a report."""
    client_session: str | None = None
    """The client's own id of the conversation."""
    is_metered: bool = False
    """Whether *usage* was counted by the gateway."""
    is_judged: bool = False
    """Whether *failure* is the whole verdict, whatever the exit code."""
    counted: Mapping[str, float] = field(default_factory=dict)
    """The usage that a client reported before it reported its end."""
    has_acted: bool = False
    """Whether a client used a tool."""
    notes: tuple[str, ...] = ()
    """Remarks for people about how it ran."""


@dataclass(frozen=True, slots=True)
class WatchResult:
    """Why the agent's process ended, its exit, and which limit it exceeded."""

    ending: Ending
    exit: Exit
    limit: str | None = None


async def watch_process(
    sandboxed: SandboxedProcess,
    bounds: SessionBounds,
    seconds: float | None,
    stop: asyncio.Event,
    grace: float,
    endings: Mapping[Ending, Awaitable[object]] = MappingProxyType({}),
) -> WatchResult:
    """Wait until the agent ends, its time is over, *stop* is set, a limit is exceeded, or one of *endings* is done.

    Nothing else may await the *endings*: they are cancelled here.
    """
    try:
        async with asyncio.TaskGroup() as group:
            with bounds.floor.watching(bounds.group, bounds.session_dir.parent) as tenant:
                done = group.create_task(sandboxed.wait())
                stopped = group.create_task(stop.wait())
                short = group.create_task(tenant.ended.wait())
                shown = {ending: group.create_task(_wait_for_signal(sign)) for ending, sign in endings.items()}
                every: list[asyncio.Task[Any]] = [done, stopped, short, *shown.values()]
                began, worked_from = time.monotonic(), bounds.clock.now()
                # Most short agents end before their first poll is due, and are never polled.
                first = bounds.pace.seconds if seconds is None else min(seconds, bounds.pace.seconds)
                early, _ = await asyncio.wait(every, timeout=first, return_when=asyncio.FIRST_COMPLETED)
                over = None
                left = None if seconds is None else seconds - (bounds.clock.now() - worked_from)
                if not early and (left is None or left > 0):
                    every.append(over := group.create_task(wait_for_breach(bounds, began, tenant)))
                    late = () if left is None else (group.create_task(bounds.clock.sleep(left)),)
                    every += late
                    await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
                bounds.group.thaw()  # a frozen process neither sees the signal nor dies
                sign = next((ending for ending, task in shown.items() if task.done()), None)
                if tenant.ended.is_set():
                    done.cancel()
                    result = WatchResult(Ending.LIMIT, await sandboxed.end(0), "disk")
                else:
                    result = await _end(sandboxed, done, stopped, over, grace, sign)
                for task in every:
                    task.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return result


async def _wait_for_signal(sign: Awaitable[object]) -> None:
    await sign


async def _end(
    sandboxed: SandboxedProcess,
    done: asyncio.Task[Exit],
    stopped: asyncio.Task[bool],
    over: asyncio.Task[str] | None,
    grace: float,
    sign: Ending | None,
) -> WatchResult:
    if not (stopped.done() or sign or (over is not None and over.done())):  # after a suspend, it may have ended in time
        await asyncio.wait((done,), timeout=SETTLE_SECONDS)
    if done.done():
        return WatchResult(Ending.BY_ITSELF, await done)
    done.cancel()  # an agent that was ended before its sandbox was up does not mean a broken sandbox
    if over is not None and over.done():  # it gets no grace: it would only use more
        return WatchResult(Ending.LIMIT, await sandboxed.end(0), await over)
    ending = Ending.STOP if stopped.done() else sign or Ending.TIME
    return WatchResult(ending, await sandboxed.end(grace))


SETTLE_SECONDS = 0.1
BUSY = 0.1
"""A share of one processor."""
MOVING_BYTES = 100_000.0
"""Bytes read and written per second."""
LOOKS = 10
LONGEST_LOOK = 5.0
MOST_PIDS = 256


async def wait_for_stall(
    hearing: ClientOutput, group: LimitGroup, seconds: float, clock: WorkClock | None = None
) -> None:
    """Return once the client has shown no activity for *seconds*.

    A wait that it reported is not a stall, and neither is a tool call: the timeout limits that.
    """
    watch = _StallWatch(hearing, group)
    pause = min(LONGEST_LOOK, seconds / LOOKS)
    while True:
        await asyncio.sleep(pause)
        if clock is not None and clock.is_paused:
            watch.alive_at = time.monotonic()
        if watch.is_dead_since(seconds):
            return


@dataclass
class _StallWatch:
    hearing: ClientOutput
    group: LimitGroup
    alive_at: float = field(default_factory=time.monotonic)
    _looked_at: float = field(default_factory=time.monotonic)
    _spent: float = 0.0
    _moved: int = 0

    def is_dead_since(self, seconds: float) -> bool:
        now = time.monotonic()
        if self._is_working(now) or self.hearing.is_using_a_tool or now < self.hearing.waits_until:
            self.alive_at = now
        self.alive_at = max(self.alive_at, self.hearing.heard_at)
        return now - self.alive_at >= seconds

    def _is_working(self, now: float) -> bool:
        spent, moved = self.group.usage().cpu_seconds or 0.0, sum_io_bytes(self.group.pids())
        passed, used, more = now - self._looked_at, spent - self._spent, moved - self._moved
        self._looked_at, self._spent, self._moved = now, spent, moved
        return used > BUSY * passed or more > MOVING_BYTES * passed


def sum_io_bytes(pids: tuple[int, ...]) -> int:
    """Sum up what processes have read and written so far, as far as they can be inspected."""
    moved = 0
    for pid in pids[:MOST_PIDS]:
        with contextlib.suppress(OSError, ValueError):
            counted = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            moved += int(counted.get("rchar", 0)) + int(counted.get("wchar", 0))
    return moved


GATEWAY_LOST = "the gateway to its model ended unexpectedly; run it again, or see `retry`"
LINGER_SECONDS = 2.0
"""How long a client may take to exit after it reported its end; some write files or wait for slow hosts."""
STALL_SECONDS = 900.0


class InteractiveReader(Reader, Protocol):
    """A reader that also writes to the agent, and therefore watches it in its own way."""

    async def watch(
        self,
        sandboxed: SandboxedProcess,
        bounds: SessionBounds,
        seconds: float | None,
        stop: asyncio.Event,
        grace: float,
        endings: Mapping[Ending, Awaitable[object]],
    ) -> WatchResult:
        """Do what `watch_process` does; it adds the agent's own end to *endings* itself."""


async def run_process(session: Session, talk: InteractiveReader | None = None) -> AgentEnd:
    """Run the agent's own process to its end, or until something else ends it; *talk* speaks with it meanwhile."""
    async with open_model(session, network_of(session.worker.task, session.worker.adapter)) as model:
        if model.why_stopped is not None:  # the agents before it spent all
            nothing = AgentEnd(ending=Ending.LIMIT, exit=Exit(code=None, signal=None), log=session.log)
            return replace(nothing, limit=BUDGET, failure=model.why_stopped)
        ended = await _run_with_model(session, talk, model)
    # a program may have ended before its refusal was heard of
    is_error = ended.ending is Ending.BY_ITSELF and ended.exit.code != 0 and not ended.is_judged
    if model.why_stopped and (ended.failure or is_error or ended.ending in (Ending.REFUSED, Ending.STALL)):
        ended = replace(ended, failure=model.why_stopped)
        ended = replace(ended, ending=Ending.LIMIT, limit=BUDGET) if model.is_over_budget else ended
    usage, notes = model.merge_usage(ended.usage)
    return replace(ended, usage=usage, notes=(*ended.notes, *notes), is_metered=model.answers > 0)


async def _run_with_model(session: Session, talk: InteractiveReader | None, model: ModelAccess) -> AgentEnd:
    context, worker = session.context, session.worker
    command, policy = agent_command(session, model=model)
    if session.stop.is_set():  # it was stopped while it waited for its turn
        return AgentEnd(ending=Ending.STOP, exit=Exit(code=None, signal=None), log=session.log)
    note_grants(session)
    logins = _write_client_files(session, model)
    reader = talk or worker.adapter.reader()
    output = None if reader is None else _client_output(session, reader)
    model.log = output or session.log
    meter = session.control.meter
    with context.enforcer.group(session.id, worker.limits) as group, meter.hold(group):
        bounds = session_bounds(session, group)

        def on_start(pid: int) -> None:
            context.ledger.note(AgentStarted(run=context.run, session=session.id, pid=pid))

        with contextlib.closing(output or session.log) as sink:
            async with open_sandboxed(
                context.sandbox,
                command,
                policy,
                sink=sink.feed,
                join=group.wrap,
                begun=on_start,
                gone=group.end_rest,
                guard=context.guard,
                listen=model.listen,
            ) as sandboxed:
                endings = _list_endings(worker, output, group, bounds.clock, is_talk=talk is not None) if output else {}
                if model.lost is not None:
                    endings |= {Ending.NO_GATEWAY: model.lost.wait(), Ending.REFUSED: model.refused.wait()}
                watch = talk.watch if talk else watch_process
                with session.control.hold_group(group):
                    seen = await watch(sandboxed, bounds, worker.seconds, session.stop, context.grace, endings)
    meter.finish(bounds.record)
    await _return_logins(session, logins)
    exit_ = seen.exit
    context.ledger.note(AgentEnded(run=context.run, session=session.id, exit_code=exit_.code, signal=exit_.signal))
    limit = seen.limit or bounds.find_reached_limit(failed=exit_.code != 0 and seen.ending is not Ending.DONE)
    ending = Ending.LIMIT if limit and seen.ending is Ending.BY_ITSELF else seen.ending
    ended = AgentEnd(ending=ending, exit=exit_, log=session.log, limit=limit, resources=meter.resources)
    if seen.ending is Ending.NO_GATEWAY:
        ended = replace(ended, failure=GATEWAY_LOST)
    if reader is None or output is None:
        return ended
    ended = _apply_client_verdict(worker, ended, reader, seen)
    return replace(ended, has_acted=output.has_acted, counted=output.counted)


def _client_output(session: Session, reader: Reader) -> ClientOutput:
    client = session.worker.adapter.client
    heartbeat = client.heartbeat if client else None
    return ClientOutput(
        session.log,
        reader,
        lambda activity: _record_denial(session, activity),
        heartbeat,
        heard=lambda: _note_heard(session, reader),
    )


def _note_heard(session: Session, reader: Reader) -> None:
    """Record what the client reports as it comes: a killed client reports nothing at its end."""
    usage, name = _read_usage(reader)
    heard = ClientHeard(
        run=session.context.run,
        session=session.id,
        client_session=session.context.mask.text(name or "")[:MAX_NAME_CHARS],
        usage=usage,
    )
    session.context.ledger.note(heard)


def _write_client_files(session: Session, model: ModelAccess) -> dict[str, CopiedLogin]:
    """Write a client's files and logins into its private home, and return the logins."""
    adapter = session.worker.adapter
    if adapter.client is None:
        return {}
    paths = replace(session.paths, gateway=model.access, talk=model.talk)
    files = adapter.invocation(session.task, paths).home
    return furnish(session.directory.home, files, adapter, session.context.environ, model.access)


async def _return_logins(session: Session, logins: Mapping[str, CopiedLogin]) -> None:
    """Copy renewed logins back if the user asked for that; otherwise note them in the session's log."""
    is_asked = session.worker.task.agent.refresh_login
    for trouble in await return_logins(session.context, session.directory, logins, is_asked=is_asked):
        session.log.act(Activity(act=Act.TROUBLE, text=trouble))


def _list_endings(
    worker: WorkerSpec, output: ClientOutput, group: LimitGroup, clock: WorkClock, *, is_talk: bool
) -> dict[Ending, Awaitable[object]]:
    """Return what else ends a client: it reported its end but does not exit, or it shows no activity."""
    if worker.adapter.client is None:  # a script may wait for a message as long as it likes
        return {}
    endings: dict[Ending, Awaitable[object]] = {Ending.STALL: wait_for_stall(output, group, _patience(worker), clock)}
    return endings if is_talk else {Ending.DONE: _wait_for_exit(output), **endings}


async def _wait_for_exit(output: ClientOutput) -> None:
    while True:
        await output.done.wait()
        await asyncio.sleep(LINGER_SECONDS)
        if output.done.is_set() and time.monotonic() - output.heard_at >= LINGER_SECONDS:
            return


def _patience(worker: WorkerSpec) -> float:
    return worker.task.stall_timeout or STALL_SECONDS


def _apply_client_verdict(worker: WorkerSpec, ended: AgentEnd, reader: Reader, seen: WatchResult) -> AgentEnd:
    """Use what the client reported, not its exit code."""
    failure = None
    if seen.ending in (Ending.BY_ITSELF, Ending.DONE):
        failure = _verdict(reader, seen.exit.code, ended.log.errors)
    if seen.ending is Ending.BY_ITSELF and seen.exit.signal is not None and not reader.is_done:
        failure = failure or f"it was killed by signal {seen.exit.signal}"
    if seen.ending is Ending.STALL:
        failure = f"it hung: no output and no activity for {_patience(worker):g} s"
    if seen.ending is Ending.DONE and failure is None:  # it was only slow to exit
        ended = replace(ended, exit=Exit(code=0, signal=None))
    usage, session = _read_usage(reader)
    failure = failure or ended.failure
    return replace(ended, failure=failure, usage=usage, client_session=session, is_judged=True)


def _verdict(reader: Reader, exit_code: int | None, errors: str) -> str | None:
    """Return the reader's verdict; a reader that fails on the agent's output does not count as success."""
    try:
        return reader.verdict(exit_code, errors)
    except Exception as error:
        return f"its output cannot be parsed: {type(error).__name__}: {error}"[:LONGEST]


def _read_usage(reader: Reader) -> tuple[dict[str, float], str | None]:
    """Return its usage and the id of its conversation, as far as they are valid."""
    try:
        usage = {name: number(value) for name, value in reader.usage.items()}
        return usage, None if reader.session is None else text_of(reader.session)
    except Exception:
        return {}, None


def _record_denial(session: Session, activity: Activity) -> None:
    what = f"{activity.tool}: {activity.text}" if activity.text else activity.tool
    note_decision(session, Decision(False, f"the client {session.worker.adapter.name}", what))
