"""Start processes, stream and cap their output, and end them: the only place that starts a process.

Start at `process.py`: `open_process` holds a process and leaves nothing of it behind; `completed.py` runs a command to
its end. `spawn.py` makes the child, `pipes.py` reads its output at a bounded rate, and `namespace.py` ends a
whole sandbox.
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
