"""The only place that starts a process: start, stream, cap and end."""

from shoal.proc.completed import Completed, run, run_into
from shoal.proc.output import Lines, OutputBudget, Passages
from shoal.proc.process import Exit, Process, Sink, pidfd_ended, started
from shoal.proc.spawn import Stream

__all__ = [
    "Completed",
    "Exit",
    "Lines",
    "OutputBudget",
    "Passages",
    "Process",
    "Sink",
    "Stream",
    "pidfd_ended",
    "run",
    "run_into",
    "started",
]
