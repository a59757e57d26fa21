"""The wall as seen from inside: a script that looks at it before the agent starts, and becomes the agent."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal.errors import BadInput
from shoal.model.command import Argument
from shoal.model.policy import Policy
from shoal.sandboxes.view import View

SHELL = "/bin/sh"

# Builtins only, so that nothing forks (1 ms); for dash and for bash as sh. Its variables are named so that none can be
# one of the agent's, which would then be changed for the agent too. Lists come with their length before them, because
# a name in them may be anything. In the shell's words: $1 token, $2 capability sets, $3 network, and four lists.
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
    """Begin the box with the script; *command* follows it, whatever it holds."""
    return (
        *(SHELL, "-c", ASSERT, "sh", policy.token, capability_set(policy.capabilities), policy.network.value),
        *_counted(str(path) for path in view.absent),
        *(str(len(view.bare)), *(word for bare in view.bare for word in (str(bare.folder), *_counted(bare.names)))),
        *_counted(environment.foreign),
        *_counted(f"{name}={value}" for name, value in environment.late.items()),
        *command,
    )


@dataclass(frozen=True, slots=True)
class Environment:
    """An agent's variables, apart by when they are set.

    *early* ones the box begins with. *late* ones would change how the script itself runs (a preloaded library could
    say the wall's line for it), so they are set last. *foreign* ones nobody asked for: bubblewrap and shells add them.
    """

    early: Mapping[str, str] = field(repr=False)
    late: Mapping[str, str] = field(repr=False)
    foreign: tuple[str, ...]


def environment(env: Mapping[str, str]) -> Environment:
    """Take the variables apart; raise `BadInput` for a name that no shell would pass on."""
    for name in env:
        if not NAME.fullmatch(name):
            raise BadInput(f"{name!r} cannot be the name of a variable: letters, digits and _ only")
    late = {name: value for name, value in env.items() if LOADER.fullmatch(name)}
    early = {name: value for name, value in env.items() if name not in late}
    return Environment(early, late, tuple(name for name in BY_SHELLS if name not in env))


def capability_set(names: Iterable[str]) -> str:
    """Spell a set of capabilities as /proc/self/status does."""
    unknown = sorted(set(names) - set(CAPABILITIES))
    if unknown:
        raise BadInput(f"no box may have {', '.join(unknown)}")
    return f"{sum(1 << CAPABILITIES[name] for name in set(names)):016x}"


def _counted(words: Iterable[str]) -> tuple[str, ...]:
    listed = tuple(words)
    return (str(len(listed)), *listed)
