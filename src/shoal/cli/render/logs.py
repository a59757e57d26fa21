"""An agent's words, as they are shown to a person."""

import re

from shoal.cli.output import Paint
from shoal.cli.plain import plain
from shoal.cli.render.columns import count, seconds, tone
from shoal.model.events import AgentEnded, AgentStarted, Event, Output
from shoal.model.results import WorkerResult

# Taken out, not shown as an escape: many programs colour what they say, and a line of escapes cannot be read.
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


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
        case _:
            return None


def ended_line(result: WorkerResult, paint: Paint) -> str:
    """Say how the session ended."""
    status = paint(result.status.value, tone(result.status))
    branch = f", {plain(result.branch)}" if result.branch else ""
    why = f": {plain(result.error)}" if result.error else ""
    return f"-- {status} in {seconds(result.duration_seconds)}{branch}{why} --"


def _words(text: str, stream: str, paint: Paint) -> str:
    shown = plain(COLOUR.sub("", text), keep="\t\n")
    return f"{paint('err:', 'bad')} {shown}" if stream == "stderr" else shown
