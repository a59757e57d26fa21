"""Shoal runs many AI coding agents at once on one git repository, and brings their work back safely."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.engine.isolated import CommandResult, IsolatedAgentSession
    from shoal.errors import ShoalError
    from shoal.model.limits import ResourceLimits
    from shoal.model.permissions import AccessDenied, PermissionManager
    from shoal.model.results import RunReport, StepResult, WorkerResult
    from shoal.model.status import Status
    from shoal.model.task import AgentSpec, Plan, Step, Task

__version__ = "0.1.0"

# Where each public name lives: it is imported when it is first used, so that `import shoal` costs nothing.
_HOMES = {
    "AccessDenied": "shoal.model.permissions",
    "AgentSpec": "shoal.model.task",
    "CommandResult": "shoal.engine.isolated",
    "IsolatedAgentSession": "shoal.engine.isolated",
    "PermissionManager": "shoal.model.permissions",
    "Plan": "shoal.model.task",
    "ResourceLimits": "shoal.model.limits",
    "RunReport": "shoal.model.results",
    "ShoalError": "shoal.errors",
    "Status": "shoal.model.status",
    "Step": "shoal.model.task",
    "StepResult": "shoal.model.results",
    "Task": "shoal.model.task",
    "WorkerResult": "shoal.model.results",
}

__all__ = [
    "AccessDenied",
    "AgentSpec",
    "CommandResult",
    "IsolatedAgentSession",
    "PermissionManager",
    "Plan",
    "ResourceLimits",
    "RunReport",
    "ShoalError",
    "Status",
    "Step",
    "StepResult",
    "Task",
    "WorkerResult",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
