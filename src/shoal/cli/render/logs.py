"""An agent's words, as they are shown to a person."""

import re

from shoal.cli.output import Paint
from shoal.cli.plain import plain
from shoal.cli.render.columns import beginning, count, seconds, tone
from shoal.cli.render.why import why
from shoal.model.activity import Act
from shoal.model.events import AgentActed, AgentEnded, AgentStarted, Event, Output, PermissionDecided
from shoal.model.results import WorkerResult

# Taken out, not shown as an escape: many programs colour what they say, and a line of escapes cannot be read.
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
PROMPT = 80 - len("-- asked:  --")
ACTED = 160


def log_line(event: Event, paint: Paint) -> str | None:
    """Show a line of output as it is, escaped, and other events between dashes."""
    match event:
        case Output(text=text, dropped=0, stream=stream):
            return _words(text, stream, paint)
        case Output(text=text, dropped=dropped, stream=stream):
            missing = paint(f"-- {count(dropped, 'byte')} of output not kept here --", "warn")
            return f"{missing}\n{_words(text, stream, paint)}" if text else missing
        case AgentStarted(session=session, pid=pid):
            return paint(f"-- {plain(session)} runs, pid {pid} --", "dim")
        case AgentEnded(exit_code=code, signal=number):
            return paint(f"-- ended by signal {number} --" if number else f"-- exited with {code} --", "dim")
        case AgentActed():
            return _acted(event, paint)
        case PermissionDecided(allowed=False, subject=subject, rule=rule):
            return paint(f"-- denied: {plain(subject)} ({plain(rule)}) --", "warn")
        case _:
            return None


def _acted(event: AgentActed, paint: Paint) -> str | None:
    """Show what a client did in one line; what a tool gave back only where that went wrong."""
    text = beginning(event.text, ACTED)
    match event.act:
        case Act.TOOL:
            return paint(f"-- {plain(event.tool)}: {text} --" if text else f"-- {plain(event.tool)} --", "dim")
        case Act.RESULT if not event.ok:
            return paint(f"-- {plain(event.tool) or 'a tool'} failed: {text} --", "warn")
        case Act.RETRY:
            return paint(f"-- its model cannot be asked: {text}; again in {seconds(event.seconds)} --", "warn")
        case Act.TROUBLE:
            return paint(f"-- {text} --", "warn")
    return None


def asked_line(prompt: str, paint: Paint) -> str:
    """Say what the agent was asked to do."""
    return paint(f"-- asked: {beginning(prompt, PROMPT)} --", "dim")


def removed_line(session: str) -> str:
    """Say that nothing is left of what the agent said."""
    return f"shoal: the log of {plain(session)} is not there any more; `shoal clean --older-than` removes logs"


def ended_line(result: WorkerResult, paint: Paint) -> str:
    """Say how the session ended."""
    status = paint(result.status.value, tone(result.status))
    branch = f", {plain(result.branch)}" if result.branch else ""
    reason = f": {said}" if (said := why(result)) else ""
    return f"-- {status} in {seconds(result.duration_seconds)}{branch}{reason} --"


def _words(text: str, stream: str, paint: Paint) -> str:
    shown = plain(COLOUR.sub("", text), keep="\t\n")
    if stream == "setup":
        return "\n".join(f"{paint('setup:', 'dim')} {line}" for line in shown.splitlines())
    return f"{paint('err:', 'bad')} {shown}" if stream == "stderr" else shown
