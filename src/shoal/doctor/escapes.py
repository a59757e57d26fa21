"""Live escapes: run an attacker like an agent, and check on the host what it achieved."""

import contextlib
import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal import proc
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.doctor.targets import AttackTargets, open_targets
from shoal.errors import FAULTS, ShoalError, Unavailable
from shoal.model.agent import AgentSpec
from shoal.model.diagnosis import Finding
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask
from shoal.proc import Stream
from shoal.proc.output import HeadBuffer
from shoal.sandboxes.kind import SHARED_KERNEL, Sandbox
from shoal.sessions.context import RunContext
from shoal.sessions.host_probe import kind_of_workspace, probe_sandbox
from shoal.sessions.model_access import open_model
from shoal.sessions.open_session import open_session
from shoal.sessions.policy import agent_command
from shoal.sessions.sandboxed import open_sandboxed
from shoal.sessions.session import import_work
from shoal.sessions.worker import WorkerSpec

ATTACK = Path(__file__).with_name("attack.py")
SYSTEM = Path("/usr")  # shown in every sandbox
SAID_BYTES = 256 * 1024
NOT_SO_FAR = "the attacker did not get so far"


@dataclass(frozen=True, slots=True)
class Escape:
    """One way out; the attacker and the host report results under *key*."""

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
    Escape("trace", "tracing", "trace the process that it dies with"),
    Escape("kernel", "kernel", "lease a file, queue machine-wide requests"),
    Escape("namespace", "namespaces", "make a user namespace"),
    Escape("mount", "mounts", "mount a file system, uncover .git"),
    Escape("privileges", "privileges", "find capabilities, become root"),
    Escape("terminal", "terminal", "type into a terminal of the host's"),
    Escape("tcp", "loopback", "reach 127.0.0.1 by TCP and UDP"),
    Escape("socket", "sockets", "reach a unix socket by its path"),
    Escape("abstract", "abstract", "reach an abstract unix socket"),
)
KNOWN_GAP = "a known gap of this sandbox; the bubblewrap sandbox closes it"
BROKEN = "this sandbox does not hold on this host: do not run agents in it, and report it"
# Only the attacker itself can report on these; on all others it must present the secret, or the host must see it.
BY_WORD = frozenset({"namespace", "mount", "privileges", "trace", "kernel"})
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
    "Function not implemented": "unknown",
}


@dataclass(frozen=True, slots=True)
class Attacker:
    """The adapter of the attacker, whose plan is its standard input."""

    plan: Mapping[str, object]
    network: Network
    name: str = "attacker"
    client: None = None

    @property
    def default_network(self) -> Network:
        """Return the network for the tries."""
        return self.network

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Run it with our own interpreter; the mark in its command lets the host find surviving processes."""
        python = Path(sys.executable).resolve()
        library = () if python.is_relative_to(SYSTEM) else (python, python.parent.parent / "lib")
        argv = (str(python), "-I", "-S", str(ATTACK), str(self.plan["mark"]))
        return Invocation(argv=argv, stdin=json.dumps(self.plan).encode(), needs=(ATTACK, *library))

    def reader(self) -> None:
        """Return no reader: its output is plain text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackOutcome:
    """The outcome of an attack: the attacker's reports, and what the host saw."""

    reports: Mapping[str, "AttackReport"] = field(default_factory=dict)
    seen: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class AttackReport:
    """The attacker's report of one try; *proof* is what it obtained."""

    proof: str
    notes: str


async def try_escapes(context: RunContext, folder: Path, *, needed: bool) -> tuple[Finding, ...]:
    """Try every escape from the sandbox of *context*; *folder* is for the targets."""
    async with open_targets(folder, context.repository.git, context.environ) as bait:
        outcome = await run_attacker(context, bait, tuple(escape.key for escape in ESCAPES), Network.NONE)
    return tuple(_judge(escape, outcome, context.sandbox, needed=needed) for escape in ESCAPES)


