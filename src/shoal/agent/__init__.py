"""The in-process agent, on pydantic-ai: prompt, fork, run_parallel_prompts, tools, events.

Start at `agent.py`, the `Agent` that users create; `turn.py` runs one turn of it, `parallel.py` many agents at once.
`sandboxed.py` makes its tools for a sandbox, and `events.py` lists what subscribers get. `scripted.py` is a model for
tests.
"""

from shoal.errors import Unavailable

try:
    import pydantic_ai  # noqa: F401
except ImportError as missing:
    raise Unavailable("shoal.Agent", "pydantic-ai is not installed", "run: pip install 'shoal[agent]'") from missing

from shoal.agent.agent import Agent
from shoal.agent.events import (
    AgentEvent,
    ModelReplied,
    Reply,
    TextArrived,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnStarted,
    Warned,
)
from shoal.agent.limits import AgentLimits
from shoal.agent.parallel import Answer, Outcome, Prompt
from shoal.agent.sandboxed import CommandOutcome, OpenWorkspace, Workspace, sandboxed_tools
from shoal.agent.scripted import After, Call, ScriptedModel
from shoal.patterns.outcome import Err, Ok

__all__ = [
    "After",
    "Agent",
    "AgentEvent",
    "AgentLimits",
    "Answer",
    "Call",
    "CommandOutcome",
    "Err",
    "ModelReplied",
    "Ok",
    "OpenWorkspace",
    "Outcome",
    "Prompt",
    "Reply",
    "ScriptedModel",
    "TextArrived",
    "ToolCalled",
    "ToolReturned",
    "TurnEnded",
    "TurnStarted",
    "Warned",
    "Workspace",
    "sandboxed_tools",
]
