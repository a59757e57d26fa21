"""One turn: run the model and its tools until there is an answer, and publish events."""

import contextlib
import copy
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from pydantic import PydanticUserError, ValidationError
from pydantic_ai import CancellationToken
from pydantic_ai import exceptions as theirs
from pydantic_ai.exceptions import ModelRetry, RunTimedOut, ToolRetryError, UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.output import OutputSpec
from pydantic_ai.usage import RunUsage
from pydantic_graph import End

from shoal.agent.events import Reply, TextArrived, TurnEnded, TurnStarted
from shoal.agent.setup import AgentSetup
from shoal.agent.subscribers import EventCapability, EventDelivery
from shoal.errors import (
    AgentCancelled,
    AgentCrashed,
    AgentError,
    AgentTimedOut,
    AuthenticationFailed,
    BadInput,
    BudgetExceeded,
    ContextTooLong,
    ModelFailed,
    RateLimited,
    ShoalError,
    ToolFailed,
)

PASSING = (
    theirs.ModelUnavailableError,
    theirs.ModelServerError,
    theirs.ModelConnectionError,
)


def to_shoal_error(error: Exception, model: str) -> ShoalError:
    """Return what *error* means for a turn with *model*."""
    match error:
        case ShoalError():
            return error
        case theirs.RunTimedOut() | theirs.ModelTimeoutError():
            return AgentTimedOut()
        case theirs.ModelRequestTimeout():
            return AgentTimedOut(error.timeout)
        case theirs.RunCancelled():
            return AgentCancelled()
        case theirs.ModelAPIError():
            return _of_the_model(error)
        case theirs.UnexpectedModelBehavior():
            return ModelFailed(model, error.message, is_passing=True)
        case theirs.FallbackExceptionGroup():
            return to_shoal_error(error.exceptions[-1], model)
        case theirs.UserError() | PydanticUserError():
            return BadInput(error.message)
        case theirs.AgentRunError():
            return ModelFailed(model, error.message)
        case _:
            return AgentCrashed(error)


def _of_the_model(error: theirs.ModelAPIError) -> AgentError:
    status = error.status_code if isinstance(error, theirs.ModelHTTPError) else None
    match error:
        case theirs.ModelRateLimitError():
            return RateLimited(error.model_name, error.retry_after)
        case theirs.ModelQuotaExceededError():
            return BudgetExceeded("the account", f"{error.model_name} says: {_error_text(error)}")
        case theirs.ModelAuthenticationError():
            return AuthenticationFailed(error.model_name, status)
        case theirs.ModelContextWindowExceededError():
            return ContextTooLong(error.model_name)
        case _:
            return ModelFailed(
                error.model_name,
                _error_text(error),
                status=status,
                is_passing=isinstance(error, PASSING) or status == 408,
            )


def _error_text(error: theirs.ModelAPIError) -> str:
    return error.provider_error_code or error.provider_error_type or error.message


T = TypeVar("T")


