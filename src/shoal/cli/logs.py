"""`shoal logs`: what an agent printed."""

import asyncio
import heapq
import re
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Repo, Session
from shoal.cli.output import Paint, escape
from shoal.cli.render.columns import beginning, count, seconds, tone
from shoal.cli.render.report import why
from shoal.cli.repository import RepositoryState, find_place, run_of
from shoal.model.activity import Act
from shoal.model.events import (
    AgentActed,
    AgentEnded,
    AgentMessaged,
    AgentStarted,
    Event,
    Output,
    PermissionDecided,
    Recorded,
    SessionEnded,
)
from shoal.model.results import WorkerResult
from shoal.model.talk import ChildSpawned, MessageSent, TalkRefused
from shoal.store.documents import event_line
from shoal.store.following import has_session_log, is_owned, pause
from shoal.store.lookup import find_session
from shoal.store.paths import StatePaths
from shoal.store.progress import RunTail
from shoal.store.reader import read_events, read_session, store_at
from shoal.store.run_state import SessionState

# Removed rather than escaped: many programs print colours, and a line of escapes is unreadable.
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# How our own lines begin, also with other kinds of dashes and blanks; an agent's lines must not look like them.
OURS = re.compile(r"\s*(?:[-\u2010-\u2015\u2212\ufe58\ufe63\uff0d]{2}\s|(?:out|err|setup|shoal):)", re.IGNORECASE)
PROMPT = 80 - len("-- prompt:  --")
ACTED = 160
RESULT_CHARS = 2_000


def log_line(event: Event, paint: Paint) -> str | None:
    """Format output lines escaped, and other events between dashes, so that neither looks like the other."""
    match event:
        case Output(text=text, dropped=0, stream=stream):
            return _format_text(text, stream, paint)
        case Output(text=text, dropped=dropped, stream=stream):
            missing = paint(f"-- {count(dropped, 'byte')} of output not kept --", "warn")
            return f"{missing}\n{_format_text(text, stream, paint)}" if text else missing
        case AgentStarted(session=session, pid=pid):
            return paint(f"-- {escape(session)} started, pid {pid} --", "dim")
        case AgentEnded(exit_code=code, signal=number):
            return paint(f"-- ended by signal {number} --" if number else f"-- exited with {code} --", "dim")
        case AgentMessaged():
            return _message_line(event, paint)
        case MessageSent(recipient=recipient, text=text):
            return _paint_result(f"-- to {escape(recipient)}", text, lambda part: paint(part, "mark"))
        case ChildSpawned(child=child, task=task):
            return paint(f"-- starts {escape(child)}: {beginning(task, PROMPT)} --", "mark")
        case TalkRefused(tool=tool, why=why, times=times):
            often = f" ({times} times)" if times > 1 else ""
            return paint(f"-- refused {escape(tool) or 'a request'}{often}: {escape(why)} --", "warn")
        case AgentActed():
            return _activity_line(event, paint)
        case PermissionDecided(allowed=False, subject=subject, rule=rule):
            return paint(f"-- denied: {escape(subject)} ({escape(rule)}) --", "warn")
        case _:
            return None


def _activity_line(event: AgentActed, paint: Paint) -> str | None:
    """Format what a client did; of a tool's result the beginning, with its lines."""
    text, tool = beginning(" ".join(event.text.split()), ACTED), f"tool {escape(event.tool)}".rstrip()
    match event.act:
        case Act.TOOL:
            return paint(f"-- {tool}{f': {text}' if text else ''} --", "dim")
        case Act.RESULT if text or not event.ok:
            did, style = ("returned", "dim") if event.ok else ("failed", "warn")
            return _paint_result(f"-- {tool} {did}", event.text.strip(), lambda line: paint(line, style))
        case Act.RETRY:
            return paint(f"-- model request failed: {text}; retrying in {seconds(event.seconds)} --", "warn")
        case Act.TROUBLE:
            return paint(f"-- error: {text} --", "warn")
    return None


def _paint_result(head: str, text: str, paint: Callable[[str], str]) -> str:
    if "\n" not in text:
        return paint(f"{head}: {beginning(text, ACTED)} --")
    part = text if len(text) <= RESULT_CHARS else f"{text[: RESULT_CHARS - 1]}…"
    lines = escape(COLOUR.sub("", part), keep="\t\n").split("\n")
    return "\n".join(paint(line) for line in (f"{head} --", *(f"  | {line}" for line in lines)))


def _message_line(event: AgentMessaged, paint: Paint) -> str:
    lines = escape(event.text, keep="\t\n").split("\n")
    head = f"-- message of {escape(event.by)}{'' if event.is_delivered else ', which the agent did not get'} --"
    return "\n".join([paint(head, "mark" if event.is_delivered else "warn"), *(f"  | {line}" for line in lines)])


