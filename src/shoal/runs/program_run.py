"""The run that a coordinator holds open for a program: its settings, its users, and its running sessions."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.errors import BadInput
from shoal.model.results import RunReport
from shoal.model.task import AgentLike
from shoal.patterns import Limiter
from shoal.runs.request import Settings
from shoal.runs.task_run import TaskRun, open_task_run
from shoal.store.ledger import Listener
from shoal.store.requests import MAX_SENT_CHARS, ControlRequest, RequestKind

THE_PROGRAM = "the program that runs it"


@dataclass(frozen=True, slots=True)
class ActiveSession:
    """A running session."""

    session: str
    task: str
    branch: str
    workspace: Path


class ProgramRun:
    """The run of a coordinator: all calls share it while it is open; without `async with`, each call opens its own."""

    def __init__(
        self,
        repo: Path | str | int = ".",
        max_concurrent: int | Path | str | None = None,
        *,
        config: Mapping[str, object] | None = None,
        agent: AgentLike | None = None,
        agents: Mapping[str, AgentLike] | None = None,
        personas: Mapping[str, Mapping[str, object]] | None = None,
        listen: Listener | None = None,
        limiter: Limiter | None = None,
        **settings: object,
    ) -> None:
        folder, most = _in_order(repo, max_concurrent)
        given = {**(config or {}), **settings}
        if most is not None:
            given = {key: value for key, value in given.items() if key != "max_concurrent_agents"}
            given["max_concurrent"] = most
        if "limits" in given:
            given["resource_limits"] = given.pop("limits")
        self.settings = Settings(agent=agent, agents=agents or {}, personas=personas or {}).under(given)
        self.repo = folder
        self._listen = listen
        self._limiter = limiter
        self._task_run: TaskRun | None = None
        self._stack = contextlib.AsyncExitStack()
        self._users = 0
        self._opening = asyncio.Lock()  # guards the opening of the run, which concurrent calls share
        self._is_entered = False

    @property
    def max_concurrent(self) -> int:
        """How many agents run at once."""
        return self.settings.max_concurrent if self._task_run is None else self._task_run.runner.limiter.max_concurrent

    async def __aenter__(self) -> Self:
        """Begin the run: its sandbox, its base and its ledger are the same for all tasks."""
        if self._is_entered:
            raise BadInput("this coordinator is open already; make another one")
        self._is_entered = True
        try:
            await self._join()
        except BaseException:
            self._is_entered = False
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run, or leave that to the last call that still runs; the work of each session is kept."""
        self._is_entered = False
        await self._leave(kind, error, trace)

    @property
    def active_sessions(self) -> dict[str, ActiveSession]:
        """The running sessions by name."""
        if self._task_run is None:
            return {}
        context = self._task_run.runner.context
        return {
            name: ActiveSession(
                name, worker.step, worker.branch, context.paths.workspace(context.run, worker.step, worker.index)
            )
            for name, worker in self._task_run.runner.active.items()
        }

    def stop(self, session: str | None = None) -> None:
        """Stop one session, or all of them and start no more; their work is kept, and their results say so."""
        if self._task_run is None:
            raise BadInput("the coordinator is not open, so nothing runs")
        if session is None:
            self._task_run.runner.stop_all(THE_PROGRAM)
        elif session in self._task_run.runner.active:
            self._task_run.runner.stop_session(session, THE_PROGRAM)
        else:
            raise BadInput(f"{session!r} is not running; `active_sessions` names those that are")

    def send(self, session: str, text: str) -> None:
        """Send *text* to the agent of *session* after its current turn; raise `BadInput` if it takes no messages."""
        if not text.strip() or len(text) > MAX_SENT_CHARS:
            raise BadInput(f"a message has 1 to {MAX_SENT_CHARS} characters, not {len(text.strip())}")
        self._ask(ControlRequest(kind=RequestKind.SEND, run="", session=session, message=text))

    def pause(self, *, freeze: bool = False) -> None:
        """Start no agents until `continue_run`; running ones continue, or are frozen with *freeze*."""
        self._ask(ControlRequest(kind=RequestKind.PAUSE, run="", is_frozen=freeze))

    def continue_run(self) -> None:
        """Start agents again."""
        self._ask(ControlRequest(kind=RequestKind.CONTINUE, run=""))

    def set_max_concurrent(self, number: int) -> None:
        """Change how many agents run at once; surplus agents finish first."""
        if number < 1:
            raise BadInput(f"max_concurrent must be at least 1, not {number}")
        self._ask(ControlRequest(kind=RequestKind.SET, run="", value=number))

    def _ask(self, request: ControlRequest) -> None:
        if self._task_run is None or self._task_run.control is None:
            raise BadInput("the coordinator is not open, so nothing runs")
        run = self._task_run.runner.context.run
        self._task_run.control.apply(replace(request, run=run, by=THE_PROGRAM))

    @property
    def report(self) -> RunReport:
        """The results of the run so far."""
        if self._task_run is None:
            raise BadInput("the coordinator is not open; use it in an `async with` block")
        return self._task_run.report()

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[TaskRun]:
        task_run = await self._join()
        try:
            yield task_run
        finally:
            await self._leave(*sys.exc_info())

    async def _join(self) -> TaskRun:
        """Use the open run, or begin one."""
        if self._users == 0:
            self._opening = asyncio.Lock()  # the one before may belong to a loop that is closed
        self._users += 1
        try:
            async with self._opening:
                if self._task_run is None:
                    opening = open_task_run(self.repo, self.settings, self._listen, self._limiter)
                    self._task_run = await self._stack.enter_async_context(opening)
                return self._task_run
        except BaseException:
            self._users -= 1
            raise

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run when nothing uses it any more."""
        self._users -= 1
        if self._users == 0:
            stack, self._stack, self._task_run = self._stack, contextlib.AsyncExitStack(), None
            await stack.__aexit__(kind, error, trace)


def _in_order(first: Path | str | int, second: int | Path | str | None) -> tuple[Path, int | None]:
    """Tell the repository from the number, whichever comes first: seed 002 writes `AgentCoordinator(5)`."""
    if isinstance(first, int):
        if isinstance(second, int):
            raise BadInput(f"two numbers, {first} and {second}: give one as `max_concurrent`, and a folder as `repo`")
        return Path("." if second is None else second), first
    if second is not None and not isinstance(second, int):
        raise BadInput(f"max_concurrent must be a whole number of at least 1, not {second!r:.40}")
    return Path(first), second
