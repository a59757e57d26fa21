"""Run an in-process agent: this process asks its model, and its tools run in the session's sandbox."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial

from shoal.adapters.events import argument
from shoal.adapters.events import event as parse_event
from shoal.agent import Agent, AgentEvent, AgentLimits, Call, ModelReplied, Reply, ScriptedModel, sandboxed_tools
from shoal.agent.events import ToolCalled, ToolReturned
from shoal.errors import AgentCancelled, AgentTimedOut, BadInput, ShoalError, first_error
from shoal.model.activity import Act, Activity
from shoal.model.agent import SCRIPTED, TOOLS, AgentSpec, ModelSettings
from shoal.model.events import ClientHeard
from shoal.model.results import sum_usage
from shoal.proc import Exit, Stream
from shoal.sessions.agent_process import AgentEnd, Ending
from shoal.sessions.command_session import OpenSession
from shoal.sessions.output_log import OutputLog
from shoal.sessions.policy import note_grants
from shoal.sessions.session_control import take_message
from shoal.sessions.worker import Session, WorkerSpec

PLACE = (
    "You work in a private copy of a git repository, by your tools alone. Paths are from its top. What you change "
    "there is kept as a branch when you give your final answer; nobody can answer questions."
)


async def run_in_process(session: Session) -> AgentEnd:
    """Give the task to a fork of the agent, whose tools run in the session's sandbox."""
    note_grants(session)
    tools = OpenSession(session)
    events = _AgentEvents(session.log, on_usage=partial(_note_usage, session))
    try:
        async with _forked(session.worker, tools) as fork:
            fork.subscribe(events.hear)
            outcome = await _outcome(fork, session)
            events.conclude(outcome)
            return replace(_session_end(outcome, session.log), usage=_usage(fork), resources=tools.resources)
    finally:
        session.log.close()


def _note_usage(session: Session, usage: dict[str, float]) -> None:
    session.context.ledger.note(
        ClientHeard(run=session.context.run, session=session.id, client_session="", usage=usage)
    )


def assert_agent(spec: AgentSpec) -> None:
    """Raise `BadInput` or `Unavailable` if *spec* names no model that this process can ask."""
    try:
        _agent(spec)
    except BadInput as error:
        raise BadInput(f"agent {spec.name}: {error}") from error


def _agent(spec: AgentSpec) -> Agent:
    if isinstance(spec.made, Agent):
        return spec.made
    if spec.mind is None:
        raise BadInput(f"{spec.made!r:.60} is not an agent; give a `shoal.Agent`, or a mapping with `model`")
    model = spec.mind.model if spec.mind.model != SCRIPTED else _make_scripted_model(spec.mind)
    return Agent(model, name=spec.name, limits=_limits(spec.mind))


def _limits(mind: ModelSettings) -> AgentLimits:
    if mind.budget is None:
        return AgentLimits()
    turns = {} if mind.budget.turns is None else {"turns": mind.budget.turns}
    return AgentLimits(tokens=mind.budget.tokens, dollars=mind.budget.dollars, **turns)


def _make_scripted_model(mind: ModelSettings) -> ScriptedModel:
    """Make the model that replies as a file says."""
    return ScriptedModel([_step(reply) for reply in json.loads(mind.replies or "[]")])


def _step(reply: str | dict[str, dict[str, object]] | list[dict[str, dict[str, object]]]) -> str | list[Call]:
    if isinstance(reply, str):
        return reply
    calls = [reply] if isinstance(reply, dict) else reply
    return [Call(tool, arguments) for call in calls for tool, arguments in call.items()]


@contextlib.asynccontextmanager
async def _forked(worker: WorkerSpec, tools: OpenSession) -> AsyncIterator[Agent]:
    """Yield a fork with tools in the session; its usage is added to the base's."""
    spec = worker.task.agent
    base = _agent(spec)
    wanted = spec.mind.tools if spec.mind else TOOLS
    setup = base.setup.with_tools([tool for tool in sandboxed_tools(tools) if tool.name in wanted])
    if spec.mind is not None:
        setup = replace(setup, system_prompt="\n\n".join(filter(None, (worker.task.system_prompt, PLACE))))
        if spec.mind.temperature is not None:
            setup = replace(setup, settings={**setup.settings, "temperature": spec.mind.temperature})
    async with contextlib.AsyncExitStack() as stack:
        if spec.made is None:  # the agent's maker closes its connections
            await stack.enter_async_context(base)
        yield stack.enter_context(base.sharing(setup))


