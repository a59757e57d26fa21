"""The in-process agent: one conversation with a model that may use tools."""

import contextlib
import copy
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from types import TracebackType
from typing import Any, TypeVar

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RunUsage

from shoal.agent.events import Reply, Warned
from shoal.agent.limits import AgentLimits, as_seconds
from shoal.agent.parallel import Outcome, ParallelPrompts, Prompts
from shoal.agent.sandboxed import OpenWorkspace
from shoal.agent.setup import AgentSetup, AgentTool, as_model, as_text
from shoal.agent.subscribers import EventCapability, EventDelivery, Handler, Subscription
from shoal.agent.turn import AgentTurn, drop_unfinished, new_id
from shoal.errors import BadInput

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


class Agent:
    """One conversation with *model*, which is a pydantic-ai model or the name of one.

    An agent answers one prompt at a time; for several at once, `fork` it or use `run_parallel_prompts`. When a turn
    fails, what was done stays in its history, and `continue_turn` continues from there.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        system_prompt: str | None = None,
        tools: Sequence[AgentTool] = (),
        name: str | None = None,
        limits: AgentLimits | None = None,
        settings: ModelSettings | None = None,
        tool_retries: int = 3,
    ) -> None:
        setup = AgentSetup(
            model=as_model(model),
            system_prompt=system_prompt,
            name=name,
            limits=limits or AgentLimits(),
            settings=copy.deepcopy(settings) if settings else ModelSettings(),
            tool_retries=tool_retries,
        )
        self._begin(setup.with_tools(tools))

    def _begin(
        self,
        setup: AgentSetup,
        parent_id: str | None = None,
        history: Iterable[ModelMessage] = (),
        subscriptions: Iterable[Subscription] = (),
    ) -> None:
        self.id = new_id()
        self.parent_id = parent_id
        self.setup = setup
        self._history = list(history)
        self._subscriptions = list(subscriptions)
        self._usage = RunUsage()
        self._carried = RunUsage()  # what others have spent of the shared budget
        self._is_priced = True
        self._turn: AgentTurn | None = None
        self._fanouts: set[ParallelPrompts] = set()

    async def prompt(self, text: str, *, timeout: float | None = None) -> Reply:
        """Send *text* to the model, run the tools that it calls, and return its answer."""
        async with self._turning(as_text(text), timeout) as turn:
            return turn.reply(await turn.answer(text, str))

    async def continue_turn(self, *, timeout: float | None = None) -> Reply:
        """Continue the conversation as it is: after a failure, or after `append_message`.

        A truncated answer is requested again.
        """
        self._assert_idle()
        self._history = drop_unfinished(self._history)
        async with self._turning(None, timeout) as turn:
            return turn.reply(await turn.answer(None, str))

    async def prompt_json(self, text: str, type: type[T], *, timeout: float | None = None) -> T:
        """Send *text* to the model and return its answer as a validated value of *type*."""
        async with self._turning(as_text(text), timeout) as turn:
            return await turn.answer(text, type)

    async def stream(self, text: str, *, timeout: float | None = None) -> AsyncGenerator[str, None]:
        """Send *text* to the model and yield its answer as it comes; leaving the loop early cancels the turn."""
        async with self._turning(as_text(text), timeout) as turn, contextlib.aclosing(turn.pieces(text)) as pieces:
            async for piece in pieces:
                yield piece

    async def __aenter__(self) -> "Agent":
        """Keep the model's connections until the block exits; without one, they are closed when the program ends."""
        await self.setup.model.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the model's connections."""
        await self.setup.model.__aexit__(kind, error, trace)

    def cancel(self) -> None:
        """Cancel its turn, and the prompts of its `run_parallel_prompts`, with `AgentCancelled`."""
        for running in (self._turn, *self._fanouts):
            if running is not None:
                running.cancel()

    def fork(self) -> "Agent":
        """Return an agent that continues alone from here: same model, tools, limits and subscribers, own messages."""
        return self._fork(self.setup)

    async def run_parallel_prompts(
        self,
        prompts: Prompts,
        max_parallel_runs: int = 3,
        *,
        timeout: float | None = None,
        workspace: OpenWorkspace | None = None,
    ) -> list[Outcome]:
        """Answer each prompt on a fork, several at once, and return `Ok` or `Err` for each, in the order of *prompts*.

        A failure affects only its prompt. This conversation does not change; the forks' usage is added to its own. With
        *workspace*, each fork works in a workspace of its own, with the tools `read`, `write`, `edit`, `list`, `search`
        and `shell` in its sandbox.
        """
        outcomes = self.stream_parallel_prompts(prompts, max_parallel_runs, timeout=timeout, workspace=workspace)
        return sorted([outcome async for outcome in outcomes], key=lambda outcome: outcome.index)

    async def stream_parallel_prompts(
        self,
        prompts: Prompts,
        max_parallel_runs: int = 3,
        *,
        timeout: float | None = None,
        workspace: OpenWorkspace | None = None,
    ) -> AsyncGenerator[Outcome, None]:
        """Yield the outcomes of `run_parallel_prompts` as they come, each with its index.

        *prompts* are taken only as there is room, and the next one starts when an outcome is taken.
        """
        fanout = ParallelPrompts(self, timeout=as_seconds(timeout), workspace=workspace)
        self._fanouts.add(fanout)
        try:
            width = await self._width(max_parallel_runs)
            async with contextlib.aclosing(fanout.outcomes(prompts, width)) as outcomes:
                async for outcome in outcomes:
                    yield outcome
        finally:
            self._fanouts.discard(fanout)

    @property
    def messages(self) -> list[ModelMessage]:
        """Return a copy of the conversation."""
        return copy.deepcopy(self._history)

    def append_message(self, message: ModelMessage) -> None:
        """Put *message* at the end of the conversation."""
        self.replace_messages([*self._history, message])

    def replace_messages(self, messages: Iterable[ModelMessage]) -> None:
        """Replace the conversation by *messages*."""
        self._assert_idle()
        self._history = copy.deepcopy(list(messages))

    def tool(self, function: Function) -> Function:
        """Register *function* as a tool, as a decorator; its docstring describes it to the model."""
        self.add_tool(function)
        return function

    def add_tool(self, tool: AgentTool) -> None:
        """Register a function or a pydantic-ai `Tool`, for this agent and its later forks."""
        self.setup = self.setup.with_tools([tool])

    @property
    def tools(self) -> tuple[str, ...]:
        """Name the tools."""
        return tuple(tool.name for tool in self.setup.tools)

    @property
    def name(self) -> str | None:
        """The name that it was given."""
        return self.setup.name

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Call *handler* with every event of this agent and its later forks; the returned function stops that.

        A handler may be a coroutine function. It runs on the loop beside the turn, so a plain function must not block.
        """
        if not callable(handler):
            raise BadInput(f"{handler!r:.60} is not a handler; give a function that takes an event")
        subscription = Subscription(handler)
        self._subscriptions.append(subscription)
        return subscription.cancel

    @property
    def dropped_events(self) -> int:
        """Count the events that slow subscribers missed."""
        return sum(subscription.dropped for subscription in self._subscriptions)

    @property
    def subscriber_errors(self) -> int:
        """Count the errors that subscribers raised."""
        return sum(subscription.errors for subscription in self._subscriptions)

    @property
    def usage(self) -> RunUsage:
        """Return a copy of the usage so far, including the forks of `run_parallel_prompts`."""
        return copy.copy(self._usage)

    @property
    def cost(self) -> Decimal | None:
        """The cost so far in US dollars; `None` if the price of an answer is unknown."""
        return (self._usage.cost or Decimal(0)) if self._is_priced else None

    @contextlib.contextmanager
    def sharing(self, setup: AgentSetup) -> Iterator["Agent"]:
        """Return a fork that spends from this agent's budget."""
        fork = self._fork(setup)
        fork._carried = self._carried + self._usage
        try:
            yield fork
        finally:
            self._spend(fork._usage, is_priced=fork._is_priced)

    def _fork(self, setup: AgentSetup) -> "Agent":
        twin = object.__new__(Agent)
        twin._begin(setup, self.id, copy.deepcopy(self._history), self._subscriptions)
        return twin

    async def _width(self, max_parallel_runs: int) -> int:
        """Replace an invalid width by 1, with a warning."""
        if not isinstance(max_parallel_runs, int):
            raise BadInput(f"max_parallel_runs is {max_parallel_runs!r:.40}; give a whole number")
        if max_parallel_runs >= 1:
            return max_parallel_runs
        text = f"max_parallel_runs is {max_parallel_runs}; one prompt at a time is run"
        warnings.warn(text, stacklevel=3)
        post = EventDelivery(self._subscriptions)
        async with post.delivering():
            self._telling(post).say(Warned, text=text)
        return 1

    def _telling(self, post: EventDelivery) -> EventCapability:
        return EventCapability(post, run_id=new_id(), agent_id=self.id, parent_id=self.parent_id)

    @contextlib.asynccontextmanager
    async def _turning(self, text: str | None, timeout: float | None) -> AsyncIterator[AgentTurn]:
        self._assert_idle()
        post = EventDelivery(self._subscriptions)
        bounds = (as_seconds(timeout), self.setup.limits.seconds)
        seconds = min((bound for bound in bounds if bound is not None), default=None)
        turn = AgentTurn(self.setup, self._history, self._carried + self._usage, self._telling(post), timeout=seconds)
        self._turn = turn
        try:
            async with turn.publish_events(text, post):
                yield turn
        finally:
            self._turn = None
            self._history = turn.messages
            self._spend(turn.usage, is_priced=turn.is_priced)

    def _spend(self, usage: RunUsage, *, is_priced: bool) -> None:
        self._usage = self._usage + usage
        self._is_priced &= is_priced

    def _assert_idle(self) -> None:
        if self._turn is not None:
            raise BadInput(
                f"agent {self.id} is already in a turn; await it, or `fork` the agent to run several turns at once"
            )
