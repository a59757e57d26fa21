"""An agent's settings: a frozen value that its forks share, and the pydantic-ai agent made from it."""

import asyncio
import dis
import functools
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, TracebackType
from typing import Any, Self

import pydantic_ai
from pydantic_ai import exceptions as theirs
from pydantic_ai.models import Model, infer_model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, Tool
from pydantic_ai.toolsets import FunctionToolset, ToolsetTool, WrapperToolset

from shoal.agent.limits import AgentLimits
from shoal.errors import BadInput, ToolFailed, Unavailable

FOR_THE_MODEL = (
    theirs.ApprovalRequired,
    theirs.CallDeferred,
    theirs.ModelRetry,
    theirs.RunCancelled,
    theirs.SkipToolExecution,
    theirs.ToolFailed,
    theirs.ToolFailedError,
    theirs.ToolRetryError,
)

AgentTool = Tool[None] | Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class AgentSetup:
    """Everything about an agent except its conversation; a change makes a new value."""

    model: Model
    system_prompt: str | None = None
    tools: tuple[Tool[None], ...] = ()
    name: str | None = None
    limits: AgentLimits = field(default_factory=AgentLimits)
    settings: ModelSettings = field(default_factory=ModelSettings)
    tool_retries: int = 3

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if twice := {name for name in names if names.count(name) > 1}:
            raise BadInput(f"two tools are named {sorted(twice)[0]!r}; give one of them another name")

    def with_tools(self, tools: Sequence[AgentTool]) -> Self:
        """Add tools to the agent."""
        return replace(self, tools=(*self.tools, *map(as_tool, tools)))

    @functools.cached_property
    def core(self) -> pydantic_ai.Agent[None, str]:
        """The pydantic-ai agent, which holds no conversation, so all forks can share it."""
        return pydantic_ai.Agent(
            self.model,
            deps_type=type(None),
            instructions=self.system_prompt,
            toolsets=[_NamesFailures(FunctionToolset(self.tools))] if self.tools else None,
            name=self.name,
            model_settings=self.settings,
            retries=self.tool_retries,
        )


def as_model(model: Model | str) -> Model:
    """Find the model by name, or return it as it is."""
    if not isinstance(model, Model | str):
        raise BadInput(f"{model!r:.60} is not a model; give a pydantic-ai model or its name")
    try:
        return infer_model(model)
    except theirs.UserError as error:
        raise BadInput(error.message) from error
    except ImportError as error:
        raise Unavailable(f"the model {model!r}", str(error), "install what it names") from error


def as_tool(tool: AgentTool) -> Tool[None]:
    """Make a tool of a function; its first argument may be a pydantic-ai `RunContext`."""
    if not isinstance(tool, Tool) and not callable(tool):
        raise BadInput(f"{tool!r:.60} is not a tool; give a function or a pydantic-ai `Tool`")
    try:
        return tool if isinstance(tool, Tool) else Tool(tool)
    except theirs.UserError as error:
        raise BadInput(error.message) from error


def as_text(text: object) -> str:
    """Return a prompt, or refuse one that is not a text."""
    if not isinstance(text, str):
        raise BadInput(f"a prompt is a text, not {text!r:.60}")
    return text


class _NamesFailures(WrapperToolset[None]):
    """Names the tool in an error that it raised and that is not meant for the model."""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[None], tool: ToolsetTool[None]
    ) -> Any:  # noqa: ANN401 -- as the base has it
        try:
            return await super().call_tool(name, tool_args, ctx, tool)
        except FOR_THE_MODEL:
            raise
        except BaseException as error:
            # Caught in the task of the tool: a `SystemExit` that leaves a task ends the loop, and every run with it.
            if not is_own(error):
                raise
            raise ToolFailed(name, f"{type(error).__name__}: {error}") from error


def is_own(error: BaseException) -> bool:
    """Return whether the code itself raised *error*, so that it ends only that code."""
    match error:
        case asyncio.CancelledError():
            return False
        case KeyboardInterrupt() | GeneratorExit():
            return _is_raised(error.__traceback__) and not _is_of_a_signal(error.__traceback__)
    return isinstance(error, Exception) or not _is_of_a_signal(error.__traceback__)


def _is_raised(trace: TracebackType | None) -> bool:
    """Return whether a `raise` statement raised it: Python's own interruptions begin at other instructions."""
    frames = list(_frames(trace))
    if not frames:
        return False
    last = frames[-1]
    code = last.tb_frame.f_code.co_code
    return dis.opname[code[last.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def _is_of_a_signal(trace: TracebackType | None) -> bool:
    """Return whether a signal handler raised it: then it concerns the whole program."""
    handlers = set(_handlers())
    return any(frame.tb_frame.f_code in handlers for frame in _frames(trace))


def _handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        handler: object = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        handler = getattr(handler, "__func__", handler)
        code = getattr(handler, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
