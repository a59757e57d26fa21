"""The launcher as a supervisor: exact verdicts, exact environment, and no process left behind."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from shoal.model.command import Command
from shoal.model.policy import Policy
from shoal.sandboxes.host import LAUNCHER
from shoal.sandboxes.kind import Sandbox
from tests.sandboxes.sandbox_runs import SEARCH, TOKEN, Person, boxed, has_ended, python, ran, started

DAEMON = r"""
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    said, tell = os.pipe()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.write(tell, b".")
        time.sleep(300)
    os.read(said, 1)
    os._exit(0)
os.wait()
"""


@pytest.fixture(params=["landlock", "none"])
def sandbox(request: pytest.FixtureRequest, landlock: Sandbox, no_wall: Sandbox) -> Sandbox:
    """Both sandboxes that use the launcher."""
    return landlock if request.param == "landlock" else no_wall


def wrapped(sandbox: Sandbox, who: Person, argv: tuple[str, ...]) -> Command:
    work = who.made("work")
    return sandbox.wrap(Command(argv=argv, cwd=work, env={"PATH": SEARCH}), Policy(token=TOKEN, write=(work,)))


@pytest.mark.parametrize("code", [0, 1, 125, 137, 143, 255])
def test_the_exit_code_is_exact(who: Person, sandbox: Sandbox, code: int) -> None:
    assert boxed(sandbox, who, ("sh", "-c", f"exit {code}")).code == code


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "ABRT", "HUP", "PIPE", "INT", "USR1"])
def test_the_signal_is_exact(who: Person, sandbox: Sandbox, name: str) -> None:
    assert boxed(sandbox, who, ("sh", "-c", f"kill -{name} $$")).code == -getattr(signal, f"SIG{name}")


def test_a_program_that_cannot_be_run_is_told(who: Person, sandbox: Sandbox) -> None:
    missing, refused = boxed(sandbox, who, ("nope",)), boxed(sandbox, who, ("/usr",))

    assert (missing.code, missing.said) == (127, "nope: not found\n")
    assert refused.code == 126


def test_environment_folder_arguments_and_input_arrive(who: Person, sandbox: Sandbox) -> None:
    script = "import os, sys; print(open('/proc/self/environ').read(), os.getcwd(), sys.argv[1:], sys.stdin.read())"
    work = who.made("work")
    command = Command(argv=python(script, "--", "a\nb"), cwd=work, env={"X-Y": "1=2"}, stdin=b"in")
    done = ran(sandbox.wrap(command, Policy(token=TOKEN, write=(work,))), who)

    environment, _, rest = done.out.rpartition("\0")
    own = {word for word in environment.split("\0") if not word.startswith("GIT_")}
    assert own == {"X-Y=1=2"}
    assert rest == f" {work} ['--', 'a\\nb'] in\n"
    assert done.said == ""


def test_what_is_left_running_is_ended(who: Person, sandbox: Sandbox) -> None:
    done = boxed(sandbox, who, python(DAEMON))

    assert done.code == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.out), 0)


def test_a_swarm_is_ended(who: Person, sandbox: Sandbox) -> None:
    """Processes that leave their session and fork on; when all are gone, the pipe that they hold is closed."""
    swarm = "i=0; while [ $i -lt 30 ]; do setsid sh -c 'sleep 300 & sleep 300' & i=$((i + 1)); done; echo up"

    done = boxed(sandbox, who, ("sh", "-c", swarm))

    assert (done.code, done.out) == (0, "up\n")


def test_asked_to_stop_it_asks_the_agent(who: Person, sandbox: Sandbox) -> None:
    command = wrapped(sandbox, who, ("sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"))
    with started(command, who) as (child, _):
        assert child.stdout
        child.stdout.readline()
        child.terminate()

        assert child.stdout.read() == b"bye\n"
        assert child.wait(30) == 3


@pytest.mark.parametrize("victim", ["keeper", "reaper", "group"])
def test_a_killed_supervisor_leaves_nobody(who: Person, sandbox: Sandbox, victim: str) -> None:
    argv = python(DAEMON + "\ntime.sleep(300)")
    with started(wrapped(sandbox, who, argv), who) as (child, info):
        assert child.stdout
        daemon = os.pidfd_open(int(child.stdout.readline()))
        reaper = json.loads(os.read(info, 999))["child-pid"]
        match victim:
            case "keeper":
                child.kill()
            case "reaper":
                os.kill(reaper, signal.SIGKILL)
            case _:
                os.killpg(child.pid, signal.SIGKILL)

        assert has_ended(daemon)
        assert child.stdout.read() == b""


def test_all_die_with_the_coordinator(who: Person, sandbox: Sandbox) -> None:
    """The coordinator is a process between; the report's pipe is held by it alone."""
    script = (
        "import json, os, subprocess, sys\nr, w = os.pipe()\nwords = json.loads(sys.argv[1])\n"
        "argv = [str(w) if x == '@' else x for x in words]\n"
        "subprocess.Popen(argv, pass_fds=[w, *map(int, sys.argv[2:])], start_new_session=True)\n"
        "os.close(w); os.read(r, 99); sys.stdin.read()"
    )
    command = wrapped(sandbox, who, python(DAEMON + "\ntime.sleep(300)"))
    lent: list[int] = []

    def spelled(argument: object) -> str:
        content = getattr(argument, "content", None)
        if content is None:
            return argument if isinstance(argument, str) else "@"
        lent.append(os.memfd_create("given"))
        os.write(lent[-1], content)
        os.lseek(lent[-1], 0, os.SEEK_SET)
        return str(lent[-1])

    words = json.dumps([*map(spelled, command.argv)])
    with subprocess.Popen(
        [*who.prefix, *python(script, words, *lent)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=lent,
    ) as coordinator:  # fmt: skip
        assert coordinator.stdout
        daemon = os.pidfd_open(int(coordinator.stdout.readline()))
        coordinator.kill()

        assert has_ended(daemon)
        assert coordinator.stdout.read() == b""
    for fd in lent:
        os.close(fd)


def test_nobody_starts_for_a_coordinator_that_is_gone(who: Person, sandbox: Sandbox) -> None:
    """Its death before the launcher could ask to die with it shows by the report's closed pipe."""
    command = wrapped(sandbox, who, python(DAEMON + "\ntime.sleep(300)"))
    waits = replace(command, argv=("sh", "-c", 'read go; exec "$@"', "sh", *command.argv))
    with started(waits, who) as (child, info):
        os.dup2(os.open("/dev/null", os.O_RDONLY), info)
        out, _ = child.communicate(b"go\n", timeout=30)

    assert child.returncode == -signal.SIGKILL
    for pid in out.split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_the_launcher_is_light() -> None:
    script = "import sys; exec(open(sys.argv[1]).read(), {'__name__': 'x'}); print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", script, str(LAUNCHER)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert {"json", "re", "enum", "signal", "typing", "pathlib", "warnings"} & set(said.split()) == set()
