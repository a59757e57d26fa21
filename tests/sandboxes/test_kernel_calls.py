"""System calls that reach outside a sandbox through its shared kernel: refused by the filter, and only by it."""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from shoal.model.policy import Policy
from shoal.sandboxes import seccomp
from shoal.sandboxes.bubblewrap import Bubblewrap
from shoal.sandboxes.kind import MAX_USER_SHARE, SHARED_KERNEL
from shoal.sandboxes.landlock import Landlock
from shoal.sandboxes.seccomp import Denial, Strength
from tests.sandboxes.sandbox_runs import Person, boxed, facts, python

# Each attack by itself, in a child: some of them change who makes them. What is about all processes of the user asks for
# something that the kernel refuses: it would be done to the real ones where the filter is left out.
CALLS = r"""
import ctypes, errno, fcntl, json, os, signal, struct, sys
given = json.loads(sys.argv[1])
libc, victim = ctypes.CDLL(None, use_errno=True), given["victim"]
number = ctypes.c_int(0)
mask = ctypes.c_ulong(1)
def call(*words):
    return "done" if libc.syscall(*words) >= 0 else errno.errorcode[ctypes.get_errno()]
def control(command, argument, path=given["shown"]):
    try:
        return fcntl.fcntl(os.open(path, os.O_RDONLY), command, argument) and "other" or "done"
    except OSError as error:
        return errno.errorcode[error.errno]
def written(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
def peeked():
    here = ctypes.create_string_buffer(8)
    vector = (ctypes.c_ulong * 2)(ctypes.addressof(here), 8)
    return call(310, 1, vector, 1, vector, 1, 0)
def traced_child():
    child = os.fork()
    if child == 0:
        os.execv("/bin/sleep", ["sleep", "60"])
    outcome = [call(101, 0x4206, child, 0, 0), call(101, 0x4207, child, 0, 0)]
    os.waitpid(child, 0x40000000)
    outcome.append(call(101, 17, child, 0, 0))
    os.kill(child, 9)
    return outcome
ATTACKS = {
    "trace": lambda: call(101, 0x4206, 1, 0, 0), "trace wide": lambda: call(101, 0x4206, ctypes.c_ulong(1 << 32 | 1), 0, 0),
    "peek": peeked, "poke": lambda: call(311, 1, 0, 0, 0, 0, 0), "memory": lambda: written("/proc/1/mem"),
    "descriptor": lambda: call(438, libc.syscall(434, 1, 0), 0, 0),
    "lease": lambda: control(1024, fcntl.F_RDLCK), "notify": lambda: control(1026, 1, given["folder"]),
    "aio": lambda: call(206, 1, ctypes.byref(ctypes.c_ulong(0))),
    "shmget": lambda: call(29, 0, 4096, 0o1600), "msgget": lambda: call(68, 0, 0o1600),
    "semget": lambda: call(64, 0, 1, 0o1600), "shmat": lambda: call(30, 123456789, 0, 0),
    "mq_open": lambda: call(240, b"shoal-test", os.O_RDWR | os.O_CREAT, 0o600, 0),
    "mq_unlink": lambda: call(241, b"shoal-test"),
    "priority": lambda: call(141, 0, victim, 5), "priority of all": lambda: call(141, 2, 0, -20),
    "scheduler": lambda: call(144, victim, 0, ctypes.byref(number)), "parameter": lambda: call(142, victim, ctypes.byref(number)),
    "affinity": lambda: call(203, victim, 8, ctypes.byref(mask)), "io priority": lambda: call(251, 1, victim, 2 << 13 | 7),
    "io priority of all": lambda: call(251, 3, 0, 7 << 13), "pages": lambda: call(279, victim, 0, 0, 0, 0, 0),
    "migration": lambda: call(256, victim, 8, ctypes.byref(mask), ctypes.byref(mask)),
}
USES = {
    "trace": traced_child, "nice": lambda: [call(141, 0, 0, 19), call(141, 1, 0, 19)],
    "affinity": lambda: [call(203, 0, 8, ctypes.byref(mask))], "io priority": lambda: [call(251, 1, 0, 2 << 13 | 7)],
    "scheduler": lambda: [call(144, 0, 3, ctypes.byref(number))], "limits": lambda: [call(302, 0, 7, 0, bytes(16))],
    "locks": lambda: [fcntl.flock(os.open(given["shown"], os.O_RDONLY), fcntl.LOCK_EX) or "done"],
}
def queued():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    packet = struct.pack("iii116x", signal.SIGRTMIN, 0, -1)
    return next((n for n in range(given["tries"]) if libc.syscall(129, os.getpid(), int(signal.SIGRTMIN), packet)), -1)
def alone(act):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, json.dumps(act()).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(reading, 4096))
if isinstance(given["tries"], int):
    print(json.dumps({"signals": queued()}))
elif given["tries"] == "uses":
    print(json.dumps({name: alone(act) for name, act in USES.items()}))
else:
    print(json.dumps({name: alone(ATTACKS[name]) for name in given["tries"]}))
"""

# What holds each attack: the calls of the filter without which it gets further.
FIRST_PROCESS = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd")
EVERYWHERE = {
    **{"trace": FIRST_PROCESS, "trace wide": FIRST_PROCESS, "peek": FIRST_PROCESS, "poke": FIRST_PROCESS},
    "descriptor": FIRST_PROCESS,
    **{"lease": ("fcntl",), "notify": ("fcntl",), "aio": ("io_setup",)},
}
NOT_IN_NAMESPACES = {
    **{name: (name,) for name in ("shmget", "msgget", "semget", "shmat", "mq_open", "mq_unlink")},
    **{"priority": ("setpriority",), "priority of all": ("setpriority",), "scheduler": ("sched_setscheduler",)},
    **{"parameter": ("sched_setparam",), "affinity": ("sched_setaffinity",), "io priority": ("ioprio_set",)},
    "io priority of all": ("ioprio_set",),
}
BEHIND_LANDLOCK = {**{name: held for name, held in EVERYWHERE.items() if held != FIRST_PROCESS}, **NOT_IN_NAMESPACES}
REFUSED = {"aio": "ENOSYS"}


