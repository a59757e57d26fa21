"""The sandbox with namespaces: bubblewrap with a fixed set of flags, checked from inside before the agent starts."""

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import BadInput, Unavailable
from shoal.model.command import Argument, Command, InheritedBytes, ReportPipe, SharedSocket
from shoal.model.policy import NETWORKS, Layers, Network, Policy
from shoal.sandboxes import bubblewrap as inside
from shoal.sandboxes.host import TRIAL_TOKEN, HostRoot, SandboxHost
from shoal.sandboxes.kind import OUTSIDE_CWD, OUTSIDE_ENV, START, TRUE, RootLayers, nul_separated, user_shares
from shoal.sandboxes.launcher_command import launcher_argv
from shoal.sandboxes.mounts import View
from shoal.sandboxes.seccomp import Strength

CONFINES = True

SHELL = "/bin/sh"

# Builtins only, so that nothing forks (1 ms); for dash and for bash as sh. Its variables have names that no agent's
# variable has, which would then be changed for the agent too. Each list comes after its length, because a name in it
# may be anything. In the shell: $1 token, $2 capability sets, $3 network, and four lists.
ASSERT = r"""
_shoal_token=$1 _shoal_caps=$2 _shoal_net=$3
shift 3
broken() { printf 'shoal-wall-broken %s %s\n' "$_shoal_token" "$1" >&2; exit 125; }
there() { [ -e "$1" ] || [ -L "$1" ]; }
[ "$$" -lt 10 ] || broken 'pid namespace'
_shoal_seen=
while read -r _shoal_key _shoal_value; do
  case $_shoal_key in
    Cap*) [ "$_shoal_value" = "$_shoal_caps" ] || broken "$_shoal_key $_shoal_value" ;;
    NoNewPrivs:) [ "$_shoal_value" = 1 ] || broken no_new_privs ;;
    Seccomp:) [ "$_shoal_value" = 2 ] || broken seccomp ;;
    *) continue ;;
  esac
  _shoal_seen=$_shoal_seen$_shoal_key
done </proc/self/status
[ "$_shoal_seen" = CapInh:CapPrm:CapEff:CapBnd:CapAmb:NoNewPrivs:Seccomp: ] || broken /proc/self/status
for _shoal_value in / /usr /dev /proc/sys/kernel/core_pattern; do
  [ -w "$_shoal_value" ] && broken "writable $_shoal_value"
done
[ -t 0 ] || [ -t 1 ] || [ -t 2 ] && broken terminal
if [ "$_shoal_net" = none ]; then
  while read -r _shoal_key _shoal_value; do
    case $_shoal_key in Inter-* | face | lo:*) ;; *) broken "network $_shoal_key" ;; esac
  done </proc/net/dev || broken /proc/net/dev
fi
_shoal_left=$1; shift
while [ "$_shoal_left" -gt 0 ]; do
  there "$1" && broken "hidden $1"
  _shoal_left=$((_shoal_left - 1)); shift
done
_shoal_left=$1; shift
while [ "$_shoal_left" -gt 0 ]; do
  _shoal_folder=$1 _shoal_count=$2; shift 2
  for _shoal_entry in "$_shoal_folder"/* "$_shoal_folder"/.[!.]* "$_shoal_folder"/..?*; do
    there "$_shoal_entry" || continue
    _shoal_index=0 _shoal_seen=
    for _shoal_key; do
      [ "$_shoal_index" -lt "$_shoal_count" ] || break
      [ "$_shoal_entry" = "$_shoal_folder/$_shoal_key" ] && _shoal_seen=yes
      _shoal_index=$((_shoal_index + 1))
    done
    [ -n "$_shoal_seen" ] || broken "hidden $_shoal_entry"
  done
  shift "$_shoal_count"
  _shoal_left=$((_shoal_left - 1))
done
_shoal_left=$1; shift
while [ "$_shoal_left" -gt 0 ]; do unset "$1"; _shoal_left=$((_shoal_left - 1)); shift; done
_shoal_left=$1; shift
while [ "$_shoal_left" -gt 0 ]; do export "$1"; _shoal_left=$((_shoal_left - 1)); shift; done
printf 'shoal-wall-ok %s\n' "$_shoal_token" >&2
exec "$@"
"""

CAPABILITIES = {"CAP_DAC_READ_SEARCH": 2}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LOADER = re.compile(r"LD_\w+|GLIBC_TUNABLES|GCONV_PATH|LOCPATH|ENV|BASH_ENV")
BY_SHELLS = ("PWD", "OLDPWD", "SHLVL", "_")


