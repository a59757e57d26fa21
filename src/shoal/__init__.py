"""Shoal runs many AI coding agents at once on one git repository, and brings their work back safely."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.agent import Agent, AgentEvent, AgentLimits, Answer, Prompt, Reply, ScriptedModel, sandboxed_tools
    from shoal.errors import (
        AgentCancelled,
        AgentCrashed,
        AgentError,
        AgentTimedOut,
        AllFailed,
        AuthenticationFailed,
        BadInput,
        BudgetExceeded,
        ContextTooLong,
        MaxTurns,
        ModelFailed,
        QuorumMissed,
        RateLimited,
        ShoalError,
        TimedOut,
        ToolFailed,
        Unavailable,
    )
    from shoal.model.agent import AgentSpec
    from shoal.model.limits import ResourceLimits
    from shoal.model.merge import Conflict, MergeReport, MergeResult, Preview
    from shoal.model.permissions import AccessDenied, PermissionManager, Permissions
    from shoal.model.plan import Plan, Step
    from shoal.model.policy import Network
    from shoal.model.results import AgentFailed, RunReport, StepResult, WorkerResult
    from shoal.model.retry import Retry
    from shoal.model.status import Status
    from shoal.model.task import Task
    from shoal.patterns import AgentPool, Limiter
    from shoal.patterns.outcome import Cancelled, Err, Ok
    from shoal.runs.coordinator import AgentCoordinator
    from shoal.runs.isolated_session import IsolatedAgentSession
    from shoal.sessions.command_session import CommandResult

__version__ = "0.1.0"

# Where each public name lives: it is imported when it is first used, so that `import shoal` costs nothing.
_HOMES = {
    "AccessDenied": "shoal.model.permissions",
    "Agent": "shoal.agent",
    "AgentCancelled": "shoal.errors",
    "AgentCoordinator": "shoal.runs.coordinator",
    "AgentCrashed": "shoal.errors",
    "AgentError": "shoal.errors",
    "AgentEvent": "shoal.agent",
    "AgentFailed": "shoal.model.results",
    "AgentLimits": "shoal.agent",
    "AgentPool": "shoal.patterns",
    "AgentSpec": "shoal.model.agent",
    "AgentTimedOut": "shoal.errors",
    "AllFailed": "shoal.errors",
    "Answer": "shoal.agent",
    "AuthenticationFailed": "shoal.errors",
    "BadInput": "shoal.errors",
    "BudgetExceeded": "shoal.errors",
    "Cancelled": "shoal.patterns.outcome",
    "CommandResult": "shoal.sessions.command_session",
    "Conflict": "shoal.model.merge",
    "ContextTooLong": "shoal.errors",
    "Err": "shoal.patterns.outcome",
    "IsolatedAgentSession": "shoal.runs.isolated_session",
    "Limiter": "shoal.patterns",
    "MaxTurns": "shoal.errors",
    "MergeReport": "shoal.model.merge",
    "MergeResult": "shoal.model.merge",
    "ModelFailed": "shoal.errors",
    "Network": "shoal.model.policy",
    "Ok": "shoal.patterns.outcome",
    "PermissionManager": "shoal.model.permissions",
    "Permissions": "shoal.model.permissions",
    "Plan": "shoal.model.plan",
    "Preview": "shoal.model.merge",
    "Prompt": "shoal.agent",
    "QuorumMissed": "shoal.errors",
    "RateLimited": "shoal.errors",
    "Reply": "shoal.agent",
    "ResourceLimits": "shoal.model.limits",
    "Retry": "shoal.model.retry",
    "RunReport": "shoal.model.results",
    "ScriptedModel": "shoal.agent",
    "ShoalError": "shoal.errors",
    "Status": "shoal.model.status",
    "Step": "shoal.model.plan",
    "StepResult": "shoal.model.results",
    "Task": "shoal.model.task",
    "TimedOut": "shoal.errors",
    "ToolFailed": "shoal.errors",
    "Unavailable": "shoal.errors",
    "WorkerResult": "shoal.model.results",
    "sandboxed_tools": "shoal.agent",
}

__all__ = [
    "AccessDenied",
    "Agent",
    "AgentCancelled",
    "AgentCoordinator",
    "AgentCrashed",
    "AgentError",
    "AgentEvent",
    "AgentFailed",
    "AgentLimits",
    "AgentPool",
    "AgentSpec",
    "AgentTimedOut",
    "AllFailed",
    "Answer",
    "AuthenticationFailed",
    "BadInput",
    "BudgetExceeded",
    "Cancelled",
    "CommandResult",
    "Conflict",
    "ContextTooLong",
    "Err",
    "IsolatedAgentSession",
    "Limiter",
    "MaxTurns",
    "MergeReport",
    "MergeResult",
    "ModelFailed",
    "Network",
    "Ok",
    "PermissionManager",
    "Permissions",
    "Plan",
    "Preview",
    "Prompt",
    "QuorumMissed",
    "RateLimited",
    "Reply",
    "ResourceLimits",
    "Retry",
    "RunReport",
    "ScriptedModel",
    "ShoalError",
    "Status",
    "Step",
    "StepResult",
    "Task",
    "TimedOut",
    "ToolFailed",
    "Unavailable",
    "WorkerResult",
    "__version__",
    "patterns",
    "sandboxed_tools",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    import importlib

    if name == "patterns":
        return importlib.import_module("shoal.patterns")
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names, though none is imported yet."""
    return sorted(__all__)