def prompt_line(prompt: str, paint: Paint) -> str:
    """Format the prompt of the agent."""
    return paint(f"-- prompt: {beginning(prompt, PROMPT)} --", "dim")


def missing_log_line(session: str) -> str:
    """Say that the log has been removed."""
    return f"shoal: the log of {escape(session)} no longer exists; `shoal clean --older-than` removes old logs"


def end_line(result: WorkerResult, paint: Paint) -> str:
    """Say how the session ended."""
    status = paint(result.status.value, tone(result.status))
    branch = f", {escape(result.branch)}" if result.branch else ""
    reason = f": {error}" if (error := why(result)) else ""
    return f"-- {status} in {seconds(result.duration_seconds)}{branch}{reason} --"


def _format_text(text: str, stream: str, paint: Paint) -> str:
    lines = escape(COLOUR.sub("", text), keep="\t\n").split("\n")
    if stream == "setup":
        return "\n".join(f"{paint('setup:', 'dim')} {line}" for line in lines)
    if stream == "stderr":
        return "\n".join(f"{paint('err:', 'bad')} {line}" for line in lines)
    return "\n".join(f"{paint('out:', 'dim')} {line}" if OURS.match(line) else line for line in lines)


POLL_SECONDS = 0.2


def command(
    session: Session = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the session ends.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print each event as one JSON object per line.")] = False,
    repo: Repo = HERE,
) -> int:
    """Show what an agent printed; by default, the latest. With a run's name, all its agents, prefixed."""
    place = asyncio.run(find_place(repo))
    state = place.state()
    if session is not None and session in state.runs:
        return _print_run(place, session, is_following=follow, json=json)
    chosen = find_session(state, session)
    watch = Watch(place, run_of(state, chosen).run, chosen)
    paint = output.paint()
    if not json and chosen.prompt:
        output.print_out(prompt_line(chosen.prompt, paint))
    if chosen.result is not None and not has_session_log(place.paths, chosen.session):
        output.print_err(missing_log_line(chosen.session))
    for recorded in (
        watch.follow() if follow else read_whole_log(place.paths, run_of(state, chosen).run, chosen.session)
    ):
        line = event_line(recorded) if json else log_line(recorded.event, paint)
        if line is not None:
            output.print_out(line)
    if not json and (result := watch.result) is not None:
        output.print_out(end_line(result, paint))
    return 0


def read_whole_log(paths: StatePaths, run: str, session: str) -> Iterator[Recorded]:
    """Read the log of *session* with what its agent said to others and started, in order of time."""
    talk = (
        recorded for recorded in store_at(paths).read_talk(run) if getattr(recorded.event, "session", "") == session
    )
    return heapq.merge(read_session(paths, session), talk, key=lambda recorded: recorded.at)


def _print_run(place: RepositoryState, run: str, *, is_following: bool, json: bool) -> int:
    """Print the logs of all agents of a run, each line with the session before it."""
    tail, paint = RunTail(place.paths, run, has_ended_logs=True), output.paint()
    while True:
        ends: list[Recorded] = []
        for recorded in tail.read():
            if isinstance(recorded.event, SessionEnded):
                ends.append(recorded)  # after the last lines of its log
            elif (session := getattr(recorded.event, "session", "")) != "":
                _print_of(session, event_line(recorded) if json else log_line(recorded.event, paint), json=json)
        for recorded in ends:
            if isinstance(event := recorded.event, SessionEnded):
                _print_of(event.session, event_line(recorded) if json else end_line(event.result, paint), json=json)
        if tail.is_over or not is_following:
            return 0
        pause(place.paths, POLL_SECONDS)


def _print_of(session: str, text: str | None, *, json: bool) -> None:
    for line in [] if text is None else text.split("\n"):
        output.print_out(line if json else f"{escape(session)} | {line}")


class Watch:
    """Follows one session until it has ended or its Shoal is dead."""

    def __init__(self, place: RepositoryState, run: str, session: SessionState) -> None:
        self._place = place
        self._run = run
        self._session = session.session
        self._seen = session.seq
        self.result: WorkerResult | None = session.result

    def follow(self) -> Iterator[Recorded]:
        """Yield its events as they come."""
        after = 0
        while True:
            # Checked first: a session ends after its last event is on disk, so the read below is complete.
            is_over = self._is_over()
            for recorded in read_session(self._place.paths, self._session, after):
                after = recorded.seq
                yield recorded
            if is_over:
                return
            pause(self._place.paths, POLL_SECONDS)

    def _is_over(self) -> bool:
        is_alive = is_owned(self._place.paths, self._run)
        for recorded in read_events(self._place.paths, self._run, self._seen):
            self._seen = recorded.seq
            match recorded.event:
                case SessionEnded(session=session, result=result) if session == self._session:
                    self.result = result
        return self.result is not None or not is_alive