class AgentTurn:
    """One run of the model; *spent* is what was used of its budget before."""

    def __init__(
        self,
        setup: AgentSetup,
        history: Sequence[ModelMessage],
        spent: RunUsage,
        telling: EventCapability,
        *,
        timeout: float | None = None,
    ) -> None:
        self._setup = setup
        self._history = history
        self._spent = spent
        self._total = copy.copy(spent)
        self._telling = telling
        self._timeout = timeout
        self._token = CancellationToken()
        self.messages = list(history)

    def cancel(self) -> None:
        """Ask it to stop; this may come from any thread."""
        self._token.cancel()

    @property
    def usage(self) -> RunUsage:
        """What it has used."""
        return self._total - self._spent

    @property
    def is_priced(self) -> bool:
        """Return whether the price of every answer in it is known."""
        return all(message.usage.cost is not None for message in self._new() if isinstance(message, ModelResponse))

    @property
    def cost(self) -> Decimal | None:
        """What it cost, in US dollars."""
        return (self.usage.cost or Decimal(0)) if self.is_priced else None

    def reply(self, text: str) -> Reply:
        """Make the reply of a successful turn."""
        telling = self._telling
        return Reply(
            text=text,
            run_id=telling.run_id,
            agent_id=telling.agent_id,
            usage=self.usage,
            cost=self.cost,
            _messages=tuple(self._new()),
        )

    @contextlib.asynccontextmanager
    async def publish_events(self, text: str | None, post: EventDelivery) -> AsyncIterator[None]:
        """Publish the start and the end of the turn, and translate every error into one of ours."""
        async with post.delivering():
            self._telling.say(TurnStarted, prompt=text)
            try:
                yield
            except Exception as error:
                failure = self._meaning(error)
                self._telling.say(TurnEnded, error=str(failure))
                if failure is error:
                    raise
                raise failure from error
            except BaseException:
                self._telling.say(TurnEnded, error="it was cancelled")
                raise
            self._telling.say(TurnEnded)

    async def answer(self, text: str | None, kind: OutputSpec[T]) -> T:
        """Run it until it ends, and return the model's answer."""
        self._assert_affordable()
        run = None
        wanted: Any = None if kind is str else kind  # text is the default: it needs no schema
        try:
            async with self._setup.core.iter(text, output_type=wanted, **self._terms()) as run:
                node = run.next_node
                while not isinstance(node, End) and run.result is None:
                    node = await run.next(node)
        finally:
            if run is not None:
                self.messages = run.all_messages()
        if run.result is None:
            raise RuntimeError("the run ended without a result")
        output: T = run.result.output
        return output

    async def pieces(self, text: str) -> AsyncGenerator[str, None]:
        """Run it until it ends, and yield the text as it comes."""
        self._assert_affordable()
        events = None
        try:
            async with self._setup.core.run_stream_events(text, **self._terms()) as events:
                async for event in events:
                    if piece := _text_of(event):
                        self._telling.say(TextArrived, text=piece)
                        yield piece
        finally:
            with contextlib.suppress(Exception):  # it may never have started
                if events is not None:
                    self.messages = events.all_messages()

    def _terms(self) -> dict[str, Any]:
        """Return the arguments of a run, however it is driven."""
        return {
            "run_id": self._telling.run_id,
            "message_history": self._history,
            "usage": self._total,
            "usage_limits": self._setup.limits.allowance(self._spent),
            "cancellation_token": self._token,
            "timeout": self._timeout,
            "capabilities": [self._telling] if self._telling.is_heard else None,
            "infer_name": False,
        }

    def _assert_affordable(self) -> None:
        self._setup.limits.assert_can_be_held(self._setup.model)
        if spent := self._setup.limits.first_spent(self._spent):
            raise spent

    def _meaning(self, error: Exception) -> ShoalError:
        match error:
            case UsageLimitExceeded():
                return self._setup.limits.first_passed(self._total)
            case RunTimedOut():
                return AgentTimedOut(self._timeout)
            case UnexpectedModelBehavior(__cause__=ModelRetry() | ToolRetryError() | ValidationError()) if (
                tool := self._last_tool()
            ):
                return ToolFailed(tool, f"the model never got it right: {error.__cause__}")
            case _:
                return to_shoal_error(error, self._setup.model.model_name)

    def _last_tool(self) -> str | None:
        answers = [message for message in self._new() if isinstance(message, ModelResponse)]
        calls = [call.tool_name for call in answers[-1].tool_calls] if answers else []
        return next((tool.name for tool in self._setup.tools if tool.name in calls), None)

    def _new(self) -> list[ModelMessage]:
        return self.messages[len(self._history) :]


def drop_unfinished(history: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the conversation without a truncated answer; raise `BadInput` if nothing is left to continue."""
    found = list(history)
    while found and isinstance(last := found[-1], ModelResponse) and last.state == "interrupted":
        found.pop()
    if not found:
        raise BadInput("there is nothing to continue: the conversation is empty; use `prompt`")
    if isinstance(last := found[-1], ModelResponse) and not last.tool_calls:
        raise BadInput("there is nothing to continue: the model has answered; use `prompt` to say more")
    return found


def new_id() -> str:
    """Make an id for a turn or an agent."""
    return uuid.uuid4().hex[:12]


def _text_of(event: object) -> str:
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text
        case _:
            return ""
