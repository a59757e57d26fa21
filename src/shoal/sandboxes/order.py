"""An order for the launcher: what it is to run and to allow, as words on a descriptor."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from shoal.errors import Unavailable
from shoal.model.command import Argument, Command, Given, ReportPipe
from shoal.model.policy import Policy
from shoal.sandboxes.kind import OUTSIDE_CWD, OUTSIDE_ENV, nul_separated

Lists = Mapping[str, Iterable[str | Path]]


def launch_command(words: tuple[str, ...], command: Command, policy: Policy, lists: Lists, *more: Argument) -> Command:
    """Run *command* by the launcher that *words* begin; *lists* and the variables stay out of argv."""
    assert_no_layers(policy)
    order = (
        *("token", policy.token, "cwd", command.cwd, "network", policy.network.value),
        *(word for name, value in command.env.items() for word in ("env", f"{name}={value}")),
        *(word for key, values in lists.items() for value in values for word in (key, value)),
    )
    argv = (*words, Given(nul_separated(order)), ReportPipe("info"), *more, "--", *command.argv)
    return Command(argv=argv, cwd=OUTSIDE_CWD, env=OUTSIDE_ENV, stdin=command.stdin)


def assert_no_layers(policy: Policy) -> None:
    """Refuse what a wall without mounts cannot show."""
    if policy.layers is not None:
        raise Unavailable("an overlay in the box", "this wall cannot mount", "use `isolation_strategy: worktree`")
