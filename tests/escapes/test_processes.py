"""Attacks with processes, signals and terminals: processes that outlive the sandbox or reach out of it."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.model.events import AgentStarted, Output, Recorded
from shoal.model.status import Status
from tests.acting import assert_nothing_left, ran, shown, step
from tests.cli.conftest import SHOAL, environment
from tests.conftest import git
from tests.escapes.looking import found, looking
from tests.escapes.scene import GOOD, Scene

GONE_SECONDS = 5.0
LONG = "sleep 600"


def mark() -> str:
    """Return a word that identifies the processes of one test."""
    return f"survivor-{secrets.token_hex(6)}"


def survivors(word: str) -> list[int]:
    """Find the processes on the whole host with the word in their arguments."""
    found_ = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            has_word = word.encode() in path.read_bytes()
        except OSError:
            continue
        if has_word and int(path.parent.name) != os.getpid():
            found_.append(int(path.parent.name))
    return found_


def daemons(word: str) -> str:
    """Start processes in every way that leaves a parent behind, each known by *word*; say `up` when they run."""
    sleep = f"sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' {word}"
    return f"""
    (setsid nohup {sleep} >/dev/null 2>&1 &)
    bash -c "{sleep.replace('"', chr(92) + '"')} & disown -a" >/dev/null 2>&1
    python3 -c 'import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
os._exit(0)' {word}
    """


async def counted(word: str, is_enough: Callable[[int], bool]) -> bool:
    """Wait until as many as wanted are there."""
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        if is_enough(len(survivors(word))):
            return True
        await asyncio.sleep(0.02)
    return False


async def gone(word: str) -> bool:
    """Wait until none is left."""
    return await counted(word, lambda number: number == 0)


def ended(word: str) -> None:
    """End whoever is left, however often it forks meanwhile."""
    while left := survivors(word):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def test_whoever_leaves_its_parent_is_gone_with_the_box(scene: Scene) -> None:
    """B4.36: a daemon with nohup, with a double fork, with disown."""
    word = mark()

    attack = await scene.attacked(f"{daemons(word)}\necho w > w")

    assert shown(scene.repo, attack.result, "w") == "w"
    assert await gone(word)


async def test_the_daemons_do_outlive_their_parent_where_there_is_no_wall() -> None:
    """The same script outside, as a control: three of three survive, and are ended here."""
    word = mark()
    subprocess.run(["sh", "-c", daemons(word)], check=True, stdout=subprocess.DEVNULL)

    try:
        are_left = await counted(word, lambda number: number >= 3)
    finally:
        ended(word)

    assert are_left


async def test_a_killed_bubblewrap_or_launcher_leaves_nobody(scene: Scene) -> None:
    """B4.37: the outermost process of the sandbox is killed while the agent and its daemons run."""
    word, pids = mark(), dict[str, int]()

    def listen(recorded: Recorded) -> None:
        match recorded.event:
            case AgentStarted(session=session, pid=pid):
                pids[session] = pid
            case Output(session=session, text=text) if "up" in text.split():
                os.kill(pids[session], signal.SIGKILL)

    steps = step("attack", f"echo half > half; {daemons(word)}\necho up; {LONG}"), step("good", GOOD)
    report = await ran(scene.repo, *steps, sandbox=scene.wall, listen=listen)

    attack, good = (one.worker_results[0] for one in report.steps)
    assert await gone(word)
    assert (attack.status, good.status) == (Status.FAILED, Status.SUCCEEDED)
    assert "signal 9" in str(attack.error)
    assert shown(scene.repo, attack, "half") == "half"
    scene.assert_held(report)
    assert_nothing_left(scene.repo)


def test_a_killed_shoal_leaves_nobody(scene: Scene) -> None:
    """B4.37: `shoal run` itself is killed; five seconds later, no process of it is left."""
    word = mark()
    agents = evil(scene, f"echo half > half\n{daemons(word)}\necho ready\n{LONG}\n")
    words = ["run", str(agents), "--events", "--sandbox", scene.wall]
    with subprocess.Popen(
        [SHOAL, *words], cwd=scene.repo, env=environment(), stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert next((line for line in running.stdout if '"ready"' in line), None)
        assert asyncio.run(counted(word, lambda number: number >= 3))
        running.kill()
        running.wait()

    assert asyncio.run(gone(word))
    report = asyncio.run(ran(scene.repo, step("next", "true"), sandbox=scene.wall))
    scene.assert_held(report)
    assert_nothing_left(scene.repo)


def evil(scene: Scene, script: str) -> Path:
    """Write a pipeline of one agent, outside of the repository."""
    agent = {"adapter": "command", "command": ["sh", "-c", script]}
    steps = [{"name": "attack", "agent": "evil", "prompt": "go"}]
    file = scene.repo.parent / "agents.yaml"
    file.write_text(json.dumps({"agents": {"evil": agent}, "pipelines": [{"name": "evil", "steps": steps}]}))
    return file


SIGNALS = r"""
coordinator, outer = given["pid"], os.getppid()
def signalled(pid, number):
    return tried(lambda: os.kill(pid, number))
