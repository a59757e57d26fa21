"""Save the conversations of interrupted clients, so that a client can continue its own."""

import asyncio
import contextlib
import os
import re
import shutil
import stat
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import Broken, ShoalError
from shoal.model.events import ClientHeard
from shoal.model.gateway import ModelAnswered
from shoal.model.results import Usage, sum_usage
from shoal.sessions.agent_process import AgentEnd, Ending
from shoal.sessions.worker import Session, WorkerSpec
from shoal.store.paths import StatePaths
from shoal.store.reader import read_session

MAX_BYTES = 64 * 2**20
MAX_ENTRIES = 10_000
MAX_DEPTH = 20
VALID_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""The id of a conversation comes from an agent, and becomes an argument of a command."""
PARTIAL = ".partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationKey:
    """Whose conversation it is; the attempts of a resumed run that continue each other share one."""

    run: str
    step: str
    visit: int
    index: int
    attempt: int

    @classmethod
    def of(cls, run: str, worker: WorkerSpec) -> "ConversationKey":
        """Return the key for the attempt of *worker*."""
        return cls(run=run, step=worker.step, visit=worker.visit, index=worker.index, attempt=worker.attempt)

    def folder(self, paths: StatePaths) -> Path:
        """Return the folder of its conversation."""
        return paths.conversation(self.run, f"{self.step}.{self.visit}.{self.index}.{self.attempt}")


def is_valid_name(name: str | None) -> bool:
    """Return whether *name* is safe to pass to a client as the id of its conversation."""
    return name is not None and VALID_NAME.fullmatch(name) is not None


def keep_conversation(home: Path, names: Sequence[str], folder: Path) -> None:
    """Copy a client's conversation files from *home* to *folder*, replacing what was there.

    Nothing may run in *home* any more. Only regular files are copied, and no link is followed: an agent wrote them
    all. Raises `Broken` if they are too large; if it is killed, the earlier copy stays.
    """
    partial = folder.with_name(f"{folder.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True, mode=0o700)
        copy = _Copy(MAX_BYTES, MAX_ENTRIES)
        for name in names:
            if _is_real(home, name):
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                copy.take(home / name, partial / name, MAX_DEPTH)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def last_heard(paths: StatePaths, session: str) -> ClientHeard | None:
    """Return what the client of a killed session had reported."""
    found: ClientHeard | None = None
    counted: dict[str, float] = {}
    with contextlib.suppress(ShoalError):  # a damaged log costs only that
        for recorded in read_session(paths, session):
            match recorded.event:
                case ClientHeard() as event:
                    found = event
                case ModelAnswered(run=run, usage=usage):
                    counted = sum_usage((counted, usage))
                    found = found or ClientHeard(run=run, session=session, client_session="")
    return replace(found, usage={**found.usage, **counted}) if found and counted else found


async def keep_stopped(session: Session, ended: AgentEnd) -> AgentEnd:
    """Save the conversation of an agent that was stopped, so that a resumed run can continue it."""
    client = session.worker.adapter.client
    if ended.ending is not Ending.STOP or client is None or not is_valid_name(ended.client_session):
        return ended
    folder = ConversationKey.of(session.context.run, session.worker).folder(session.context.paths)
    try:
        await asyncio.to_thread(keep_conversation, session.directory.home, client.conversations, folder)
    except (Broken, OSError) as error:
        return replace(ended, notes=(*ended.notes, f"its conversation was not saved: {error}"))
    return ended


def drop_conversation(folder: Path) -> None:
    """Remove a conversation that nobody will continue."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


async def continue_conversation(session: Session, run_agent: Callable[[Session], Awaitable[AgentEnd]]) -> AgentEnd:
    """Let the agent continue its own conversation or, if that is impossible, start a new one with the same files."""
    folder = ConversationKey.of(session.context.run, session.worker).folder(session.context.paths)
    try:
        await asyncio.to_thread(shutil.copytree, folder, session.directory.home, dirs_exist_ok=True)
    except OSError:
        return await _begin_anew(session, run_agent, "it no longer exists")
    ended = await run_agent(session)
    if ended.failure is None or ended.has_acted or any(ended.usage.values()):
        is_whole = not ended.is_metered  # the gateway counts each session on its own
        usage = leave_out_earlier(ended.usage, ended.counted, session.worker.spent_before) if is_whole else ended.usage
        note = f"continued its own conversation {session.worker.conversation}"
        return replace(ended, usage=usage, notes=(*ended.notes, note))
    return await _begin_anew(session.with_new_log(), run_agent, ended.failure)


def leave_out_earlier(total: Usage, counted: Usage, before: Usage) -> dict[str, float]:
    """Return this session's usage, if the *total* that a client reports at its end covers the whole conversation.

    It does if it covers both what was *counted* now and what was spent *before*. Claude Code includes the latter only
    if it had time to write it down.
    """
    is_whole = all(total.get(name, 0) >= counted.get(name, 0) + value for name, value in before.items())
    return {name: value - (before.get(name, 0) if is_whole else 0) for name, value in total.items()}


async def _begin_anew(session: Session, run_agent: Callable[[Session], Awaitable[AgentEnd]], why: str) -> AgentEnd:
    ended = await run_agent(replace(session, worker=replace(session.worker, conversation=None)))
    note = f"started a new conversation, because the earlier one could not be continued: {why}"
    return replace(ended, notes=(*ended.notes, note))


def _is_real(home: Path, name: str) -> bool:
    """Return whether no part of the path is a link."""
    parts = [home.joinpath(*Path(name).parts[:count]) for count in range(len(Path(name).parts))]
    return all(os.path.lexists(part) and stat.S_ISDIR(part.lstat().st_mode) for part in parts)


@dataclass
class _Copy:
    """Copies files and folders within the limits."""

    bytes_left: int
    entries_left: int

    def take(self, source: Path, target: Path, depth: int) -> None:
        try:
            seen = source.lstat()
        except OSError:
            return
        self.entries_left -= 1
        if stat.S_ISDIR(seen.st_mode) and depth:
            target.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(PermissionError), os.scandir(source) as entries:
                for entry in entries:
                    self.take(source / entry.name, target / entry.name, depth - 1)
        elif stat.S_ISREG(seen.st_mode):
            self._take_file(source, target, seen.st_size)

    def _take_file(self, source: Path, target: Path, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0 or self.entries_left < 0:
            raise Broken(f"it has more than {MAX_BYTES // 2**20} MiB or {MAX_ENTRIES} files")
        with contextlib.suppress(PermissionError):
            shutil.copyfile(source, target, follow_symlinks=False)
