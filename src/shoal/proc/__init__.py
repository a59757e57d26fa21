"""Start processes, stream and cap their output, and end them: the only place that starts a process.

Start at `process.py`: `open_process` yields a process, and ends all of it on exit; `run.py` runs a command until it
ends. `spawn.py` creates the child, `pipes.py` reads its output at a limited rate, and `namespace.py` ends a whole
sandbox.
"""

from shoal.proc.output import LineBatcher, LineSplitter, OutputBudget
from shoal.proc.process import Exit, Process, Sink, open_process, pidfd_ended
from shoal.proc.run import Completed, run, run_into
from shoal.proc.spawn import Stream

__all__ = [
    "Completed",
    "Exit",
    "LineBatcher",
    "LineSplitter",
    "OutputBudget",
    "Process",
    "Sink",
    "Stream",
    "open_process",
    "pidfd_ended",
    "run",
    "run_into",
]
