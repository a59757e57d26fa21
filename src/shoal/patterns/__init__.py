"""Coordination over any async callable: structured, limited, and over when it returns."""

from shoal.patterns.balance import balance
from shoal.patterns.deadline import timeout
from shoal.patterns.events import Event, Finished, Progressed, Started, events
from shoal.patterns.gather import gather
from shoal.patterns.limiter import Limiter, default_limiter, use_limiter
from shoal.patterns.outcome import Cancelled, Err, Ok, Outcome
from shoal.patterns.pool import AgentPool
from shoal.patterns.progress import Progress
from shoal.patterns.quorum import quorum
from shoal.patterns.race import race
from shoal.patterns.retry import Retry, retrying
from shoal.patterns.settled import map, settled
from shoal.patterns.source import Call, chunked
from shoal.patterns.stages import stages
from shoal.patterns.stream import stream

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