async def run_attacker(
    context: RunContext, bait: AttackTargets, tries: tuple[str, ...], network: Network
) -> AttackOutcome:
    """Run the attacker in a session of *context*, import its work like an agent's, and check the host."""
    task = ResolvedTask(name="attack", prompt="", agent=AgentSpec(name="attacker", adapter="command"), network=network)
    attacker = Attacker(bait.plan(tries), network)
    worker = WorkerSpec(step=f"attack-{secrets.token_hex(2)}", index=0, count=1, task=task, adapter=attacker)
    output = _AttackOutput()
    unkept: dict[str, str] = {}
    trouble = ""
    try:
        failure = await _run_attack(context, worker, output)
        unkept = {"git": f"its work could not be brought in: {failure}"} if failure and "git" in tries else {}
    except (ShoalError, OSError, TimeoutError) as error:
        trouble = str(error) or type(error).__name__
    reports = output.reports()
    seen = {
        **unkept,
        **_find_leaks(reports, context.environ, output.given),
        **_collect_proof(reports, bait),
        **await bait.inspect(),
    }
    return AttackOutcome(reports=reports, seen=seen, trouble=trouble or output.complaint or NOT_SO_FAR)


async def _run_attack(context: RunContext, worker: WorkerSpec, output: "_AttackOutput") -> str | None:
    """Run the attacker to its end and import its work; return why that failed, or `None`."""
    network = worker.task.network or Network.NONE
    async with open_session(context, worker) as session, open_model(session, network) as model:
        command, policy = agent_command(session, model=model)
        output.given = command.env
        async with open_sandboxed(context.sandbox, command, policy, sink=output.feed, listen=model.listen) as sandboxed:
            await sandboxed.wait()
        try:
            return (await import_work(session)).failure
        except FAULTS as error:
            return str(error) or type(error).__name__


def _judge(escape: Escape, outcome: AttackOutcome, sandbox: Sandbox, *, needed: bool) -> Finding:
    report, seen = outcome.reports.get(escape.key), outcome.seen.get(escape.key)
    is_known = escape.key in sandbox.known_escapes
    held = report is not None and seen is None
    result = seen or (_shorten(report.notes) if report else outcome.trouble)
    return Finding(
        area=sandbox.name,
        name=escape.name,
        held=held,
        tried=escape.tried,
        result=result or "refused",
        remedy="" if held else KNOWN_GAP if is_known else BROKEN,
        needed=needed and not is_known,
    )


def _collect_proof(reports: Mapping[str, AttackReport], bait: AttackTargets) -> dict[str, str]:
    """Return the tries with proof: the secret itself, or the attacker's claim where no other proof exists."""
    reported = {key: report.proof for key, report in reports.items() if key in BY_WORD and report.proof}
    secrets = {key: BROUGHT[key] for key, report in reports.items() if key in BROUGHT and bait.secret in report.proof}
    return reported | secrets


