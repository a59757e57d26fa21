"""Run several prompts at once, each on its own fork and with its own outcome, in a sliding window."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RunUsage

from shoal.agent.events import Reply
from shoal.agent.sandboxed import OpenWorkspace, Workspace, sandboxed_tools
from shoal.agent.setup import AgentSetup, as_model, as_text, is_own
from shoal.errors import AgentCancelled, AgentCrashed, AgentError, BadInput
from shoal.patterns.flow import stream
from shoal.patterns.limiter import Limiter
from shoal.patterns.outcome import Cancelled, Err, Ok
from shoal.patterns.source import Source

if TYPE_CHECKING:
    from shoal.agent.agent import Agent


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of several prompts, with its own settings."""

    text: str
    _: KW_ONLY
    model: Model | str | None = None
    system_prompt: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None

    def on(self, setup: AgentSetup) -> AgentSetup:
        """Return the setup of the agent that answers the prompt."""
        if self == Prompt(self.text, timeout=self.timeout):
            return setup  # shared, and with it the pydantic-ai agent
        settings: ModelSettings = {**setup.settings}
        if self.temperature is not None:
            settings["temperature"] = self.temperature
        if self.max_tokens is not None:
            settings["max_tokens"] = self.max_tokens
        model = setup.model if self.model is None else as_model(self.model)
        system_prompt = setup.system_prompt if self.system_prompt is None else self.system_prompt
        return replace(setup, model=model, system_prompt=system_prompt, settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of the prompt with *index*; its *fork* can be prompted again, its *workspace* is closed already."""

    index: int
    reply: Reply
    fork: "Agent" = field(repr=False)
    workspace: Workspace | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """The model's answer."""
        return self.reply.text

    @property
    def messages(self) -> list[ModelMessage]:
        """Copy the messages of this turn."""
        return self.reply.messages

    @property
    def usage(self) -> RunUsage:
        """What it used."""
        return self.reply.usage


Outcome = Ok[Answer] | Err
Prompts = Iterable[str | Prompt] | AsyncIterable[str | Prompt]


class ParallelPrompts:
    """Prompts that forks of *base* answer."""

    def __init__(self, base: "Agent", *, timeout: float | None, workspace: OpenWorkspace | None) -> None:
        self._base = base
        self._timeout = timeout
        self._workspace = workspace
        self._live: set[Agent] = set()
        self._is_cancelled = False

    def cancel(self) -> None:
        """Cancel all that run, and start no more."""
        self._is_cancelled = True
        for fork in tuple(self._live):
            fork.cancel()

    async def outcomes(self, prompts: Prompts, width: int) -> AsyncGenerator[Outcome, None]:
        """Yield outcomes in the order of completion; take *prompts* as slots become free."""
        # Only workspaces burden this host: they share the limit of the process, requests to a model do not.
        limiter = None if self._workspace else Limiter(width)
        settled = stream(self._to_answer, _number_prompts(prompts), limit=width, limiter=limiter)
        async with contextlib.aclosing(settled) as outcomes:
            async for outcome in outcomes:
                match outcome:
                    case Cancelled(index):
                        yield Err(AgentCancelled().of_prompt(index), index)
                    case _:
                        yield outcome

    async def _to_answer(self, numbered: tuple[int, str | Prompt]) -> Answer:
        index, prompt = numbered
        try:
            return await self._answer(index, prompt if isinstance(prompt, Prompt) else Prompt(as_text(prompt)))
        except AgentError as error:
            error.of_prompt(index)
            raise
        except BaseException as error:
            if not is_own(error):
                raise
            raise AgentCrashed(error).of_prompt(index) from error

    async def _answer(self, index: int, prompt: Prompt) -> Answer:
        setup = prompt.on(self._base.setup)
        async with self._opened(index) as workspace:
            if workspace is not None:
                setup = setup.with_tools(sandboxed_tools(workspace))
            with self._base.sharing(setup) as fork, self._stoppable(fork):
                timeout = self._timeout if prompt.timeout is None else prompt.timeout
                reply = await fork.prompt(prompt.text, timeout=timeout)
        return Answer(index=index, reply=reply, fork=fork, workspace=workspace)

    @contextlib.asynccontextmanager
    async def _opened(self, index: int) -> AsyncIterator[Workspace | None]:
        if self._is_cancelled:
            raise AgentCancelled
        if self._workspace is None:
            yield None
        else:
            async with self._workspace(index) as workspace:
                yield workspace

    @contextlib.contextmanager
    def _stoppable(self, fork: "Agent") -> Iterator[None]:
        if self._is_cancelled:
            raise AgentCancelled
        self._live.add(fork)
        try:
            yield
        finally:
            self._live.discard(fork)


def _number_prompts(prompts: Prompts) -> Source[tuple[int, str | Prompt]]:
    if isinstance(prompts, AsyncIterable):
        return _count_prompts(prompts)
    if isinstance(prompts, str) or not isinstance(prompts, Iterable):
        raise BadInput(f"{prompts!r:.60} is not a list of prompts; give several texts")
    return enumerate(prompts)


async def _count_prompts(prompts: AsyncIterable[str | Prompt]) -> AsyncIterator[tuple[int, str | Prompt]]:
    index = 0
    async for prompt in prompts:
        yield index, prompt
        index += 1