def seen(name):
    return read("/proc/%d/%s" % (coordinator, name))
def memory(pid):
    text = ctypes.create_string_buffer(8)
    here, there = (ctypes.c_ulong * 2)(ctypes.addressof(text), 8), (ctypes.c_ulong * 2)(given["address"], 8)
    return call(310, pid, here, 1, there, 1, 0)
facts = {
    "signals": {str(number): signalled(coordinator, number) for number in (0, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)},
    "group": signalled(-given["group"], signal.SIGKILL),
    "ptrace": call(101, 16, coordinator, 0, 0), "memory": memory(coordinator),
    "prlimit": call(302, coordinator, 7, bytes(16), 0), "pidfd": call(434, coordinator, 0),
    "proc": {name: seen(name) for name in ("environ", "mem", "maps", "fd", "cwd/README.md", "root/etc/shadow")},
    "named": seen("cmdline"),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
}
print(json.dumps(facts), flush=True)
open("w", "w").write("w")
if given["is_walled"]:
    # All that may be signalled is the box's own; behind the fallback nothing but the kernel's scope would be between.
    os.kill(-1, signal.SIGKILL)
"""


async def test_no_signal_and_no_trace_reaches_another(scene: Scene) -> None:
    """B4.38, B4.39: nothing outside is killed, stopped, traced or read; killing everything kills only the agent's own."""
    script = looking(SIGNALS, pid=os.getpid(), group=os.getpgrp(), is_walled=scene.is_walled, address=id(None))

    attack = await scene.attacked(f"trap '' TERM; {script}")
    facts = found(attack.result)

    shut = {"ESRCH"} if scene.is_walled else {"EPERM"}
    assert set(facts["signals"].values()) == shut
    assert facts["group"] in shut
    assert {facts["ptrace"], facts["memory"], facts["prlimit"]} <= {*shut, "EPERM"}
    assert set(facts["proc"].values()) <= ({"ENOENT"} if scene.is_walled else {"EACCES", "EPERM", "EISDIR"}), facts
    if scene.is_walled:
        assert (facts["named"], facts["pidfd"]) == ("ENOENT", "ESRCH")
        assert facts["processes"] < 8
    else:
        assert any("names and commands of the host's processes" in note for note in attack.report.notes)


TERMINAL = r"""
TIOCSTI, TIOCLINUX, TIOCGWINSZ = 0x5412, 0x541C, 0x5413
def inject(fd):
    outcomes = []
    for sign in b"touch canary\n":
        for high in (0, 1 << 32):
            outcomes.append(call(16, fd, ctypes.c_ulong(high | TIOCSTI), bytes([sign])))
    return sorted(set(outcomes))
facts = {"open": tried(lambda: os.open("/dev/tty", os.O_RDWR)), "inject": [inject(fd) for fd in range(3)],
         "paste": call(16, 0, TIOCLINUX, b"\3"), "is": [os.isatty(fd) for fd in range(3)],
         "echo": program("sh", "-c", "stty -echo < /dev/tty"), "session": os.getsid(0) in (0, given["session"])}
open("facts.json", "w").write(json.dumps(facts))
"""
CONTROL = "import os; os.write(os.open('/dev/tty', os.O_RDWR), b'reached\\n')"


def on_a_terminal(*words: str | Path, cwd: Path, seconds: float = 60) -> bytes:
    """Run a command as a person at a terminal does, and give what came up on the screen."""
    ours, theirs = os.openpty()
    try:
        with subprocess.Popen(
            ["setsid", "-c", "-w", *words], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=environment()
        ) as running:
            running.wait(seconds)
        os.set_blocking(ours, False)
        return os.read(ours, 2**20)
    finally:
        os.close(ours)
        os.close(theirs)


