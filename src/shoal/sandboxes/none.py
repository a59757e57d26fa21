"""No sandbox, if requested by name: only processes that an agent leaves behind are still ended."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from shoal.model.command import Command
from shoal.model.policy import Policy
from shoal.sandboxes.host import SandboxHost
from shoal.sandboxes.kind import ready_line
from shoal.sandboxes.launcher_command import assert_no_layers, launch_command, launcher_argv

CONFINES = False

# $1 is the line that `SandboxCheck` waits for.
SAY = 'echo "$1" >&2; shift; exec "$@"'
# A shell drops variables with unusual names and sets some of its own; variables for the linker must not reach it.
PLAIN = re.compile(r"(?:(?!(?:LD_\w*|IFS|OPTIND|PPID|PWD)(?: |$))[A-Za-z_][A-Za-z0-9_]*(?: |$))*")
GAPS = ("nothing is protected: the agent can read, write and reach all that you can",)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSandbox:
    """Runs a command as it is; *launcher* is the beginning of the launcher's command."""

    launcher: tuple[str, ...]
    name: str = field(default="none", init=False)
    confines: bool = field(default=CONFINES, init=False)
    mounts: bool = field(default=False, init=False)
    can_listen: bool = field(default=False, init=False)
    has_gaps_offline: bool = field(default=True, init=False)
    gaps: tuple[str, ...] = field(default=GAPS, init=False)
    version: str = field(default="none", init=False)
    known_escapes: Set[str] = field(default=frozenset(), init=False)

    def wrap(self, command: Command, policy: Policy) -> Command:
        """Let the launcher run *command* and end what it leaves; a shell, ten times as fast, if a guard does that."""
        if not policy.is_guarded or not PLAIN.fullmatch(" ".join(command.env)):
            return launch_command((*self.launcher, "none"), command, policy, {})
        assert_no_layers(policy)
        line = ready_line(policy.token).decode().rstrip("\n")
        return replace(command, argv=("/bin/sh", "-c", SAY, "sh", line, *command.argv))


def trials(host: SandboxHost) -> Mapping[str, Command]:
    """Return no trial: this kind works everywhere."""
    return {}


def build(host: SandboxHost) -> NoSandbox:
    """Build it from what was found."""
    return NoSandbox(launcher=launcher_argv(host))
