"""A scripted model, for tests without a provider."""

import asyncio
import inspect
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.tools import ToolDefinition

from shoal.errors import BadInput


@dataclass(frozen=True, slots=True)
class Call:
    """A step of the script: the model asks for a tool."""

    tool: str
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class After:
    """A step of the script after a delay."""

    seconds: float
    step: "Step"


Step = str | Call | After | Exception | Sequence[Call]
"""What the model does for one request: return a text, call tools, wait first, or raise."""

Script = Sequence[Step] | Callable[[str, int], Step | Awaitable[Step]]


class ScriptedModel(FunctionModel):
    """Answers from a list of steps, or with a function of the prompt and of the number of its answers so far.

    Its position in a list follows from the conversation alone (one step for each answer in it), so any number of forks
    may share one model. Tokens are estimated; a name with a known price yields a cost.
    """

    def __init__(self, script: Script, *, delay: float = 0.0, name: str = "scripted") -> None:
        super().__init__(self._reply, stream_function=self._stream, model_name=name)
        self._script = script
        self._delay = delay

    async def _reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=_parts(await self._next(messages), info))

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        for number, part in enumerate(_parts(await self._next(messages), info)):
            match part:
                case TextPart(content=text):
                    for word in re.findall(r"\S+\s*|\s+", text):
                        yield word
                case ToolCallPart():
                    name, arguments = part.tool_name, part.args_as_json_str()
                    yield {number: DeltaToolCall(name, arguments, tool_call_id=part.tool_call_id)}

    async def _next(self, messages: Sequence[ModelMessage]) -> Step:
        step = await self._step(messages)
        await asyncio.sleep(self._delay)
        while isinstance(step, After):
            await asyncio.sleep(step.seconds)
            step = step.step
        if isinstance(step, Exception):
            raise step
        return step

    async def _step(self, messages: Sequence[ModelMessage]) -> Step:
        if callable(self._script):
            step = self._script(*_find_prompt(messages))
            return await step if inspect.isawaitable(step) else step
        number = sum(isinstance(message, ModelResponse) for message in messages)
        if number >= len(self._script):
            raise BadInput(f"the script has {len(self._script)} steps, but the model was called once more")
        return self._script[number]


def _find_prompt(messages: Sequence[ModelMessage]) -> tuple[str, int]:
    """Find the latest prompt, and count the answers since."""
    answers = 0
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            answers += 1
        elif text := _prompt_in(message):
            return text, answers
    return "", answers


def _prompt_in(message: ModelRequest) -> str:
    texts = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _parts(step: Step, info: AgentInfo) -> list[ModelResponsePart]:
    match step:
        case str() if info.output_tools and not info.allow_text_output:
            return [_make_typed_answer(step, info.output_tools[0])]
        case str():
            return [TextPart(step)]
        case Call():
            return [_tool_call(step)]
        case _:
            return [_tool_call(call) for call in _calls(step)]


def _make_typed_answer(text: str, tool: ToolDefinition) -> ToolCallPart:
    """Return the JSON in *text* by the tool through which pydantic-ai takes a typed answer."""
    key = tool.outer_typed_dict_key
    return ToolCallPart(tool.name, text if key is None else f"{{{json.dumps(key)}: {text}}}")


def _tool_call(call: Call) -> ToolCallPart:
    arguments: dict[str, Any] = json.loads(json.dumps(dict(call.arguments)))
    return ToolCallPart(call.tool, arguments, tool_call_id=f"call_{uuid.uuid4().hex[:16]}")


def _calls(step: object) -> list[Call]:
    if isinstance(step, Sequence) and step and all(isinstance(call, Call) for call in step):
        return list(step)
    raise BadInput(f"a step of a script is a text, a Call, a list of Calls, an After or an error, not {step!r}")