def argv(command: tuple[Argument, ...], environment: "Environment", policy: Policy, view: View) -> tuple[Argument, ...]:
    """Begin the sandbox with the script; *command* follows it, whatever it contains."""
    return (
        *(SHELL, "-c", ASSERT, "sh", policy.token, capability_set(policy.capabilities), _kernel_network(policy)),
        *_with_count(str(path) for path in view.absent),
        *(str(len(view.bare)), *(word for bare in view.bare for word in (str(bare.folder), *_with_count(bare.names)))),
        *_with_count(environment.foreign),
        *_with_count(f"{name}={value}" for name, value in environment.late.items()),
        *command,
    )


def _kernel_network(policy: Policy) -> str:
    return (Network.HOST if NETWORKS[policy.network].shares_host else Network.NONE).value


@dataclass(frozen=True, slots=True)
class Environment:
    """An agent's variables, separated by when they are set.

    The sandbox begins with *early*. *late* would change how the script itself runs (a preloaded library could print
    the sandbox's line for it), so they are set last. Nobody asked for *foreign*: bubblewrap and shells add them.
    """

    early: Mapping[str, str] = field(repr=False)
    late: Mapping[str, str] = field(repr=False)
    foreign: tuple[str, ...]


def environment(env: Mapping[str, str]) -> Environment:
    """Separate the variables; raise `BadInput` for a name that no shell would pass on."""
    for name in env:
        if not NAME.fullmatch(name):
            raise BadInput(f"{name!r} cannot be the name of a variable; use letters, digits and _")
    late = {name: value for name, value in env.items() if LOADER.fullmatch(name)}
    early = {name: value for name, value in env.items() if name not in late}
    return Environment(early, late, tuple(name for name in BY_SHELLS if name not in env))


def capability_set(names: Iterable[str]) -> str:
    """Format a set of capabilities as /proc/self/status does."""
    unknown = sorted(set(names) - set(CAPABILITIES))
    if unknown:
        raise BadInput(f"no sandbox may have {', '.join(unknown)}")
    return f"{sum(1 << CAPABILITIES[name] for name in set(names)):016x}"


def _with_count(words: Iterable[str]) -> tuple[str, ...]:
    listed = tuple(words)
    return (str(len(listed)), *listed)


FLAGS = (
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--disable-userns"),
    *("--new-session", "--die-with-parent", "--hostname", "shoal", "--cap-drop", "ALL"),
)

# In the shell: $1 token, $2 options, $3 target, and then the sandbox's own command.
MOUNT_LAYERS = r"""
mount -t overlay overlay -o "$2" -- "$3" || { printf 'shoal-wall-broken %s layers\n' "$1" >&2; exit 125; }
shift 3
exec "$@"
"""

# A namespace for the mount, invisible to the host's.
APART = ("-m", "--propagation", "private")
APART_AS_USER = ("-Urm",)

LOOPBACK = "with the host's network, whatever listens on the host's own addresses can be reached"
ABSTRACT = "with the host's network, abstract sockets of the host can be reached: this kernel cannot scope them"

