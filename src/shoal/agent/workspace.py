"""What an agent's tools need of a workspace: commands run in it, in its sandbox. Whoever opens it is above us."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from shoal.model.permissions import PermissionManager


class CommandOutcome(Protocol):
    """How a command in a workspace ended, and the end of its output."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def output(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def limit(self) -> str | None: ...


class Workspace(Protocol):
    """A private folder in a sandbox, in which commands run."""

    async def run(
        self, command: str | Sequence[str], *, timeout: float | None = None, stdin: bytes | None = None
    ) -> CommandOutcome:
        """Run *command* in the folder, in the sandbox, and wait for it."""
        ...


@runtime_checkable
class Ruled(Protocol):
    """A workspace with rules for tools."""

    @property
    def permission_manager(self) -> PermissionManager: ...


@runtime_checkable
class HasWorkspace(Protocol):
    """What gives a workspace: a session that was opened by a plain `with`."""

    def as_workspace(self) -> Workspace:
        """Return the workspace that tools use."""
        ...


class OpenWorkspace(Protocol):
    """Opens one workspace for each prompt: `lambda index: IsolatedAgentSession(f"prompt-{index}", ".")` does."""

    def __call__(self, index: int, /) -> AbstractAsyncContextManager[Workspace]:
        """Open the workspace of the prompt with *index*; it is closed when that prompt is done."""
        ...
