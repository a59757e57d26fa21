"""An in-process agent as a member of a run: its model is asked from here, its hands are behind the session's wall."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from shoal.agent import Agent, AgentEvent, AgentLimits, Call, ModelReplied, Reply, ScriptedModel, sandboxed_tools
from shoal.agent.events import ToolCalled, ToolReturned
from shoal.engine.agent_box import note_grants
from shoal.engine.held import OpenSession
from shoal.engine.job import Job
from shoal.engine.lease import Lease
from shoal.engine.site import Site
from shoal.engine.watch import Ended, Ending
from shoal.engine.words import Words
from shoal.errors import AgentCancelled, AgentTimedOut, BadInput, ShoalError, first_of
from shoal.model.agent import AgentSpec
from shoal.model.mind import SCRIPTED, TOOLS, Mind
from shoal.proc import Exit, Stream
from shoal.workspaces.kind import Workspace

PLACE = (
    "You work in a private copy of a git repository, by your tools alone. Paths are from its top. What you change "
    "there is kept as a branch when you give your final answer; nobody can answer questions."
)


async def in_process_run(
    site: Site, job: Job, workspace: Workspace, lease: Lease, words: Words, stop: asyncio.Event
) -> Ended:
    """Give the task to a fork of the agent, whose tools work behind the session's wall."""
    note_grants(site, job)
    hands = OpenSession(site, job, workspace, lease, None)
    voice = _Voice(words)
    try:
        async with _forked(job, hands) as fork:
            fork.subscribe(voice.hear)
            outcome = await _outcome(fork, job, stop, site.grace)
            voice.conclude(outcome)
            return replace(_ended(outcome, words), usage=_usage(fork))
    finally:
        words.close()


def assert_agent(spec: AgentSpec) -> None:
    """Raise `BadInput` or `Unavailable` where *spec* names no model that this program can ask."""
    try:
        _agent(spec)
    except BadInput as error:
        raise BadInput(f"agent {spec.name}: {error}") from error


def _agent(spec: AgentSpec) -> Agent:
    if isinstance(spec.made, Agent):
        return spec.made
    if spec.mind is None:
        raise BadInput(f"{spec.made!r:.60} is no agent; give a `shoal.Agent`, or a mapping with `model`")
    model = spec.mind.model if spec.mind.model != SCRIPTED else _scripted(spec.mind)
    return Agent(model, name=spec.name, limits=_limits(spec.mind))


def _limits(mind: Mind) -> AgentLimits:
    if mind.budget is None:
        return AgentLimits()
    turns = {} if mind.budget.turns is None else {"turns": mind.budget.turns}
    return AgentLimits(tokens=mind.budget.tokens, dollars=mind.budget.dollars, **turns)


def _scripted(mind: Mind) -> ScriptedModel:
    """Make the model that gives the replies of a file."""
    return ScriptedModel([_step(reply) for reply in json.loads(mind.replies or "[]")])


def _step(reply: str | dict[str, dict[str, object]] | list[dict[str, dict[str, object]]]) -> str | list[Call]:
    if isinstance(reply, str):
        return reply
    calls = [reply] if isinstance(reply, dict) else reply
    return [Call(tool, arguments) for call in calls for tool, arguments in call.items()]


@contextlib.asynccontextmanager
async def _forked(job: Job, hands: OpenSession) -> AsyncIterator[Agent]:
    """Give a fork with hands in the session; what it spends is the base's too."""
    spec = job.task.agent
    base = _agent(spec)
    wanted = spec.mind.tools if spec.mind else TOOLS
    setup = base.setup.with_tools([tool for tool in sandboxed_tools(hands) if tool.name in wanted])
    if spec.mind is not None:
        setup = replace(setup, system_prompt="\n\n".join(filter(None, (job.task.system_prompt, PLACE))))
        if spec.mind.temperature is not None:
            setup = replace(setup, settings={**setup.settings, "temperature": spec.mind.temperature})
    async with contextlib.AsyncExitStack() as stack:
        if spec.made is None:  # whoever made an agent closes its connections
            await stack.enter_async_context(base)
        yield stack.enter_context(base.sharing(setup))


async def _outcome(fork: Agent, job: Job, stop: asyncio.Event, grace: float) -> Reply | ShoalError:
    """Ask, until there is an answer, its time is over, or it is told to stop."""
    try:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(_asked(fork, job))
            told = group.create_task(stop.wait())
            await asyncio.wait((asked, told), return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                fork.cancel()
                await asyncio.wait((asked,), timeout=grace)
            for task in (asked, told):
                task.cancel()
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return AgentCancelled() if asked.cancelled() else asked.result()


async def _asked(fork: Agent, job: Job) -> Reply | ShoalError:
    try:
        return await fork.prompt(job.task.prompt, timeout=job.seconds)
    except ShoalError as error:  # whatever it is, it is this agent's failure, and its work is kept
        return error


def _ended(outcome: Reply | ShoalError, words: Words) -> Ended:
    match outcome:
        case Reply():
            return Ended(ending=Ending.BY_ITSELF, exit=Exit(0, None), words=words)
        case AgentCancelled():
            return Ended(ending=Ending.STOP, exit=Exit(None, None), words=words)
        case AgentTimedOut():
            return Ended(ending=Ending.TIME, exit=Exit(None, None), words=words, failure=str(outcome))
        case _:
            return Ended(ending=Ending.BY_ITSELF, exit=Exit(1, None), words=words, failure=str(outcome))


def _usage(fork: Agent) -> dict[str, float]:
    used = fork.usage
    tokens: dict[str, float] = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
    return tokens if fork.cost is None else {**tokens, "cost_usd": float(fork.cost)}


@dataclass
class _Voice:
    """Turns what the agent does into words: its texts are its output, its tools are told beside."""

    words: Words
    text: str = ""
    """What it said last, which is said again in full if it was its answer."""

    def hear(self, event: AgentEvent) -> None:
        match event:
            case ModelReplied(text=text):
                self._say(Stream.STDOUT, self.text)
                self.text = text
            case ToolCalled(tool=tool, arguments=arguments):
                self._say(Stream.STDERR, f"{tool} {arguments}")
            case ToolReturned(tool=tool, error=str(error)):
                self._say(Stream.STDERR, f"{tool} failed: {error}")

    def conclude(self, outcome: Reply | ShoalError) -> None:
        if isinstance(outcome, Reply):
            self._say(Stream.STDOUT, outcome.text)
        else:
            self._say(Stream.STDOUT, self.text)
            self._say(Stream.STDERR, str(outcome))

    def _say(self, stream: Stream, text: str) -> None:
        if text:
            self.words.feed(stream, f"{text}\n".encode(errors="replace"))
