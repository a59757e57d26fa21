"""Commands that the launcher runs: rights and variables are passed on a descriptor, not in argv."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from shoal.errors import Unavailable
from shoal.model.command import Argument, Command, InheritedBytes, ReportPipe
from shoal.model.policy import Policy
from shoal.sandboxes.host import SandboxHost
from shoal.sandboxes.kind import OUTSIDE_CWD, OUTSIDE_ENV, nul_separated

Lists = Mapping[str, Iterable[str | Path]]


def launcher_argv(host: SandboxHost) -> tuple[str, ...]:
    """Return the beginning of the launcher's command."""
    return (str(host.python), "-I", "-S", str(host.launcher))


def launch_command(words: tuple[str, ...], command: Command, policy: Policy, lists: Lists, *more: Argument) -> Command:
    """Run *command* with the launcher whose command begins with *words*."""
    assert_no_layers(policy)
    order = (
        *("token", policy.token, "cwd", command.cwd, "network", policy.network.value),
        *(word for name, value in command.env.items() for word in ("env", f"{name}={value}")),
        *(word for key, values in lists.items() for value in values for word in (key, value)),
    )
    argv = (*words, InheritedBytes(nul_separated(order)), ReportPipe("info"), *more, "--", *command.argv)
    return Command(argv=argv, cwd=OUTSIDE_CWD, env=OUTSIDE_ENV, stdin=command.stdin)


def assert_no_layers(policy: Policy) -> None:
    """Refuse what a sandbox without mounts cannot show."""
    if policy.layers is not None:
        raise Unavailable(
            "an overlay in the sandbox", "this kind of sandbox cannot mount", "use `isolation_strategy: worktree`"
        )
