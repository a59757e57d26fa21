"""Live escapes: an attacker is run as an agent would be, and the host looks at what came of each try."""

import contextlib
import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.adapters.kind import Invocation, Place
from shoal.engine.agent_box import agent_box
from shoal.engine.behind import boxed
from shoal.engine.doctor.bait import Bait, laid
from shoal.engine.job import Job
from shoal.engine.quarters import opened
from shoal.engine.session import FAULTS, bring_in
from shoal.engine.site import Site
from shoal.errors import ShoalError
from shoal.model.agent import AgentSpec
from shoal.model.assignment import Assignment
from shoal.model.finding import Finding
from shoal.model.policy import Network
from shoal.proc import Stream
from shoal.proc.kept import Head

ATTACK = Path(__file__).with_name("attack.py")
SYSTEM = Path("/usr")  # shown in every box
SAID_BYTES = 256 * 1024
NOT_SO_FAR = "the attacker did not get so far"


@dataclass(frozen=True, slots=True)
class Escape:
    """One way out; by *key* the attacker and the host name what came of it."""

    key: str
    name: str
    tried: str


ESCAPES = (
    Escape("secret", "read", "read a secret file outside"),
    Escape("write", "write", "write to HOME, /tmp and the repository"),
    Escape("git", "git", "replace .git, plant hooks in both"),
    Escape("process", "processes", "see another process"),
    Escape("environment", "environment", "read variables of ours and another's"),
    Escape("signal", "signals", "kill a process, signal the coordinator"),
    Escape("linger", "survivors", "leave a daemon behind"),
    Escape("namespace", "namespaces", "make a user namespace"),
    Escape("mount", "mounts", "mount a file system, uncover .git"),
    Escape("privileges", "privileges", "find capabilities, become root"),
    Escape("terminal", "terminal", "type into a terminal of the host's"),
    Escape("tcp", "loopback", "reach 127.0.0.1 by TCP and UDP"),
    Escape("socket", "sockets", "reach a unix socket by its path"),
    Escape("abstract", "abstract", "reach an abstract unix socket"),
)
# What a wall is known not to hold; for these alone it is not called broken.
KNOWN: Mapping[str, frozenset[str]] = {"landlock": frozenset({"process"})}
KNOWN_GAP = "a known gap of this wall; the bubblewrap wall holds it"
BROKEN = "this wall does not hold here: do not run agents behind it, and report it"
# Of these the attacker can only tell by itself; of all others it has to bring the secret, or the host to see it.
BY_WORD = frozenset({"namespace", "mount", "privileges"})
BROUGHT = {
    "secret": "it was read",
    "process": "its command was read",
    "environment": "variables of another process were read",
}
SHORTER = {
    "No such file or directory": "not there",
    "No such process": "not there",
    "Permission denied": "denied",
    "Operation not permitted": "not permitted",
    "Read-only file system": "read-only",
    "Device or resource busy": "busy",
    "Connection refused": "refused",
    "Invalid argument": "not possible",
}


