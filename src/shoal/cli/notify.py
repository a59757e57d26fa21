"""Notifications of a run: a subscriber to its events that rings, shows or calls what the user asked for.

What agents wrote is put on one line, escaped and cut; programs get it as arguments, variables and stdin, never as text
of a shell. What goes wrong is printed, and the run goes on.
"""

import asyncio
import contextlib
import html
import importlib.util
import json
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.cli import output
from shoal.cli.output import flat
from shoal.cli.render.columns import beginning
from shoal.cli.render.report import summary
from shoal.errors import BadInput, ShoalError
from shoal.model.command import Command
from shoal.model.events import GateOpened, OverlapSeen, Recorded, RunEnded
from shoal.model.merge import MergeEnded, MergeStatus
from shoal.model.plan import CONFLICT, END, NEEDS_PERSON, Notify
from shoal.proc import run
from shoal.store.fold import Fold, report

SEND_SECONDS = 15.0
DRAIN_SECONDS = 20.0
"""How long the end of a run may wait for its last notifications."""
MOST_WAITING = 100
MOST_CHARS = 300
NAMED = 5
APPRISE = "import sys; from apprise.cli import main; sys.exit(main())"
WAYS = ("bell", "desktop", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What a person is to hear: facts, and a sentence that is safe to show."""

    event: str
    run: str
    status: str
    message: str
    step: str = ""

    def as_fields(self, folder: Path) -> dict[str, str]:
        """Return the facts as they are handed to programs."""
        return {
            "event": self.event,
            "run": self.run,
            "status": self.status,
            "step": self.step,
            "message": self.message,
            "repository": str(folder),
        }


def override_notify(notify: Notify, ways: Sequence[str], written: str | None) -> Notify:
    """Return what the command line asks for, instead of the file's; nothing asked keeps that."""
    command = _split_command(written)
    if unknown := [way for way in ways if way not in WAYS]:
        raise BadInput(f"--notify: no way named {unknown[0]!r:.40}; known: {', '.join(WAYS)}")
    if not ways and not command:
        return notify
    if "none" in ways:
        return Notify(command=command)
    return replace(
        notify,
        has_bell="bell" in ways or (notify.has_bell and not ways),
        has_desktop="desktop" in ways or (notify.has_desktop and not ways),
        command=command or notify.command,
    )


def _split_command(written: str | None) -> tuple[str, ...]:
    """Split the program of `--notify-command` into words."""
    try:
        words = tuple(shlex.split(written or ""))
    except ValueError as error:
        raise BadInput(f"--notify-command cannot be split into words: {error}") from None
    if written is not None and not words:
        raise BadInput("--notify-command is empty; give a program and its arguments")
    return words


class Notifier:
    """Turns events of one run into notices, and sends them beside the run."""

    def __init__(self, notify: Notify, folder: Path, environ: Mapping[str, str], *, approves_all: bool = False) -> None:
        self._notify = notify
        self._folder = folder
        self._environ = environ
        self._approves_all = approves_all
        self._fold = Fold()
        self._has_conflict = False
        self._queue: asyncio.Queue[Notice | None] = asyncio.Queue(MOST_WAITING)

    def on_event(self, recorded: Recorded) -> None:
        """Take one event; never wait."""
        if not self._notify.is_asked:
            return
        self._fold.take(recorded)
        for notice in self._describe(recorded):
            if notice.event in self._notify.on:
                with contextlib.suppress(asyncio.QueueFull):
                    self._queue.put_nowait(notice)

    def _describe(self, recorded: Recorded) -> Iterator[Notice]:
        match recorded.event:
            case GateOpened(run=name, step=step, message=message) if not self._approves_all:
                yield _notice(NEEDS_PERSON, name, "waiting", f"{name}: {step} asks: {message}", step=step)
            case OverlapSeen(run=name, overlap=overlap) if overlap.conflicts and not overlap.step:
                if not self._has_conflict:  # one for a run: pairs may be many
                    self._has_conflict = True
                    paths = ", ".join(overlap.paths[:NAMED])
                    yield _notice(
                        CONFLICT, name, "running", f"{name}: {overlap.one} and {overlap.other} conflict: {paths}"
                    )
            case MergeEnded(run=name, report=merge) if merge.needs_a_person:
                stuck = [result.session for result in merge.results if result.status is MergeStatus.CONFLICTS]
                if stuck:
                    yield _notice(CONFLICT, name, "merged", f"{name}: the merge conflicts: {', '.join(stuck[:NAMED])}")
                else:
                    yield _notice(NEEDS_PERSON, name, "merged", f"{name}: the merge needs you")
            case RunEnded(run=name, status=status):
                ended = report(self._fold.state().runs[name])
                yield _notice(END, name, status.value, f"{name} {status.value}: {summary(ended)}")

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Send notices for as long as the body runs, and the last ones for a bounded time after it."""
        if not self._notify.is_asked:
            yield
            return
        error: BaseException | None = None
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send_all())
            try:
                yield
            except BaseException as raised:  # carried past the group, which would wrap it
                error = raised
            with contextlib.suppress(asyncio.QueueFull):
                self._queue.put_nowait(None)
            await asyncio.wait({sending}, timeout=DRAIN_SECONDS)
            sending.cancel()
        if error is not None:
            raise error

    async def _send_all(self) -> None:
        ways = dict(self._ways())
        while (notice := await self._queue.get()) is not None:
            for name, send in ways.items():
                try:
                    await send(notice)
                except TimeoutError:
                    _complain(f"{name} took longer than {SEND_SECONDS:g} s")
                except (ShoalError, OSError) as failed:
                    _complain(f"{name} failed: {failed}")

    def _ways(self) -> Iterator[tuple[str, Callable[[Notice], Awaitable[None]]]]:
        """Yield how to notify; what this host does not have is named once."""
        if self._notify.has_bell:
            yield "bell", self._ring
        if self._notify.has_desktop:
            if shutil.which("notify-send", path=self._environ.get("PATH")):
                yield "desktop", self._show
            else:
                _complain("notify-send is not installed, so there is none on the desktop")
        if self._notify.command:
            yield self._notify.command[0], self._call
        if self._notify.apprise:
            if importlib.util.find_spec("apprise"):
                yield "apprise", self._publish
            else:
                _complain("apprise is not installed; run: pip install 'shoal[notify]'")

    async def _ring(self, notice: Notice) -> None:
        """Ring the terminal's bell, without ever waiting for the terminal."""
        for stream in (sys.stdout, sys.stderr):
            if output.is_terminal(stream):
                terminal = os.open(os.ttyname(stream.fileno()), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
                try:
                    os.write(terminal, b"\a")
                finally:
                    os.close(terminal)
                return

    async def _show(self, notice: Notice) -> None:
        # Desktops take the text for markup.
        title, text = f"shoal: {notice.event.replace('_', ' ')}", html.escape(notice.message)
        await self._start(("notify-send", "--app-name=shoal", "--", title, text))

    async def _call(self, notice: Notice) -> None:
        facts = notice.as_fields(self._folder)
        variables = {f"SHOAL_{name.upper()}": value for name, value in facts.items()}
        await self._start(self._notify.command, json.dumps(facts).encode(), variables)

    async def _publish(self, notice: Notice) -> None:
        addresses = [self._environ.get(name, "") for name in self._notify.apprise]
        if missing := [name for name, address in zip(self._notify.apprise, addresses, strict=True) if not address]:
            raise BadInput(f"${missing[0]} is not set")
        # By its variable, not as arguments: an address is a secret, and everybody sees the arguments of a process.
        words = (sys.executable, "-P", "-c", APPRISE, "--title", f"shoal: {notice.event}", "--body", notice.message)
        await self._start(words, variables={"APPRISE_URLS": " ".join(addresses)})

    async def _start(
        self, words: tuple[str, ...], stdin: bytes = b"", variables: Mapping[str, str] | None = None
    ) -> None:
        env = {**self._environ, **(variables or {})}
        done = await run(Command(argv=words, cwd=self._folder, env=env, stdin=stdin), timeout=SEND_SECONDS)
        if done.exit.code != 0:
            output = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
            raise BadInput(
                f"it exited with {done.exit.code}: {output.splitlines()[-1] if output else 'it printed nothing'}"
            )


def _notice(event: str, run_name: str, status: str, message: str, *, step: str = "") -> Notice:
    return Notice(event=event, run=run_name, status=status, message=beginning(flat(message), MOST_CHARS), step=step)


def _complain(text: str) -> None:
    output.print_err(f"shoal: notification: {beginning(flat(text), MOST_CHARS)}")
