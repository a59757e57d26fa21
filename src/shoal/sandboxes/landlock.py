"""The sandbox without namespaces, for hosts that refuse them: Landlock, seccomp, and a launcher."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.errors import Unavailable
from shoal.model.command import Command, InheritedBytes
from shoal.model.policy import NETWORKS, Policy
from shoal.sandboxes.host import TRIAL_TOKEN, HostRoot, SandboxHost, Trial
from shoal.sandboxes.kind import OUTSIDE_CWD, OUTSIDE_ENV, RESOURCES, TRUE, user_shares
from shoal.sandboxes.launcher_command import Lists, launch_command, launcher_argv
from shoal.sandboxes.seccomp import Strength

CONFINES = True
NO_LANDLOCK = "use Linux 6.2 or later with Landlock among its `lsm=`, or pass `--sandbox bubblewrap`"

OLDEST_ABI = 3
SCOPE_ABI = 6
ALSO_READ = (Path("/proc"), Path("/etc/passwd"), Path("/etc/group"))
DEVICES = tuple(Path("/dev") / name for name in ("null", "zero", "full", "random", "urandom"))

# Git fails if its system-wide configuration exists but cannot be read.
WITHOUT_SYSTEM = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}

GAPS = (
    "with the host's network nothing is blocked: TCP, UDP and the host's sockets (docker, ssh-agent) can be reached",
    "the names and commands of the host's processes can be seen, and which files exist",
    "mode, times and attributes of the user's own files (for root: of all) can be changed, though not their content",
    "there is no process namespace: processes that an agent leaves are found and ended one by one",
    "some programs fail: /tmp and /dev/shm cannot be written, and without a network no socket can be made",
    "System V and POSIX queues, shared memory and semaphores by key are refused, and so is the scheduling of other "
    "processes, an agent's own children included: no namespace would keep them apart from the host's",
)
UNSCOPED = "this kernel cannot scope them: signals to the user's other processes, and abstract sockets, are not blocked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Landlock:
    """Files by Landlock, the network by seccomp; *launcher* is the beginning of the launcher's command."""

    launcher: tuple[str, ...]
    abi: int
    filters: Mapping[Strength, bytes] = field(repr=False)
    root: HostRoot = field(repr=False)
    name: str = field(default="landlock", init=False)
    confines: bool = field(default=CONFINES, init=False)
    mounts: bool = field(default=False, init=False)
    can_listen: bool = field(default=False, init=False)
    has_gaps_offline: bool = field(default=True, init=False)
    known_escapes: Set[str] = field(default=frozenset({"process"}), init=False)

    @property
    def version(self) -> str:
        """Name the version of Landlock's interface that the kernel has."""
        return f"Landlock version {self.abi}"

    @property
    def gaps(self) -> tuple[str, ...]:
        """What it does not protect."""
        return GAPS if self.abi >= SCOPE_ABI else (*GAPS, UNSCOPED)

    def wrap(self, command: Command, policy: Policy) -> Command:
        """Confine *command* with Landlock; covers are left out, and user, group and capabilities stay as they are."""
        is_cut_off = not NETWORKS[policy.network].shares_host
        system = (*self.root.folders, *self.root.etc, *(() if is_cut_off else self.root.resolver), *ALSO_READ)
        read = (*system, *policy.read)
        _assert_hidden(policy, (*read, *policy.write))
        lists: Lists = {
            **{"read": read, "write": policy.write, "device": DEVICES, "hidden": policy.hidden},
            "rlimit": [f"{RESOURCES[name]}={most}" for name, most in user_shares().items()],
        }
        program = self.filters[Strength.CUT_OFF if is_cut_off else Strength.CONFINED]
        command = replace(command, env={**WITHOUT_SYSTEM, **command.env})
        return launch_command((*self.launcher, "landlock"), command, policy, lists, InheritedBytes(program))


def _assert_hidden(policy: Policy, shown: tuple[Path, ...]) -> None:
    """Refuse what Landlock cannot do: it allows a directory with everything in it."""
    for hidden in policy.hidden:
        for path in shown:
            if hidden.is_relative_to(path):
                raise Unavailable(
                    f"hiding {hidden}",
                    f"the landlock sandbox shows all of {path}",
                    "move one out of the other, or use the bubblewrap sandbox",
                )


def trials(host: SandboxHost) -> Mapping[str, Command]:
    """Ask the kernel for its version of Landlock, and try the oldest sufficient one."""
    abi = {"abi": Command(argv=(*launcher_argv(host), "abi"), cwd=OUTSIDE_CWD, env=OUTSIDE_ENV)}
    if host.filters is None:
        return abi
    sandbox = Landlock(launcher=launcher_argv(host), abi=OLDEST_ABI, filters=host.filters, root=host.root)
    return {"landlock": sandbox.wrap(TRUE, Policy(token=TRIAL_TOKEN)), **abi}


def build(host: SandboxHost) -> Landlock:
    """Build it from the inspected host; raise `Unavailable` if it does not work."""
    filters = host.require_filters("landlock")
    trial = host.tried.get("abi")
    if trial and trial.code:
        raise Unavailable("the landlock sandbox", f"its launcher failed with {trial.complaint!r}", NO_LANDLOCK)
    abi = _abi(trial)
    if abi < OLDEST_ABI:
        why = f"this kernel has version {abi}, but at least {OLDEST_ABI} is required" if abi else "this kernel has none"
        raise Unavailable("the landlock sandbox", why, NO_LANDLOCK)
    host.assert_passed("landlock", NO_LANDLOCK)
    return Landlock(launcher=launcher_argv(host), abi=abi, filters=filters, root=host.root)


def _abi(trial: Trial | None) -> int:
    printed = trial.stdout.strip() if trial else b""
    return int(printed) if printed.isdigit() else 0
