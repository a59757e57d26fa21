"""The Landlock sandbox, weakened by one right, scope and system call at a time: a named probe fails."""

import ctypes
import json
import os
import platform
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shoal.model.command import Command
from shoal.model.policy import Network, Policy
from shoal.sandboxes import seccomp
from shoal.sandboxes.bubblewrap import Bubblewrap
from shoal.sandboxes.host import LAUNCHER
from shoal.sandboxes.landlock import Landlock
from shoal.sandboxes.seccomp import ArgumentTest, Denial, Strength
from tests.sandboxes.sandbox_runs import SEARCH, TOKEN, Person, Ran, facts, python, ran

pytestmark = pytest.mark.deep

# Each probe tries what one right of Landlock's stands for, at a place where the agent does not have it.
PROBES = r"""
import ctypes, errno, json, os, socket, stat, sys
given = json.loads(sys.argv[1])
outside, inside = given["outside"], given["inside"]
def tried(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
def node(folder, kind):
    return tried(lambda: os.mknod(os.path.join(folder, "node-%x" % kind), kind | 0o600, 0))
def moved():
    for name in ("a", "b"):
        os.makedirs(os.path.join(inside, name), exist_ok=True)
    open(os.path.join(inside, "a/f"), "w").close()
    os.rename(os.path.join(inside, "a/f"), os.path.join(inside, "b/f"))
def connected(family, address):
    with socket.socket(family) as client:
        client.connect(address)
def at(name): return os.path.join(outside, name)
print(json.dumps({
    "WRITE_FILE": tried(lambda: os.close(os.open(at("key"), os.O_WRONLY))),
    "READ_FILE": tried(lambda: os.close(os.open(at("key"), os.O_RDONLY))),
    "READ_DIR": tried(lambda: os.listdir(outside)),
    "REMOVE_DIR": tried(lambda: os.rmdir(at("folder"))),
    "REMOVE_FILE": tried(lambda: os.unlink(at("file"))),
    "MAKE_CHAR": node(inside, stat.S_IFCHR),
    "MAKE_DIR": tried(lambda: os.mkdir(at("made"))),
    "MAKE_REG": node(outside, stat.S_IFREG),
    "MAKE_SOCK": node(outside, stat.S_IFSOCK),
    "MAKE_FIFO": node(outside, stat.S_IFIFO),
    # Without the right the kernel's own answer comes first, which is another.
    "MAKE_BLOCK": node(inside, stat.S_IFBLK),
    "MAKE_SYM": tried(lambda: os.symlink("x", at("link"))),
    "REFER": tried(moved),
    "TRUNCATE": tried(lambda: os.truncate(at("long"), 1)),
    "tcp": tried(lambda: connected(socket.AF_INET, ("127.0.0.1", given["port"]))),
    "abstract": tried(lambda: connected(socket.AF_UNIX, "\0" + given["abstract"])),
    "signals": tried(lambda: os.kill(given["pid"], 0)),
}))
"""

RIGHTS = (
    *("EXECUTE", "WRITE_FILE", "READ_FILE", "READ_DIR", "REMOVE_DIR", "REMOVE_FILE", "MAKE_CHAR", "MAKE_DIR"),
    *("MAKE_REG", "MAKE_SOCK", "MAKE_FIFO", "MAKE_BLOCK", "MAKE_SYM", "REFER", "TRUNCATE", "IOCTL_DEV"),
)
# Taken alone these two change nothing: what cannot be read cannot be run, nor asked anything if it is a device.
HELD_TWICE = {"EXECUTE", "IOCTL_DEV"}
TOLD_BY_THE_WALL = {"READ_DIR": "hidden /"}

HANDLED = "handled = (1 << (16 if version >= 5 else 15)) - 1"
READABLE = "rules = [(path, READ) for"
LOOKS_AT_NETWORK = 'if order.network == b"none" and libc.socket(2, 1, 0) >= 0:'


@dataclass(frozen=True, slots=True)
class Scene:
    """A person in Landlock, with files of theirs outside."""

    who: Person
    landlock: Landlock
    given: dict[str, object]

    def answers(self, network: Network, *edits: tuple[str, str], program: bytes | None = None) -> Ran:
        """Run the probes with the launcher as changed by *edits*."""
        outside, work = self.who.made("outside"), self.who.made("inside")
        for name, text in {"key": "secret", "long": "secret", "file": ""}.items():
            self.who.made(f"outside/{name}", text)
        self.who.made("outside/folder")
        for path in (outside / "made", outside / "link", *outside.glob("node-*"), *work.glob("node-*")):
            _gone(path)
        wall = replace(self.landlock, launcher=(*self.landlock.launcher[:-1], str(self.edited(*edits))))
        if program:
            wall = replace(wall, filters=dict.fromkeys(Strength, program))
        argv = python(PROBES, json.dumps({**self.given, "outside": str(outside), "inside": str(work)}))
        command = Command(argv=argv, cwd=work, env={"PATH": SEARCH})
        return ran(wall.wrap(command, Policy(token=TOKEN, write=(work,), network=network)), self.who)

    def edited(self, *edits: tuple[str, str]) -> Path:
        """Copy the launcher with words of it replaced; each must be there once."""
        text = LAUNCHER.read_text()
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return self.who.made("launcher.py", text)


