"""The wall of namespaces: bubblewrap with one frozen set of flags, looked at from inside before the agent starts."""

from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import Unavailable
from shoal.model.command import Argument, Command, Given, Report
from shoal.model.policy import Layers, Network, Policy
from shoal.sandboxes import inside
from shoal.sandboxes.host import HostRoot
from shoal.sandboxes.kind import OUTSIDE_CWD, OUTSIDE_ENV, RootLayers, nul_separated
from shoal.sandboxes.view import View

FLAGS = (
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--disable-userns"),
    *("--new-session", "--die-with-parent", "--hostname", "shoal", "--cap-drop", "ALL"),
)

# In the shell's words: $1 token, $2 options, $3 target, and then the box's own command.
MOUNT_LAYERS = r"""
mount -t overlay overlay -o "$2" -- "$3" || { printf 'shoal-wall-broken %s layers\n' "$1" >&2; exit 125; }
shift 3
exec "$@"
"""

# A namespace for the mount, of which the host's hears nothing.
APART = ("-m", "--propagation", "private")
APART_AS_USER = ("-Urm",)

LOOPBACK = "with the host's network, what listens on the host's own addresses can be reached"
ABSTRACT = "with the host's network, abstract sockets of the host can be reached: this kernel cannot scope them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """Namespaces for everything, no capabilities, a seccomp filter, and a root of which only what is named exists.

    *launcher* is the beginning of a command that shuts abstract sockets off where the network is the host's.
    """

    bwrap: Path
    unshare: Path | None
    seccomp: bytes = field(repr=False)
    launcher: tuple[str, ...] | None
    root: HostRoot = field(repr=False)
    name: str = field(default="bubblewrap", init=False)
    mounts: bool = field(default=True, init=False)

    @property
    def gaps(self) -> tuple[str, ...]:
        """Say what stays open."""
        return (LOOPBACK,) if self.launcher else (LOOPBACK, ABSTRACT)

    def wrap(self, command: Command, policy: Policy) -> Command:
        """Put *command* into a box; raise `BadInput` where the policy contradicts itself."""
        argv = (*self._scope(policy.network), *self._layers(policy), *self._box(command, policy))
        return Command(argv=argv, cwd=OUTSIDE_CWD, env=OUTSIDE_ENV, stdin=command.stdin)

    def _box(self, command: Command, policy: Policy) -> tuple[Argument, ...]:
        view = View(policy, self.root)
        environment = inside.environment(command.env)
        variables = (word for pair in environment.early.items() for word in ("--setenv", *pair))
        return (
            str(self.bwrap),
            *FLAGS,
            *(word for capability in policy.capabilities for word in ("--cap-add", capability)),
            *(() if policy.network is Network.HOST else ("--unshare-net",)),
            *("--uid", str(policy.uid), "--gid", str(policy.gid)),
            *view.argv,
            *("--chdir", str(command.cwd)),
            # Not in argv, which every user of the host can read, and not in the environment of bubblewrap itself.
            *("--args", Given(nul_separated(("--clearenv", *variables)))),
            *("--seccomp", Given(self.seccomp)),
            *("--info-fd", Report("info")),
            "--",
            *inside.argv(command.argv, environment, policy, view),
        )

    def _scope(self, network: Network) -> tuple[str, ...]:
        return (*self.launcher, "scope", "--") if self.launcher and network is Network.HOST else ()

    def _layers(self, policy: Policy) -> tuple[str, ...]:
        if policy.layers is None:
            return ()
        if self.unshare is None:
            raise Unavailable("an overlay in the box", "there is no `unshare`", "`apt install util-linux`")
        script = (inside.SHELL, "-c", MOUNT_LAYERS, "sh")
        apart = APART if isinstance(policy.layers, RootLayers) else APART_AS_USER
        return (str(self.unshare), *apart, *script, policy.token, _options(policy.layers), str(policy.layers.target))


def _options(layers: Layers) -> str:
    marks = ("nosuid", "nodev") if isinstance(layers, RootLayers) else ("userxattr",)
    options = [*marks, "lowerdir=" + ":".join(map(_escaped, layers.lower))]
    if layers.upper and layers.work:
        options += [f"upperdir={_escaped(layers.upper)}", f"workdir={_escaped(layers.work)}"]
    return ",".join(options)


def _escaped(path: Path) -> str:
    """Escape what overlayfs takes for a separator, and the quotes that mount(8) takes out."""
    return "".join(f"\\{sign}" if sign in '\\,:"' else sign for sign in str(path))
