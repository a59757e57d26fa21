"""Control a live run from outside: stop it or one of its sessions, pause it, or change how many agents it runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial

from shoal.errors import BadInput, NoMessages, first_error
from shoal.model.events import RequestTaken
from shoal.proc.spawn import raise_file_limit
from shoal.sessions.session_control import AgentMessage
from shoal.steps.attempts import WorkerRunner
from shoal.store.requests import ControlRequest, RequestDoor, RequestKind, is_control, requester


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControl:
    """Acts on the requests to one run; *end_run* is `None` if a program owns the run: only the program can end it."""

    runner: WorkerRunner
    door: RequestDoor
    stop_run: Callable[[str], None]
    """Stop the run as the first Ctrl-C does, at the request of that person."""
    end_run: Callable[[], object] | None = None
    """End the run as the second Ctrl-C does."""
    _taken: set[str] = field(default_factory=set)

    async def take_requests(self) -> None:
        """Take one request after the other until cancelled: each is recorded before anything acts on it."""
        while True:
            request = await self.door.first(self._is_new)
            self._taken.add(request.id)
            refusal = self._refuse(request)
            await self.runner.context.ledger.append(self._create_event(request, refusal or ""))
            self.door.settle(partial(_is_same, request))
            if refusal is None:
                self._act(request)

    def apply(self, request: ControlRequest) -> None:
        """Apply a request of the program itself and record it; raise `BadInput` if that is impossible."""
        if refusal := self._refuse(request):
            raise BadInput(refusal)
        self.runner.context.ledger.post(self._create_event(request, ""))
        self._act(request)

    def _create_event(self, request: ControlRequest, refusal: str) -> RequestTaken:
        return RequestTaken(
            run=request.run,
            request=request.id,
            kind=request.kind,
            by=requester(request),
            session=request.session,
            is_now=request.is_now,
            is_frozen=request.is_frozen,
            value=request.value,
            message=self.runner.context.mask.text(request.message),
            refusal=refusal,
        )

    def _describe_unfreezable(self) -> str | None:
        """Return why running agents cannot be frozen; `None` if they can."""
        enforcer = self.runner.context.enforcer
        if not enforcer.can_freeze:
            return f"agents cannot be frozen here: {enforcer.name} has no freezer; pause without --freeze"
        own = [name for name, worker in self.runner.active.items() if not worker.is_program]
        if own:
            return f"{own[0]} runs in Shoal's own process, which cannot be frozen; pause without --freeze"
        return None

    def _is_new(self, request: ControlRequest) -> bool:
        return is_control(request) and request.id not in self._taken

    def _refuse(self, request: ControlRequest) -> str | None:
        if request.session and request.session not in self.runner.active:
            return f"{request.session} is not running"
        match request.kind:
            case RequestKind.STOP if request.is_now and self.end_run is None:
                return "a program runs it; end that program to end the run at once"
            case RequestKind.SEND if not self.runner.active[request.session].takes_messages:
                return str(NoMessages(request.session, self.runner.active[request.session].task.agent.adapter))
            case RequestKind.SEND if not self.runner.has_open_inbox(request.session):
                return f"the agent of {request.session} has finished its last turn, and takes no more messages"
            case RequestKind.PAUSE if request.is_frozen:
                return self._describe_unfreezable()
            case RequestKind.SET if request.value > (most := raise_file_limit()):
                return f"this host's limit of open files allows {most} agents at once"
            case _:
                return None

    def _act(self, request: ControlRequest) -> None:
        by = requester(request)
        match request.kind:
            case RequestKind.SET:
                self.runner.limiter.resize(request.value)
            case RequestKind.SEND:
                self.runner.send_message(request.session, AgentMessage(text=request.message, by=by, request=request.id))
            case RequestKind.SNAPSHOT:
                self.runner.take_snapshot(request.session, request.id)
            case RequestKind.PAUSE:
                self.runner.pause(is_frozen=request.is_frozen)
            case RequestKind.CONTINUE:
                self.runner.resume()
            case RequestKind.STOP if request.session:
                self.runner.stop_session(request.session, by)
            case RequestKind.STOP:
                self.stop_run(by)
                if request.is_now and self.end_run is not None:
                    self.end_run()


def _is_same(request: ControlRequest, other: ControlRequest) -> bool:
    return request.id == other.id


@contextlib.asynccontextmanager
async def hold_control(control: RunControl) -> AsyncIterator[None]:
    """Take requests while the body runs."""
    error: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(control.take_requests())
            try:
                yield
            except BaseException as raised:  # passed around the task group, which would wrap it
                error = raised
            taking.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    if error is not None:
        raise error
