"""Run sessions on this machine, in this process's event loop."""

from dataclasses import dataclass

from shoal.executors.kind import OnResult
from shoal.model.results import WorkerResult
from shoal.sessions.context import RunContext
from shoal.sessions.session import run_session
from shoal.sessions.session_control import SessionControl
from shoal.sessions.worker import WorkerSpec


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Runs sessions on this machine."""

    async def run(
        self, context: RunContext, worker: WorkerSpec, on_result: OnResult, control: SessionControl | None = None
    ) -> WorkerResult:
        """Run one session of *worker* here."""
        return await run_session(context, worker, on_result=on_result, control=control)
