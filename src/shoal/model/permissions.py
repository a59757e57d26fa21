"""What a session may touch, as a question that a host program can ask."""

import os
from pathlib import Path

from shoal.errors import ShoalError


class AccessDenied(ShoalError):
    """A path outside of what the session may touch."""

    exit_code = 2

    def __init__(self, path: Path) -> None:
        super().__init__(f"Access denied: {path}")
        self.path = path


class PermissionManager:
    """Answers for one workspace; the wall is what enforces it for the agent."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = Path(os.path.realpath(workspace))

    def is_allowed(self, path: str | Path) -> bool:
        """Say whether *path*, with all its links followed, lies in the workspace and not in its `.git`."""
        real = Path(os.path.realpath(self.workspace / path))
        return real.is_relative_to(self.workspace) and not real.is_relative_to(self.workspace / ".git")

    def validate_path(self, path: str | Path) -> Path:
        """Give the real path, or raise `AccessDenied`."""
        if not self.is_allowed(path):
            raise AccessDenied(Path(path))
        return Path(os.path.realpath(self.workspace / path))