async def _outcome(fork: Agent, session: Session) -> Reply | ShoalError:
    """Run until there is an answer, its time is over, or it is stopped."""
    try:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(_prompt_agent(fork, session))
            stopped = group.create_task(session.stop.wait())
            await asyncio.wait((asked, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                fork.cancel()
                await asyncio.wait((asked,), timeout=session.context.grace)
            for task in (asked, stopped):
                task.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return AgentCancelled() if asked.cancelled() else asked.result()


async def _prompt_agent(fork: Agent, session: Session) -> Reply | ShoalError:
    """Prompt with the task, then with each message of a person; its time limit covers all of them."""
    worker, prompt = session.worker, session.worker.task.prompt
    end = None if worker.seconds is None else time.monotonic() + worker.seconds
    try:
        while True:
            left = None if end is None else max(0.001, end - time.monotonic())
            reply = await fork.prompt(prompt, timeout=left)
            message = take_message(session.context, session.id, session.control)
            if message is None:
                return reply
            prompt = message
    except ShoalError as error:  # whatever it is, it is this agent's failure, and its work is kept
        return error


def _session_end(outcome: Reply | ShoalError, log: OutputLog) -> AgentEnd:
    match outcome:
        case Reply():
            return AgentEnd(ending=Ending.BY_ITSELF, exit=Exit(0, None), log=log)
        case AgentCancelled():
            return AgentEnd(ending=Ending.STOP, exit=Exit(None, None), log=log)
        case AgentTimedOut():
            return AgentEnd(ending=Ending.TIME, exit=Exit(None, None), log=log, failure=str(outcome))
        case _:
            return AgentEnd(ending=Ending.BY_ITSELF, exit=Exit(1, None), log=log, failure=str(outcome))


def _usage(fork: Agent) -> dict[str, float]:
    used = fork.usage
    tokens: dict[str, float] = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
    return tokens if fork.cost is None else {**tokens, "cost_usd": float(fork.cost)}


@dataclass
class _AgentEvents:
    """Turns agent events into output: its texts are its output, its tool calls activities."""

    log: OutputLog
    text: str = ""
    """The last text, which is printed again in full if it was the answer."""
    on_usage: Callable[[dict[str, float]], None] = lambda usage: None
    usage: dict[str, float] = field(default_factory=dict)

    def hear(self, event: AgentEvent) -> None:
        match event:
            case ModelReplied(text=text):
                self._say(Stream.STDOUT, self.text)
                self.text = text
                self._spend(event)
            case ToolCalled(tool=tool, call_id=call, arguments=arguments):
                about = argument(parse_event(arguments) or arguments)
                self.log.act(Activity(act=Act.TOOL, tool=tool, text=about, call=call))
            case ToolReturned(tool=tool, call_id=call, error=error):
                text, is_good = (error or event.content), error is None
                self.log.act(Activity(act=Act.RESULT, tool=tool, text=text, call=call, ok=is_good))

    def _spend(self, reply: ModelReplied) -> None:
        spent = {"input_tokens": float(reply.input_tokens), "output_tokens": float(reply.output_tokens)}
        if reply.cost is not None:
            spent["cost_usd"] = float(reply.cost)
        self.usage = sum_usage([self.usage, spent])
        self.on_usage(self.usage)

    def conclude(self, outcome: Reply | ShoalError) -> None:
        if isinstance(outcome, Reply):
            self._say(Stream.STDOUT, outcome.text)
        else:
            self._say(Stream.STDOUT, self.text)
            self._say(Stream.STDERR, str(outcome))

    def _say(self, stream: Stream, text: str) -> None:
        if text:
            self.log.feed(stream, f"{text}\n".encode(errors="replace"))
