"""Which wall a name stands for, and whether it can be had here."""

from collections.abc import Callable, Mapping
from pathlib import Path

from shoal.errors import Unavailable, UnknownName
from shoal.model.command import Command
from shoal.model.policy import Network, Policy
from shoal.sandboxes.bubblewrap import Bubblewrap
from shoal.sandboxes.host import TRIAL_TOKEN, SandboxHost, Trial
from shoal.sandboxes.kind import OUTSIDE_CWD, OUTSIDE_ENV, Sandbox
from shoal.sandboxes.landlock import OLDEST_ABI, Landlock
from shoal.sandboxes.none import NoWall
from shoal.sandboxes.seccomp import Strength

LAUNCHER = Path(__file__).with_name("launcher.py")
TRUE = Command(argv=("/bin/true",), cwd=OUTSIDE_CWD, env=OUTSIDE_ENV)

NO_BWRAP = "install it (`apt install bubblewrap` or `dnf install bubblewrap`), or ask for `--sandbox landlock`"
NO_LIBSECCOMP = "install it (`apt install libseccomp2` or `dnf install libseccomp`)"
NO_NAMESPACES = (
    "allow user namespaces (`sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000`, on Ubuntu "
    "also `kernel.apparmor_restrict_unprivileged_userns=0`), or ask for `--sandbox landlock`"
)
NO_LANDLOCK = "use Linux 6.2 or later with Landlock among its `lsm=`, or ask for `--sandbox bubblewrap`"


def trials(host: SandboxHost, name: str | None = None) -> dict[str, Command]:
    """Give the commands by which it is found out what holds here; with *name*, only those of that wall.

    Run them all, in any order, and give the host what came of them: `host.with_trials({name: Trial(...)})`.
    """
    wanted = TRIALS if name is None else {key: TRIALS[key] for key in NEEDED.get(name, ())}
    made = {key: make(host) for key, make in wanted.items()}
    return {key: command for key, command in made.items() if command is not None}


def find(name: str, host: SandboxHost) -> Sandbox:
    """Give the wall of that name; raise `UnknownName`, or `Unavailable` where this host does not have it."""
    if name not in KINDS:
        raise UnknownName("sandbox", name, KINDS)
    return KINDS[name](host)


def _bubblewrap(host: SandboxHost) -> Bubblewrap:
    if host.bwrap is None:
        raise Unavailable("the bubblewrap wall", "there is no `bwrap` on PATH", NO_BWRAP)
    _filters(host, "bubblewrap")
    _assert_held(host, "bubblewrap", NO_NAMESPACES)
    scope = host.tried.get("scope")
    return _box(host, host.bwrap, has_scope=scope is not None and scope.held)


def _landlock(host: SandboxHost) -> Landlock:
    filters = _filters(host, "landlock")
    abi = _abi(host.tried.get("abi"))
    if abi < OLDEST_ABI:
        why = f"this kernel's version of it is {abi}, and {OLDEST_ABI} is needed" if abi else "this kernel has none"
        raise Unavailable("the landlock wall", why, NO_LANDLOCK)
    _assert_held(host, "landlock", NO_LANDLOCK)
    return Landlock(launcher=_launcher(host), abi=abi, filters=filters, root=host.root)


def _none(host: SandboxHost) -> NoWall:
    return NoWall(launcher=_launcher(host))


def _try_bubblewrap(host: SandboxHost) -> Command | None:
    if host.bwrap is None or host.filters is None:
        return None
    return _box(host, host.bwrap, has_scope=False).wrap(TRUE, Policy(token=TRIAL_TOKEN))


def _try_scope(host: SandboxHost) -> Command | None:
    if host.bwrap is None or host.filters is None:
        return None
    return _box(host, host.bwrap, has_scope=True).wrap(TRUE, Policy(token=TRIAL_TOKEN, network=Network.HOST))


def _try_landlock(host: SandboxHost) -> Command | None:
    if host.filters is None:
        return None
    wall = Landlock(launcher=_launcher(host), abi=OLDEST_ABI, filters=host.filters, root=host.root)
    return wall.wrap(TRUE, Policy(token=TRIAL_TOKEN))


def _try_abi(host: SandboxHost) -> Command:
    return Command(argv=(*_launcher(host), "abi"), cwd=OUTSIDE_CWD, env=OUTSIDE_ENV)


def _box(host: SandboxHost, bwrap: Path, *, has_scope: bool) -> Bubblewrap:
    return Bubblewrap(
        bwrap=bwrap,
        unshare=host.unshare,
        seccomp=_filters(host, "bubblewrap")[Strength.WALLED],
        launcher=_launcher(host) if has_scope else None,
        root=host.root,
    )


def _launcher(host: SandboxHost) -> tuple[str, ...]:
    return (str(host.python), "-I", "-S", str(LAUNCHER))


def _filters(host: SandboxHost, wall: str) -> Mapping[Strength, bytes]:
    if host.filters is None:
        raise Unavailable(f"the {wall} wall", "there is no libseccomp.so.2", NO_LIBSECCOMP)
    return host.filters


def _assert_held(host: SandboxHost, wall: str, remedy: str) -> None:
    trial = host.tried.get(wall)
    if trial is None:
        raise Unavailable(f"the {wall} wall", "it has not been tried", "run `shoal doctor`")
    if not trial.held:
        raise Unavailable(f"the {wall} wall", f"a trial of it failed with {trial.complaint!r}", remedy)


def _abi(trial: Trial | None) -> int:
    said = trial.stdout.strip() if trial else b""
    return int(said) if said.isdigit() else 0


KINDS: dict[str, Callable[[SandboxHost], Sandbox]] = {"bubblewrap": _bubblewrap, "landlock": _landlock, "none": _none}
TRIALS: dict[str, Callable[[SandboxHost], Command | None]] = {
    "bubblewrap": _try_bubblewrap,
    "scope": _try_scope,
    "landlock": _try_landlock,
    "abi": _try_abi,
}
NEEDED = {"bubblewrap": ("bubblewrap", "scope"), "landlock": ("landlock", "abi"), "none": ()}
