"""The protocol of executors, which run sessions."""

from collections.abc import Callable
from typing import Protocol

from shoal.model.results import WorkerResult
from shoal.sessions.context import RunContext
from shoal.sessions.session_control import SessionControl
from shoal.sessions.worker import WorkerSpec

OnResult = Callable[[WorkerResult], None]


class SessionLost(Exception):
    """The outcome of a session is unknown, since its node was lost; *result* is recorded, and counts as no attempt."""

    def __init__(self, result: WorkerResult) -> None:
        super().__init__(result.error)
        self.result = result


class Executor(Protocol):
    """Runs sessions somewhere."""

    async def run(
        self, context: RunContext, worker: WorkerSpec, on_result: OnResult, control: SessionControl | None = None
    ) -> WorkerResult:
        """Run one session of *worker*, record it in the ledger, and return its result.

        An agent's failure is a result, never an exception. When the stop of *control* is set, the session stops
        its agent, keeps the work and returns the result, which names the person who stopped it. Messages in its inbox
        go to the agent between its turns. When cancelled, it stops in the same way and raises. *on_result* gets the
        result once, in that case too, before this returns or raises.

        Raises `SessionLost` where the session has to run again under another name, since nobody knows how it ended.
        """
