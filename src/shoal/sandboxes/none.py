"""No wall at all, for those who ask for it by name: only what an agent leaves running is still ended."""

from dataclasses import dataclass, field

from shoal.model.command import Command
from shoal.model.policy import Policy
from shoal.sandboxes.order import launched

GAPS = ("nothing is held: the agent can read, write and reach all that you can",)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoWall:
    """Runs a command as it is; *launcher* is the beginning of the launcher's command."""

    launcher: tuple[str, ...]
    name: str = field(default="none", init=False)
    mounts: bool = field(default=False, init=False)
    gaps: tuple[str, ...] = field(default=GAPS, init=False)

    def wrap(self, command: Command, policy: Policy) -> Command:
        """Let the launcher run *command*; of the policy only the token counts."""
        return launched((*self.launcher, "none"), command, policy, {})