@dataclass(frozen=True, slots=True)
class Victim:
    """A process of the same user, a file that the sandbox shows read-only, and who they belong to."""

    who: Person
    pid: int
    shown: Path

    def given(self, tries: object) -> str:
        """Spell what the attacker is told."""
        return json.dumps(
            {"victim": self.pid, "shown": str(self.shown), "folder": str(self.shown.parent), "tries": tries}
        )


@pytest.fixture(scope="module")
def victim(who: Person) -> Iterator[Victim]:
    shown = who.made("tools/shown", "shown")
    # The kernel keeps who has no capabilities from who has: one of root's that has none stands for the user's.
    bare = () if who.uid else ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--")
    with subprocess.Popen([*who.prefix, *bare, "sleep", "600"]) as process:
        yield Victim(who, process.pid, shown)
        process.kill()


def found(victim: Victim, sandbox: Bubblewrap | Landlock, tries: object) -> dict[str, object]:
    policy = Policy(read=(victim.shown.parent,))
    return facts(boxed(sandbox, victim.who, python(CALLS, victim.given(tries)), policy))


def opened(sandbox: Bubblewrap | Landlock, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> object:
    """Build the sandbox with a filter that says nothing of the calls *names*."""
    whole = seccomp.denials
    is_kept: Callable[[Denial], bool] = lambda denial: denial.name not in names  # noqa: E731
    monkeypatch.setattr(seccomp, "denials", lambda strength: filter(is_kept, whole(strength)))
    if isinstance(sandbox, Bubblewrap):
        return replace(sandbox, seccomp=seccomp.program.__wrapped__(Strength.NAMESPACED))
    return replace(sandbox, filters=dict.fromkeys(Strength, seccomp.program.__wrapped__(Strength.CUT_OFF)))


def assert_held_by_the_filter_alone(
    victim: Victim,
    sandbox: Bubblewrap | Landlock,
    attacks: dict[str, tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert found(victim, sandbox, [*attacks]) == {name: REFUSED.get(name, "EPERM") for name in attacks}

    without = opened(sandbox, tuple({call for calls in attacks.values() for call in calls}), monkeypatch)
    assert isinstance(without, (Bubblewrap, Landlock))
    reached = found(victim, without, [*attacks])
    assert {name for name, answer in reached.items() if answer == REFUSED.get(name, "EPERM")} == set()


def test_behind_namespaces_the_filter_holds_them(
    victim: Victim, bubblewrap: Bubblewrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_held_by_the_filter_alone(victim, bubblewrap, EVERYWHERE, monkeypatch)


def test_behind_landlock_the_filter_holds_them(
    victim: Victim, landlock: Landlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_held_by_the_filter_alone(victim, landlock, BEHIND_LANDLOCK, monkeypatch)


def test_the_pages_of_another_process_are_held_by_landlock_itself(victim: Victim, landlock: Landlock) -> None:
    assert found(victim, landlock, ["pages", "migration"]) == dict.fromkeys(("pages", "migration"), "EPERM")


def test_the_memory_of_the_first_process_cannot_be_written_by_its_file(victim: Victim, bubblewrap: Bubblewrap) -> None:
    assert found(victim, bubblewrap, ["memory"]) == {"memory": "EROFS"}


@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
def test_what_programs_do_to_themselves_and_their_children_works(
    victim: Victim, request: pytest.FixtureRequest, name: str
) -> None:
    answers = found(victim, request.getfixturevalue(name), "uses")

    assert all(answer == ["done"] * len(answer) for answer in answers.values() if isinstance(answer, list)), answers


@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
def test_an_agent_leaves_the_user_most_of_its_pending_signals(
    victim: Victim, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The kernel counts them for each user: without any left, no program of the user's can make a timer."""
    sandbox, most = request.getfixturevalue(name), MAX_USER_SHARE["sigpending"]

    assert most - 1_000 < cast(int, found(victim, sandbox, 2 * most)["signals"]) <= most

    monkeypatch.setitem(MAX_USER_SHARE, "sigpending", 3 * most)
    assert found(victim, sandbox, 2 * most) == {"signals": -1}, "nothing else would have refused them"


# More than a program may usually open: from there on, the kernel lets no other program of the user pass one.
PASSED = """
import json, socket
pairs, passed = [], 0
try:
    while passed < 1100:
        pairs.append(socket.socketpair())
        socket.send_fds(pairs[-1][0], [b"x"], [0] * 220)
        passed += 220
except OSError as error:
    passed = error.errno
print(json.dumps({"passed": passed}))
"""


@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
def test_what_no_filter_can_count_is_named(victim: Victim, request: pytest.FixtureRequest, name: str) -> None:
    """An agent can have as many open files wait in sockets as it may open, in the name of the user."""
    sandbox = request.getfixturevalue(name)

    assert facts(boxed(sandbox, victim.who, python(PASSED))) == {"passed": 1100}

    docs = " ".join((Path(__file__).parents[2] / "docs/sandboxes.md").read_text().split())
    assert "open files that wait in Unix sockets" in docs
    assert any("open files on their way through sockets" in line for line in SHARED_KERNEL)
