"""The only place that starts a process: start, stream, cap and end."""

from shoal.proc.completed import Completed, run, run_into
from shoal.proc.exit import Exit, pidfd_ended
from shoal.proc.kept import Budget
from shoal.proc.lines import Lines, Passages
from shoal.proc.process import Process, Sink, started
from shoal.proc.spawn import Stream

__all__ = [
    "Budget",
    "Completed",
    "Exit",
    "Lines",
    "Passages",
    "Process",
    "Sink",
    "Stream",
    "pidfd_ended",
    "run",
    "run_into",
    "started",
]
