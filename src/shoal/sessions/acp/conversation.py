"""Run an agent of the Agent Client Protocol in its sandbox, and be its client."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from shoal.adapters.acp import CLIENT
from shoal.adapters.events import event, explain_failure, last_line
from shoal.errors import first_error
from shoal.model.activity import Act, Activity
from shoal.model.permissions import Decision, PermissionManager
from shoal.model.resolved_task import ResolvedTask
from shoal.model.talk import TalkAccess
from shoal.sessions.acp.turn import AcpTurn, ConnectionLost, TurnAnswer, TurnRefused, one_line
from shoal.sessions.acp.updates import ToolCall, Updates
from shoal.sessions.acp.wire import AcpWire, AnswersUnread, is_answer, is_request, is_update
from shoal.sessions.agent_process import AgentEnd, Ending, WatchResult, run_process, watch_process
from shoal.sessions.limit_watch import SessionBounds
from shoal.sessions.output_log import OutputLog
from shoal.sessions.policy import note_decision
from shoal.sessions.sandboxed import SandboxedProcess
from shoal.sessions.session_control import take_message
from shoal.sessions.talking import talk_access
from shoal.sessions.worker import Session

MOST_GARBAGE = 100
MOST_DECISIONS = 10_000
"""In one turn; each is kept in the audit log."""
LINGER_SECONDS = 1.0
STOPS = {
    "max_tokens": "its model ran out of tokens (max_tokens)",
    "max_turn_requests": "it reached its limit of model requests in one turn (max_turn_requests)",
    "refusal": "its model refused to go on (refusal)",
    "cancelled": "it reports that it was cancelled, but nobody cancelled it (cancelled)",
}
LIES = ("Ran into this error:", "API Error:", "[API Error:")
"""How the last message begins of agents that report success although their model could not be asked."""


class AcpConversation:
    """Reads an agent's messages and answers its requests; *over* is set at the end of its turn."""

    def __init__(
        self,
        task: ResolvedTask,
        manager: PermissionManager,
        words: OutputLog,
        note: Callable[[Decision], None],
        conversation: str | None = None,
        next_message: Callable[[], str | None] = lambda: None,
        talk: TalkAccess | None = None,
    ) -> None:
        permitted = manager.permissions
        self._has_rules = permitted.allowed_tools is not None or bool(permitted.deny)
        self._manager = manager
        self._words = words
        self._note = note
        self._decisions = 0
        self._next_message = next_message
        self._turn = AcpTurn(
            task,
            str(manager.workspace),
            has_rules=self._has_rules,
            may=self._may,
            began=self._began,
            conversation=conversation,
            next_message=lambda: None if self._cut else self._next_message(),
            talk=talk,
        )
        self._updates = Updates(self._end_if_denied)
        self._wire: AcpWire | None = None
        self._garbage = 0
        self._answer: TurnAnswer | None = None
        self._failure: str | None = None
        self._cut: Ending | None = None
        self.over = asyncio.Event()

    def read(self, line: str) -> Iterable[Activity]:
        """Take one line: yield an update as activities, and pass any other message of the protocol to its receiver."""
        message = event(line)
        if message is None:
            return self._not_understood(line)
        if is_update(message):
            match message.get("params"):
                case {"update": dict(update)} if not self._turn.is_loading:
                    return self._updates.read(update)
        elif self._wire is not None and (is_request(message) or is_answer(message)):
            self._accept_message(self._wire, dict(message), len(line))
            return self._answer_request(message)
        return ()

    @property
    def is_done(self) -> bool:
        """Return whether the turn is over."""
        return self.over.is_set()

    @property
    def usage(self) -> Mapping[str, float]:
        """What it reports to have used."""
        usage = self._answer.usage if self._answer else {}
        return usage if self._updates.cost_usd is None else {**usage, "cost_usd": self._updates.cost_usd}

    @property
    def session(self) -> str | None:
        """The agent's own id of the session."""
        return self._turn.session or None

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Return why it failed: it broke the protocol or a rule, its turn ended badly, or it exited early."""
        if self._failure is not None:
            return self._failure
        if self._answer is not None:
            lied = self._updates.last_words.startswith(LIES)
            return STOPS.get(self._answer.stop) or (
                explain_failure(self._updates.last_words, CLIENT.login) if lied else None
            )
        how = "it was ended" if exit_code is None else f"it exited with {exit_code}"
        reason = last_line(errors)
        return f"{how} before its turn was over" + (f": {one_line(reason)}" if reason else "")

    async def watch(
        self,
        sandboxed: SandboxedProcess,
        bounds: SessionBounds,
        seconds: float | None,
        stop: asyncio.Event,
        grace: float,
        endings: Mapping[Ending, Awaitable[object]] = MappingProxyType({}),
    ) -> WatchResult:
        """Talk to the agent in *sandboxed* until the first reason to end it; on stop, ask it to end its turn first."""
        cuts = {Ending.STOP: self._end_turn_on(Ending.STOP, stop.wait, grace)}
        if seconds is not None:
            cuts[Ending.TIME] = self._end_turn_on(Ending.TIME, partial(bounds.clock.sleep, seconds), grace)
        every = {**cuts, **endings, Ending.DONE: self._wait_for_exit()}
        try:
            async with asyncio.TaskGroup() as group:
                spoken = group.create_task(self._speak(sandboxed))
                seen = await watch_process(sandboxed, bounds, None, asyncio.Event(), grace, every)
                await self._read_last_answer(spoken)
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        if self._cut is not None and seen.ending in (Ending.BY_ITSELF, Ending.DONE):
            return replace(seen, ending=self._cut)
        return seen

    async def _speak(self, sandboxed: SandboxedProcess) -> None:
        self._wire = AcpWire(sandboxed)
        try:
            self._answer = await self._turn.run(self._wire)
        except TurnRefused as refused:
            self._fail(str(refused))
        except ConnectionLost:  # it has exited, and its exit code tells more
            pass
        self.over.set()
        sandboxed.close_input()

    async def _read_last_answer(self, spoken: asyncio.Task[None]) -> None:
        """Read the rest of what an exited agent wrote: its last answer may not have reached its receiver yet."""
        if self._wire is not None:
            self._wire.end()
        await asyncio.wait((spoken,), timeout=LINGER_SECONDS)
        spoken.cancel()
        for activity in self._updates.rest():
            self._words.say(activity.text)

    async def _wait_for_exit(self) -> None:
        """Give an agent time to exit after its turn; one that failed gets none."""
        await self.over.wait()
        if self._failure is None:
            await asyncio.sleep(LINGER_SECONDS)

    async def _end_turn_on(self, ending: Ending, cause: Callable[[], Awaitable[object]], grace: float) -> None:
        """Wait for *cause*, ask the agent to end its turn, and report *ending* once *grace* is over."""
        await cause()
        self._cut = self._cut or ending
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(grace):
                await self._turn.cancel()
                await self.over.wait()

    def _began(self, who: str) -> None:
        self._words.act(Activity(act=Act.BEGAN, text=who))

    def _answer_request(self, message: Mapping[str, object]) -> Iterable[Activity]:
        match message:
            case {"method": "session/request_permission", "params": {"toolCall": dict(call)}}:
                return self._updates.note_request(call)
        return ()

    def _may(self, question: Mapping[str, object]) -> bool | None:
        """Decide whether a tool may be used; `None` while the turn is being ended."""
        call = self._updates.call(question)
        if self._cut is not None:
            return None
        decision = self._decide(call)
        if not decision:
            self._words.act(Activity(act=Act.DENIED, tool=call.names[0], text=decision.rule, call=call.call))
            self._updates.note_denial(call, f"denied by {decision.rule}")
        return decision.allowed

    def _end_if_denied(self, call: ToolCall) -> None:
        """End an agent that used a denied tool: it did not ask or ignored the answer, and nothing else restrains it."""
        if not self._has_rules or (call.is_asked and not call.is_over):
            return
        decision = self._decide(call)
        if not decision:
            how = "although that was denied" if call.is_asked else "without asking"
            self._fail(f"it used {decision.subject} {how}, against the rule {decision.rule!r}")

    def _decide(self, call: ToolCall) -> Decision:
        decision = call.decide(self._manager)
        self._decisions += 1
        if self._decisions > MOST_DECISIONS:
            self._fail(f"it asked for or used tools more than {MOST_DECISIONS} times in one turn")
        else:
            self._note(decision)
        return decision

    def _accept_message(self, wire: AcpWire, message: dict[str, object], chars: int) -> None:
        try:
            wire.accept(message, chars)
        except AnswersUnread:
            self._fail("it keeps sending requests without reading the answers")

    def _not_understood(self, line: str) -> Iterable[Activity]:
        if not line.strip():
            return ()
        self._garbage += 1
        if self._garbage > MOST_GARBAGE:
            self._fail(f"stdout is not the Agent Client Protocol: {one_line(line)}")
            return ()
        return (Activity(act=Act.TROUBLE, text=f"not a message of the protocol: {line[:200]}"),)

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self.over.set()
        if self._wire is not None:
            self._wire.end()


async def run_acp(session: Session) -> AgentEnd:
    """Give the agent its task, answer its requests by the session's permissions, and pass on messages."""
    task = session.task
    manager = PermissionManager(session.workspace.path, task.permitted)
    talk = AcpConversation(
        task,
        manager,
        session.log,
        lambda decision: note_decision(session, decision),
        conversation=session.worker.conversation,
        next_message=lambda: take_message(session.context, session.id, session.control),
        talk=talk_access(session),
    )
    return await run_process(session, talk)