def _gone(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def scene(who: Person, landlock: Landlock) -> Iterator[Scene]:
    """Things of the host that a broken sandbox would reach."""
    name = f"shoal-landlock-{os.getpid()}-{who.name}"
    with (
        socket.create_server(("127.0.0.1", 0), backlog=99) as server,
        closing(socket.socket(socket.AF_UNIX)) as abstract,
        subprocess.Popen([*who.prefix, "sleep", "300"]) as theirs,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen(99)
        try:
            yield Scene(who, landlock, {"abstract": name, "port": server.getsockname()[1], "pid": theirs.pid})
        finally:
            theirs.kill()


def whole(network: Network) -> dict[str, str]:
    """Return the probes' answers in an intact sandbox."""
    is_open = network is Network.HOST
    return {
        **dict.fromkeys(set(RIGHTS) - HELD_TWICE, "EACCES"),
        "REFER": "done",
        "tcp": "done" if is_open else "EACCES",
        "abstract": "EPERM" if is_open else "EACCES",
        "signals": "EPERM",
    }


@pytest.mark.parametrize("network", Network)
def test_the_whole_wall_answers_as_it_should(scene: Scene, network: Network) -> None:
    assert facts(scene.answers(network)) == whole(network)


def test_every_right_that_is_handled_has_a_probe(scene: Scene) -> None:
    assert HANDLED in LAUNCHER.read_text()
    assert len(RIGHTS) == 16
    assert set(RIGHTS) - set(whole(Network.NONE)) == HELD_TWICE


@pytest.mark.parametrize("right", [right for right in RIGHTS if right not in HELD_TWICE])
def test_a_right_that_is_not_handled_is_found(scene: Scene, right: str) -> None:
    bit = 1 << RIGHTS.index(right)
    less = (HANDLED, f"{HANDLED.replace('handled = ', 'handled = (')}) & ~{bit}")

    done = scene.answers(Network.NONE, less, (READABLE, "rules = [(path, READ & handled) for"))

    if right in TOLD_BY_THE_WALL:
        assert_refused(done, TOLD_BY_THE_WALL[right])
        return
    found = facts(done)
    # A right too few is never a way to more: who does not handle REFER may only move less.
    assert {name for name, answer in found.items() if answer != whole(Network.NONE)[name]} == {right}


@pytest.mark.parametrize(("scope", "probe"), [("SCOPE_ABSTRACT_SOCKETS", "abstract"), ("SCOPE_SIGNALS", "signals")])
def test_a_scope_that_is_left_out_is_found(scene: Scene, scope: str, probe: str) -> None:
    both = "scopes = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if"
    other = both.replace(scope, "0")

    found = facts(scene.answers(Network.HOST, (both, other)))

    assert found[probe] == "done"


def test_the_right_to_connect_is_held_twice(scene: Scene) -> None:
    """By the filter, and beneath it by Landlock: seen with a filter that lets sockets be made."""
    beneath = (LOOKS_AT_NETWORK, "if False:")
    sockets = seccomp.program(Strength.CONFINED)

    held = facts(scene.answers(Network.NONE, beneath, program=sockets))
    open_ = facts(scene.answers(Network.NONE, beneath, ("TCP = 0b11", "TCP = 0"), program=sockets))

    assert (held["tcp"], open_["tcp"]) == ("EACCES", "done")


PRIVILEGES = '    must(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")\n'
REFUSED = {
    "no filter": (("    install(program)\n", ""), "Seccomp"),
    "new privileges": ((f"{PRIVILEGES}    handled", "    handled"), ""),
    "all can be read": (("scopes, rules)\n    drop", 'scopes, [*rules, (b"/", READ)])\n    drop'), "hidden /"),
    "no domain": (("    restrict(handled, tcp, scopes, rules)\n", ""), "hidden /"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wall_that_is_open_is_found_before_the_agent_starts(scene: Scene, name: str) -> None:
    edit, why = REFUSED[name]

    assert_refused(scene.answers(Network.NONE, edit), why)


def test_a_filter_for_another_network_is_found(scene: Scene) -> None:
    assert_refused(scene.answers(Network.NONE, program=seccomp.program(Strength.CONFINED)), "network")


def test_capabilities_that_are_kept_are_found(scene: Scene) -> None:
    done = scene.answers(Network.NONE, ("    drop_capabilities()\n", ""))

    if scene.who.uid == 0:
        assert_refused(done, "Cap")
    else:  # there was none to begin with
        assert facts(done) == whole(Network.NONE)


def assert_refused(done: Ran, why: str) -> None:
    assert (done.code, done.out) == (125, "")
    assert done.err.startswith(f"shoal-wall-broken {TOKEN} {why}")


# The filters. Each denial is given an error of its own that no kernel knows: only that very rule can then answer.

FIRST_MARK = 1000
CALLS = r"""
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
def called(number, words):
    return ctypes.get_errno() if libc.syscall(number, *map(ctypes.c_ulong, words)) == -1 else 0
print(json.dumps([called(number, words) for number, words in json.load(sys.stdin)]))
"""


@pytest.mark.parametrize("strength", Strength)
def test_every_denial_of_a_filter_is_alive(
    who: Person, bubblewrap: Bubblewrap, monkeypatch: pytest.MonkeyPatch, strength: Strength
) -> None:
    live = [denial for denial in seccomp.denials(strength) if number(denial) >= 0]
    marked = [denial._replace(error=FIRST_MARK + index) for index, denial in enumerate(live)]
    monkeypatch.setattr(seccomp, "denials", lambda _: iter(marked))
    program = seccomp.program.__wrapped__(strength)

    words = [(number(denial), arguments(denial)) for denial in marked]
    command = Command(argv=python(CALLS), cwd=Path("/"), env={"PATH": SEARCH}, stdin=json.dumps(words).encode())
    done = ran(replace(bubblewrap, seccomp=program).wrap(command, Policy(token=TOKEN)), who)

    assert done.code == 0, done
    for denial, answer in zip(marked, json.loads(done.out), strict=True):
        fitting = {other.error for other in marked if other.name == denial.name and fits(other, arguments(denial))}
        assert denial.error in fitting
        assert answer in fitting, denial
        # Only where no socket may be made at all do two rules speak of one call.
        assert fitting == {denial.error} or (strength is Strength.CUT_OFF and denial.name == "socket")


SCHEDULING = ("scheduler", "param", "attr", "affinity")


def test_the_filters_differ_by_what_each_wall_must_make_up_for() -> None:
    names = {strength: {denial.name for denial in seccomp.denials(strength)} for strength in Strength}

    modes = {"chmod", "fchmod", "fchmodat", "fchmodat2"}
    others = {"prlimit64", "setpriority", "ioprio_set", *(f"sched_set{what}" for what in SCHEDULING)}
    assert names[Strength.CONFINED] - names[Strength.NAMESPACED] == {*modes, *others, *seccomp.SHARED_OBJECTS}
    assert names[Strength.CUT_OFF] == names[Strength.CONFINED]


def number(denial: Denial) -> int:
    """Give a call's number on this architecture; below 0 where it has none."""
    found = int(ctypes.CDLL(seccomp.LIBRARY).seccomp_syscall_resolve_name(denial.name.encode()))
    return seccomp.NUMBERS.get(denial.name, -1) if found == -1 else found


def arguments(denial: Denial) -> list[int]:
    """Make arguments that the denial is about, and nothing else."""
    words = [int(socket.AF_UNIX) if denial.name == "socket" else 0] + [0] * 5
    for one in denial.when:
        more = 1 if one.operator == seccomp.NOT_EQUAL else 0
        words[one.argument] = one.second if one.operator == seccomp.MASKED_EQUAL else one.first + more
    return words


def fits(denial: Denial, words: list[int]) -> bool:
    """Say whether a denial is about a call with these arguments."""
    return all(_holds(one, words[one.argument]) for one in denial.when)


def _holds(one: ArgumentTest, word: int) -> bool:
    match one.operator:
        case seccomp.NOT_EQUAL:
            return bool(word != one.first)
        case seccomp.EQUAL:
            return bool(word == one.first)
        case seccomp.AT_LEAST:
            return bool(word >= one.first)
        case _:
            return bool(word & one.first == one.second)


if platform.machine() == "x86_64":

    def test_a_call_of_another_architecture_kills(who: Person, bubblewrap: Bubblewrap) -> None:
        """By the numbers of x32, which the same processor takes and no rule is about."""
        script = "import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 39)"
        done = ran(
            bubblewrap.wrap(Command(argv=python(script), cwd=Path("/")), Policy(token=TOKEN)),
            who,
        )

        assert done.code == 128 + signal.SIGSYS
