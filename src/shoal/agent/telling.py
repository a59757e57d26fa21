"""Telling a turn's events: the hooks through which pydantic-ai says what the model and the tools do."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext, ToolDefinition

from shoal.agent.events import AgentEvent, ModelReplied, ToolCalled, ToolReturned, said
from shoal.agent.subscribers import Post


class Telling(AbstractCapability[None]):
    """Makes events that say which turn of which agent they are of."""

    def __init__(self, post: Post, *, run_id: str, agent_id: str, parent_id: str | None) -> None:
        self._post = post
        self.is_heard = bool(post)
        self.run_id = run_id
        self.agent_id = agent_id
        self.parent_id = parent_id

    def say(self, kind: Callable[..., AgentEvent], **facts: object) -> None:
        """Tell the subscribers, if there are any."""
        if self.is_heard:
            origin = {"run_id": self.run_id, "agent_id": self.agent_id, "parent_id": self.parent_id}
            self._post.say(kind(**origin, **facts))

    async def after_model_request(
        self, ctx: RunContext[None], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Tell of an answer of the model's."""
        used = response.usage
        self.say(
            ModelReplied,
            text=said(response.text or ""),
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cost=used.cost,
        )
        return response

    async def wrap_tool_execute(
        self,
        ctx: RunContext[None],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[object]],
    ) -> object:
        """Tell of a tool's call and of its end."""
        which = {"tool": call.tool_name, "call_id": call.tool_call_id}
        self.say(ToolCalled, **which, arguments=said(call.args_as_json_str()))
        try:
            result = await handler(args)
        except Exception as error:
            self.say(ToolReturned, **which, content="", error=said(error))
            raise
        self.say(ToolReturned, **which, content=said(result))
        return result
