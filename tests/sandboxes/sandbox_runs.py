"""Run wrapped commands in tests, as root and as an ordinary user, without `shoal.proc`."""

import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shoal.model.command import Argument, Command, InheritedBytes, ReportPipe, SharedSocket
from shoal.model.policy import Policy
from shoal.sandboxes.host import SandboxHost, Trial, inspect_host
from shoal.sandboxes.kind import Sandbox, ready_line
from shoal.sandboxes.registry import find, trials
from shoal.sessions.host_probe import device_nodes

SEARCH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PYTHON = Path("/usr/bin/python3")
ORDINARY_UID = 12345
TOKEN = "5e11"
WHO = ("root", "ordinary") if os.geteuid() == 0 else ("ordinary",)
# For long lists of sandboxes: all of it as the user of the tests, as another user only in the long sweeps.
FIRST = (WHO[0], *(pytest.param(name, marks=pytest.mark.deep) for name in WHO[1:]))
SECONDS = 30


@dataclass(frozen=True, slots=True)
class Person:
    """A user who starts sandboxes, with a folder of their own and a command prefix that switches to them."""

    name: str
    uid: int
    folder: Path
    prefix: tuple[str, ...]

    def made(self, name: str, text: str | None = None) -> Path:
        """Create a folder, or a file with *text*, owned by them."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True) if text is None else path.write_text(text)
        while path != self.folder:
            os.chown(path, self.uid, self.uid)
            path = path.parent
        return self.folder / name


@contextmanager
def person(name: str) -> Iterator[Person]:
    """Be root, or an ordinary user."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-wall-", dir="/tmp"))
    uid = os.geteuid()
    prefix: tuple[str, ...] = ()
    if name == "ordinary" and uid == 0:
        uid = ORDINARY_UID
        prefix = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--")
    os.chown(folder, uid, uid)
    try:
        yield Person(name, uid, folder, prefix)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended; *code* is negative for a signal."""

    code: int
    out: str
    err: str
    info: str

    @property
    def said(self) -> str:
        """What came on stderr after the sandbox's own line, which must be the first."""
        first = ready_line(TOKEN).decode()
        assert self.err.startswith(first), self
        return self.err.removeprefix(first)


@contextmanager
def started(command: Command, who: Person) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a command as *who*, and give it with our end of its report; all its descriptors are closed at the end."""
    with ExitStack() as stack:
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        lent = [writing]

        def spelled(argument: Argument) -> str:
            match argument:
                case InheritedBytes(content):
                    fd = os.memfd_create("given")
                    os.write(fd, content)
                    os.lseek(fd, 0, os.SEEK_SET)
                    lent.append(fd)
                    return str(fd)
                case ReportPipe():
                    return str(writing)
                case SharedSocket():  # nobody listens, so nothing is to be waited for
                    lent.append(os.open(os.devnull, os.O_RDONLY))
                    return str(lent[-1])
                case _:
                    return argument

        argv = [*who.prefix, *map(spelled, command.argv)]
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd=command.cwd, env=command.env, pass_fds=lent,
            start_new_session=True,
        )  # fmt: skip
        for fd in lent:
            os.close(fd)
        with child:
            try:
                yield child, reading
            finally:
                child.kill()


def ran(command: Command, who: Person) -> Ran:
    """Run a command to its end."""
    with started(command, who) as (child, info):
        assert isinstance(command.stdin, bytes)
        out, err = child.communicate(command.stdin, timeout=SECONDS)
        return Ran(
            child.returncode, out.decode(errors="replace"), err.decode(errors="replace"), os.read(info, 9999).decode()
        )


def host(who: Person) -> SandboxHost:
    """Inspect the host as *who*, and run all trials."""
    found = inspect_host(SEARCH, device_nodes())
    if who.uid != os.geteuid():
        # Ours may lie in a folder that is closed to others, and what is done for root is not needed.
        launcher = who.made("launcher.py", found.launcher.read_text())
        found = replace(found, python=PYTHON, launcher=launcher, root=replace(found.root, devices=(), closed=()))
    results = {}
    for name, command in trials(found).items():
        done = ran(command, who)
        results[name] = Trial(code=done.code, stdout=done.out.encode(), stderr=done.err.encode())
    return found.with_trials(results)


def wall(name: str, who: Person) -> Sandbox:
    """Return a sandbox as *who* has it."""
    return find(name, host(who))


def boxed(sandbox: Sandbox, who: Person, argv: tuple[str, ...], policy: Policy | None = None, **env: str) -> Ran:
    """Run *argv* in a sandbox, in the person's folder `work`."""
    work = who.made("work")
    policy = policy or Policy()
    policy = replace(policy, token=TOKEN, write=(work, *policy.write))
    command = Command(argv=argv, cwd=work, env={"PATH": SEARCH, **env})
    return ran(sandbox.wrap(command, policy), who)


def python(script: str, *arguments: object) -> tuple[str, ...]:
    """Write a Python script as a command."""
    return (str(PYTHON), "-I", "-c", script, *map(str, arguments))


def facts(done: Ran) -> dict[str, object]:
    """Read the JSON that a script printed."""
    assert done.code == 0, done
    found: dict[str, object] = json.loads(done.out)
    return found


def has_ended(pidfd: int) -> bool:
    """Wait for the end of a process, and close its descriptor."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    try:
        return bool(poll.poll(SECONDS * 1000))
    finally:
        os.close(pidfd)