def _find_leaks(
    reports: Mapping[str, AttackReport], environ: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return which of our variables leaked into the attacker's environment."""
    own = set(reports["environment"].proof.split("\0")) if "environment" in reports else set()
    leaked = sorted(name for name, value in environ.items() if f"{name}={value}" in own and given.get(name) != value)
    return {"environment": f"ours were handed on: {', '.join(leaked)}"} if leaked else {}


def _shorten(notes: str) -> str:
    """Shorten error messages of the C library."""
    return ", ".join(dict.fromkeys(SHORTER.get(part, part) for part in notes.split("; ")))


class _AttackOutput:
    """The attacker's output: reports on stdout, one per line, and errors on stderr.

    *given* are the variables that it was given.
    """

    def __init__(self) -> None:
        self._heads = {stream: HeadBuffer(SAID_BYTES) for stream in Stream}
        self.given: Mapping[str, str] = {}

    def feed(self, stream: Stream, data: bytes) -> None:
        """Take a chunk."""
        self._heads[stream].feed(data)

    def reports(self) -> dict[str, AttackReport]:
        """Parse the reports; skip other lines."""
        found = {}
        for line in self._heads[Stream.STDOUT].content().splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                words = json.loads(line)
                found[str(words["key"])] = AttackReport(str(words["proof"]), str(words["notes"]))
        return found

    @property
    def complaint(self) -> str:
        """Return the last line of stderr."""
        lines = self._heads[Stream.STDERR].content().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


NETWORK = "network"
VERSION_SECONDS = 5.0
NO_SCOPE = "use Linux 6.12 or later, whose Landlock can shut them; or keep agents on `network: none`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFindings:
    """The findings about a sandbox; it *stood* if nothing but its known gaps was open."""

    findings: tuple[Finding, ...]
    stood: bool


async def find_sandbox(name: str, environ: Mapping[str, str]) -> Sandbox | Unavailable:
    """Return the sandbox of that name, or why it is not available."""
    try:
        return await probe_sandbox(name, environ)
    except Unavailable as refused:
        return refused


async def check_sandbox(
    context: RunContext, name: str, sandbox: Sandbox | Unavailable, folder: Path, *, needed: bool
) -> SandboxFindings:
    """Try to escape from *sandbox*, in sessions of *context* that use it."""
    tried = "look at it from inside"
    if isinstance(sandbox, Unavailable):
        absent = Finding(
            area=name, name="wall", held=False, tried=tried, result=sandbox.why, remedy=sandbox.remedy, needed=needed
        )
        return SandboxFindings(findings=(absent,), stood=False)
    kind = await kind_of_workspace("auto", sandbox, context.paths)
    escapes = await try_escapes(replace(context, sandbox=sandbox, kind=kind), folder, needed=needed)
    up = Finding(area=name, name="wall", held=True, tried=tried, result=await _version(sandbox), needed=needed)
    gaps = (
        Finding(area=name, name="not held", held=None, tried="", result=gap) for gap in (*sandbox.gaps, *SHARED_KERNEL)
    )
    stood = all(escape.held or escape.remedy == KNOWN_GAP for escape in escapes)
    return SandboxFindings(findings=(up, *escapes, *gaps), stood=stood)


async def check_host_network(context: RunContext, folder: Path) -> tuple[Finding, ...]:
    """Try `network: host`: what it allows must work, and everything else must stay closed."""
    async with open_targets(folder, context.repository.git, context.environ) as bait:
        outcome = await run_attacker(context, bait, ("tcp", "abstract"), Network.HOST)
    is_reached, is_open = "tcp" in outcome.seen, "abstract" in outcome.seen
    result = "reached, as asked for" if is_reached else outcome.trouble
    shut = "abstract" in outcome.reports and not is_open
    return (
        Finding(
            area=NETWORK,
            name="host",
            held=is_reached,
            tried="reach 127.0.0.1 with `network: host`",
            result=result,
            remedy="" if is_reached else "agents that need a model cannot reach one from here; look at the firewall",
        ),
        Finding(
            area=NETWORK,
            name="abstract",
            held=shut,
            tried="reach an abstract socket with it",
            result="refused" if shut else outcome.seen.get("abstract", outcome.trouble),
            remedy="" if shut else NO_SCOPE,
        ),
    )


async def check_gateway(context: RunContext, folder: Path) -> tuple[Finding, ...]:
    """Try `network: gateway`: Shoal must listen there, and let nothing through to the host's own addresses."""
    if not context.sandbox.can_listen:
        return ()
    async with open_targets(folder, context.repository.git, context.environ) as bait:
        tried = ("gateway", "tcp", "abstract", "environment")
        outcome = await run_attacker(context, bait, tried, Network.GATEWAY)
    answered = outcome.reports.get("gateway")
    listens = answered is not None and "HTTP/1.1" in answered.notes
    leak = next((f"{key}: {outcome.seen[key]}" for key in tried if key in outcome.seen), None)
    held = listens and leak is None
    result = "refused" if held else leak or (outcome.trouble if answered is None else "nobody listens in the sandbox")
    return (
        Finding(
            area=NETWORK,
            name="gateway",
            held=held,
            tried="get past the gateway to 127.0.0.1",
            result=result,
            remedy="" if held else "do not use `network: gateway` on this host, and report it",
        ),
    )


async def _version(sandbox: Sandbox) -> str:
    version = sandbox.version
    if isinstance(version, str):
        return version
    program = str(version.argv[0])
    try:
        done = await proc.run(version, timeout=VERSION_SECONDS)
    except (ShoalError, TimeoutError):
        return program
    return f"{done.stdout.decode(errors='replace').strip()}, {program}"