SIGNALS = "an agent can use up the user's pending signals and message queues: there is no `prlimit` here (util-linux)"
DEVICES = "mode and times of the host's device nodes can be changed: no others can be made here (it needs CAP_MKNOD)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """Namespaces for everything, no capabilities, a seccomp filter, and a root in which only what is named exists.

    *launcher* is the beginning of a command that blocks abstract sockets on the host's network.
    """

    bwrap: Path
    unshare: Path | None
    prlimit: Path | None
    seccomp: bytes = field(repr=False)
    launcher: tuple[str, ...] | None
    root: HostRoot = field(repr=False)
    name: str = field(default="bubblewrap", init=False)
    confines: bool = field(default=CONFINES, init=False)
    mounts: bool = field(default=True, init=False)
    can_listen: bool = field(default=True, init=False)
    has_gaps_offline: bool = field(default=False, init=False)
    known_escapes: Set[str] = field(default=frozenset(), init=False)

    @property
    def version(self) -> Command:
        """Return the command that prints its version."""
        return Command(argv=(str(self.bwrap), "--version"), cwd=OUTSIDE_CWD, env=OUTSIDE_ENV)

    @property
    def gaps(self) -> tuple[str, ...]:
        """What it does not protect."""
        abstract = () if self.launcher else (ABSTRACT,)
        counts = () if self.prlimit else (SIGNALS,)
        return (LOOPBACK, *abstract, *((DEVICES,) if self.root.shares_devices else ()), *counts)

    def wrap(self, command: Command, policy: Policy) -> Command:
        """Put *command* into the sandbox; raise `BadInput` if the policy contradicts itself."""
        outside = (*self._shares(), *self._scope(policy), *self._layers(policy))
        argv = (*outside, *self._bwrap(command, policy))
        return Command(argv=argv, cwd=OUTSIDE_CWD, env=OUTSIDE_ENV, stdin=command.stdin)

    def _bwrap(self, command: Command, policy: Policy) -> tuple[Argument, ...]:
        view, network = View(policy, self.root), NETWORKS[policy.network]
        environment = inside.environment(command.env)
        variables = (word for pair in environment.early.items() for word in ("--setenv", *pair))
        return (
            str(self.bwrap),
            *FLAGS,
            *(word for capability in policy.capabilities for word in ("--cap-add", capability)),
            *(() if network.shares_host else ("--unshare-net",)),
            *("--uid", str(policy.uid), "--gid", str(policy.gid)),
            *view.argv,
            *("--chdir", str(command.cwd)),
            # Not in argv, which every user of the host can read, and not in the environment of bubblewrap itself.
            *("--args", InheritedBytes(nul_separated(("--clearenv", *variables)))),
            *("--seccomp", InheritedBytes(self.seccomp)),
            *("--info-fd", ReportPipe("info")),
            *(("--block-fd", SharedSocket(START)) if policy.has_listener else ()),
            "--",
            *inside.argv(command.argv, environment, policy, view),
        )

    def _shares(self) -> tuple[str, ...]:
        """Lower the limits before the namespace is created, because it inherits them from its creator."""
        if self.prlimit is None:
            return ()
        return (str(self.prlimit), *(f"--{name}={most}:{most}" for name, most in user_shares().items()))

    def _scope(self, policy: Policy) -> tuple[str, ...]:
        return (*self.launcher, "scope", "--") if self.launcher and NETWORKS[policy.network].shares_host else ()

    def _layers(self, policy: Policy) -> tuple[str, ...]:
        if policy.layers is None:
            return ()
        if self.unshare is None:
            raise Unavailable("an overlay in the sandbox", "`unshare` is missing", "`apt install util-linux`")
        script = (inside.SHELL, "-c", MOUNT_LAYERS, "sh")
        apart = APART if isinstance(policy.layers, RootLayers) else APART_AS_USER
        return (str(self.unshare), *apart, *script, policy.token, _options(policy.layers), str(policy.layers.target))


def _options(layers: Layers) -> str:
    marks = ("nosuid", "nodev") if isinstance(layers, RootLayers) else ("userxattr",)
    options = [*marks, "lowerdir=" + ":".join(map(_escape_overlay_path, layers.lower))]
    if layers.upper and layers.work:
        options += [f"upperdir={_escape_overlay_path(layers.upper)}", f"workdir={_escape_overlay_path(layers.work)}"]
    return ",".join(options)


def _escape_overlay_path(path: Path) -> str:
    """Escape the separators of overlayfs, and the quotes that mount(8) removes."""
    return "".join(f"\\{char}" if char in '\\,:"' else char for char in str(path))


NO_BWRAP = "install it (`apt install bubblewrap` or `dnf install bubblewrap`), or pass `--sandbox landlock`"
NO_NAMESPACES = (
    "allow user namespaces (`sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000`, on Ubuntu "
    "also `kernel.apparmor_restrict_unprivileged_userns=0`), or pass `--sandbox landlock`"
)


def trials(host: SandboxHost) -> Mapping[str, Command]:
    """Try it without a network, and with the launcher that blocks abstract sockets on the host's."""
    if host.bwrap is None or host.filters is None:
        return {}
    network = Policy(token=TRIAL_TOKEN, network=Network.HOST)
    return {
        "bubblewrap": _sandbox(host, host.bwrap, has_scope=False).wrap(TRUE, Policy(token=TRIAL_TOKEN)),
        "scope": _sandbox(host, host.bwrap, has_scope=True).wrap(TRUE, network),
    }


def build(host: SandboxHost) -> Bubblewrap:
    """Build it from the inspected host; raise `Unavailable` if it does not work."""
    if host.bwrap is None:
        raise Unavailable("the bubblewrap sandbox", "`bwrap` is not on PATH", NO_BWRAP)
    host.require_filters("bubblewrap")
    host.assert_passed("bubblewrap", NO_NAMESPACES)
    scope = host.tried.get("scope")
    return _sandbox(host, host.bwrap, has_scope=scope is not None and scope.is_passed)


def _sandbox(host: SandboxHost, bwrap: Path, *, has_scope: bool) -> Bubblewrap:
    return Bubblewrap(
        bwrap=bwrap,
        unshare=host.unshare,
        prlimit=host.prlimit,
        seccomp=host.require_filters("bubblewrap")[Strength.NAMESPACED],
        launcher=launcher_argv(host) if has_scope else None,
        root=host.root,
    )
