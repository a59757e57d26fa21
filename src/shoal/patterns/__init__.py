"""Run async callables together: `gather`, `settled`, `race`, `quorum`, `map`, streams, retries and pools.

Nothing is left running when a pattern returns. Start with `combine.py`; `flow.py` runs calls and `limiter.py` bounds
how many run at once. To add a pattern, write it over `flow.py` and export it here.
"""

from shoal.patterns.balance import balance
from shoal.patterns.combine import gather, map, quorum, race, settled, stages
from shoal.patterns.flow import Event, Finished, Progressed, Started, events, stream, timeout
from shoal.patterns.limiter import Limiter, default_limiter, use_limiter
from shoal.patterns.outcome import Cancelled, Err, Ok, Outcome, Progress
from shoal.patterns.pool import AgentPool
from shoal.patterns.retry import Retry, retrying
from shoal.patterns.source import Call, chunked

__all__ = [
    "AgentPool",
    "Call",
    "Cancelled",
    "Err",
    "Event",
    "Finished",
    "Limiter",
    "Ok",
    "Outcome",
    "Progress",
    "Progressed",
    "Retry",
    "Started",
    "balance",
    "chunked",
    "default_limiter",
    "events",
    "gather",
    "map",
    "quorum",
    "race",
    "retrying",
    "settled",
    "stages",
    "stream",
    "timeout",
    "use_limiter",
]