@dataclass(frozen=True, slots=True)
class Attacker:
    """The adapter of the attacker: what it is to try is its standard input."""

    plan: Mapping[str, object]
    network: Network
    name: str = "attacker"
    client: None = None

    @property
    def default_network(self) -> Network:
        """Return the network that it is tried on."""
        return self.network

    def invocation(self, task: Assignment, place: Place) -> Invocation:
        """Run it with our own interpreter; its mark is in its command, so that the host finds what it leaves."""
        python = Path(sys.executable).resolve()
        library = () if python.is_relative_to(SYSTEM) else (python, python.parent.parent / "lib")
        argv = (str(python), "-I", "-S", str(ATTACK), str(self.plan["mark"]))
        return Invocation(argv=argv, stdin=json.dumps(self.plan).encode(), needs=(ATTACK, *library))

    def reader(self) -> None:
        """Take its output as plain words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of an attack: what the attacker said of each try, and what the host saw."""

    reports: Mapping[str, "Report"] = field(default_factory=dict)
    seen: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What the attacker said of one try; *proof* is what it brought out."""

    proof: str
    said: str


async def escaped(site: Site, folder: Path, *, needed: bool) -> tuple[Finding, ...]:
    """Try every escape from the wall of *site*; *folder* is where the bait is laid."""
    async with laid(folder, site.repository.git) as bait:
        outcome = await attacked(site, bait, tuple(one.key for one in ESCAPES), Network.NONE)
    return tuple(_judged(one, outcome, site.sandbox.name, needed=needed) for one in ESCAPES)


async def attacked(site: Site, bait: Bait, tries: tuple[str, ...], network: Network) -> Outcome:
    """Run the attacker in a session of *site*, bring in what it wrote as for any agent, and look."""
    task = Assignment(name="attack", prompt="", agent=AgentSpec(name="attacker", adapter="command"), network=network)
    attacker = Attacker(bait.plan(tries), network)
    job = Job(step=f"attack-{secrets.token_hex(2)}", index=0, count=1, task=task, adapter=attacker)
    said = _Said()
    unkept: dict[str, str] = {}
    trouble = ""
    try:
        failure = await _ran(site, job, said)
        unkept = {"git": f"its work could not be brought in: {failure}"} if failure and "git" in tries else {}
    except (ShoalError, OSError, TimeoutError) as error:
        trouble = str(error) or type(error).__name__
    reports = said.reports()
    seen = {**unkept, **_leaked(reports, site.environ, said.given), **_brought_out(reports, bait), **await bait.seen()}
    return Outcome(reports=reports, seen=seen, trouble=trouble or said.complaint or NOT_SO_FAR)


async def _ran(site: Site, job: Job, said: "_Said") -> str | None:
    """Run the attacker to its end and bring its work in; say why that failed."""
    path = site.paths.workspace(site.run, job.step, 0)
    async with opened(site, job, path) as (workspace, lease, spare):
        command, policy = agent_box(site, job, workspace, lease)
        said.given = command.env
        async with boxed(site.sandbox, command, policy, sink=said.feed) as box:
            await box.wait()
        try:
            return (await bring_in(site, job, workspace, lease, spare)).failure
        except FAULTS as error:
            return str(error) or type(error).__name__


def _judged(escape: Escape, outcome: Outcome, wall: str, *, needed: bool) -> Finding:
    report, seen = outcome.reports.get(escape.key), outcome.seen.get(escape.key)
    is_known = escape.key in KNOWN.get(wall, ())
    held = report is not None and seen is None
    said = seen or (_shorter(report.said) if report else outcome.trouble)
    return Finding(
        area=wall,
        name=escape.name,
        held=held,
        tried=escape.tried,
        said=said or "refused",
        remedy="" if held else KNOWN_GAP if is_known else BROKEN,
        needed=needed and not is_known,
    )


def _brought_out(reports: Mapping[str, Report], bait: Bait) -> dict[str, str]:
    """Say which tries have proof: the secret itself, or the attacker's word where there is none."""
    told = {key: one.proof for key, one in reports.items() if key in BY_WORD and one.proof}
    brought = {key: BROUGHT[key] for key, one in reports.items() if key in BROUGHT and bait.secret in one.proof}
    return told | brought


def _leaked(reports: Mapping[str, Report], environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Say which of our own variables the attacker found in its environment, though they were not given to it."""
    own = set(reports["environment"].proof.split("\0")) if "environment" in reports else set()
    leaked = sorted(name for name, value in environ.items() if f"{name}={value}" in own and given.get(name) != value)
    return {"environment": f"ours were handed on: {', '.join(leaked)}"} if leaked else {}


def _shorter(said: str) -> str:
    """Say in a word what the C library says in a sentence."""
    return ", ".join(dict.fromkeys(SHORTER.get(part, part) for part in said.split("; ")))


class _Said:
    """The attacker's words: reports on stdout, one on each line, and complaints on stderr.

    *given* are the variables that it was given.
    """

    def __init__(self) -> None:
        self._heads = {stream: Head(SAID_BYTES) for stream in Stream}
        self.given: Mapping[str, str] = {}

    def feed(self, stream: Stream, data: bytes) -> None:
        """Take a chunk."""
        self._heads[stream].feed(data)

    def reports(self) -> dict[str, Report]:
        """Read what was said; a line that is none of ours is passed over."""
        found = {}
        for line in self._heads[Stream.STDOUT].content().splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                words = json.loads(line)
                found[str(words["key"])] = Report(str(words["proof"]), str(words["said"]))
        return found

    @property
    def complaint(self) -> str:
        """Give the last line of stderr."""
        lines = self._heads[Stream.STDERR].content().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""