def test_the_persons_terminal_is_out_of_reach(scene: Scene) -> None:
    """B4.40, B4.41: a run that a person starts at a terminal hands it to no agent."""
    agents = evil(scene, looking(TERMINAL, session=os.getsid(0)))

    assert b"reached" in on_a_terminal(sys.executable, "-c", CONTROL, cwd=scene.repo)
    screen = on_a_terminal(SHOAL, "run", agents, "--sandbox", scene.wall, cwd=scene.repo)

    assert b"touch canary" not in screen
    branch = git(scene.repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent")
    facts = json.loads(git(scene.repo, "show", f"{branch}:facts.json"))
    assert facts["open"] in ("ENXIO", "EACCES")
    assert facts["inject"] == [["EPERM"]] * 3
    assert facts["paste"] == "EPERM"
    assert facts["is"] == [False] * 3
    assert facts["echo"] != 0


@pytest.mark.parametrize(
    "how",
    [
        "kill -STOP $$",
        *(pytest.param(one, marks=pytest.mark.deep) for one in ("kill -STOP 0; :", "kill -STOP 1; kill -STOP -1")),
    ],
)
async def test_a_stopped_agent_is_ended_by_its_time(scene: Scene, how: str) -> None:
    """B4.43: nobody waits for it, its work is kept, its slot is free again."""
    if not scene.is_walled and "-1" in how:
        how = "kill -STOP $PPID; kill -STOP $$"  # who may be signalled there is the agent's own
    script = f"trap '' TERM; echo half > half; {how}; {LONG}"

    attack = await scene.attacked(script, timeout=2.0)

    assert attack.result.status is Status.TIMED_OUT
    assert shown(scene.repo, attack.result, "half") == "half"
    assert_nothing_left(scene.repo)


async def test_a_child_that_keeps_the_output_open_does_not_hold_up_the_verdict(scene: Scene) -> None:
    """B4.44: the verdict comes with the main process's exit, not with the end of what it says."""
    word = mark()
    script = f"(setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' {word} &); echo said; echo w > w"
    began = time.monotonic()

    attack = await scene.attacked(script)

    assert time.monotonic() - began < 30, "it waited for a child that never ends"
    assert attack.result.duration_seconds < 10
    assert attack.result.output == "said\n"
    assert attack.result.status is Status.SUCCEEDED
    assert await gone(word)


ROUTES = r"""
canary = given["canary"]
words = {
    "systemd-run": ["systemd-run", "--user", "touch", canary], "systemd-run system": ["systemd-run", "touch", canary],
    "at": ["sh", "-c", "echo touch %s | at now" % canary], "crontab": ["sh", "-c", "echo '* * * * * touch %s' | crontab -" % canary],
    "dbus": ["dbus-send", "--system", "--dest=org.freedesktop.systemd1", "/org/freedesktop/systemd1",
             "org.freedesktop.systemd1.Manager.Reload"],
    "dbus session": ["dbus-send", "--session", "--dest=org.freedesktop.DBus", "/", "org.freedesktop.DBus.ListNames"],
    "loginctl": ["loginctl", "enable-linger"], "docker": ["docker", "run", "--rm", "-v", "/:/host", "x", "touch", canary],
    "docker version": ["docker", "info"], "cron file": ["sh", "-c", "echo x > /etc/cron.d/x"],
    "autostart": ["sh", "-c", "mkdir -p %s/.config/autostart && echo x > %s/.config/autostart/x" % (given["home"], given["home"])],
    "profile": ["sh", "-c", "echo 'touch %s' >> %s/.profile" % (canary, given["home"])],
}
print(json.dumps({name: program(*one) for name, one in words.items()}))
"""


async def test_nobody_else_can_be_made_to_run_something(scene: Scene) -> None:
    """B4.45: systemd, at, cron, the bus, lingering, docker, what a desktop or a shell starts."""
    script = looking(ROUTES, canary=str(scene.canary), home=str(scene.home))

    attack = await scene.attacked(script)

    assert [name for name, code in found(attack.result).items() if code == 0] == []
    assert not (scene.home / ".profile").exists()
    assert not (scene.home / ".config/autostart").exists()
