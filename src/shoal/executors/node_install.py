"""Install Shoal on a host over ssh, and remove it: each step is repeatable, and the last makes it count."""

import hashlib
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal import __version__, proc
from shoal.errors import BadInput, Unavailable
from shoal.executors.carriers.kind import NodeUnavailable
from shoal.executors.carriers.ssh import SshCarrier
from shoal.executors.carriers.ssh_host import CONNECT_SECONDS, NODE_FOLDER, SshHost, explain_ssh, open_ssh_host
from shoal.executors.node_connection import greet
from shoal.executors.own_wheel import build_wheel
from shoal.model.command import Command
from shoal.model.nodes import NodeAddress, NodeOffer

PROGRAM = Path(__file__).with_name("install_program.py")
INSTALL_SECONDS = 900.0
PROBE_SECONDS = CONNECT_SECONDS + 60.0
DOWNLOAD_SECONDS = 600.0
DIGEST_CHARS = 12
ERROR_CHARS = 1500
NO_PYTHON = 4
OLDEST_GLIBC = 17  # that of manylinux2014

OnStep = Callable[[str], None]

FIND_PYTHON = (
    'for p in ${1:-python3 python3.14 python3.13 python3.12 python3.11}; do command -v "$p" >/dev/null && '
    '"$p" -c "import sys; sys.exit(sys.version_info < (3, 11))" </dev/null 2>/dev/null && exec "$p" - probe; done; '
    'p="${1:-python3}"; command -v "$p" >/dev/null || exit 4; exec "$p" - probe'
)
INSTALL = (
    f'umask 077; n="$HOME/{NODE_FOLDER}"; mkdir -p "$n" && d=$(mktemp -d "$n/incoming.XXXXXX") || exit 3; '
    'trap "rm -rf \\"$d\\"" EXIT; tar -xf - -C "$d" && "$1" "$d/program.py" install "$d" "$2" "$3" "$4"'
)
RUN_PROGRAM = 'exec "$1" - "$2" "$3" "$4"'


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelSource:
    """Where the wheels of Shoal's dependencies come from: the host's own index, unless one of these is given."""

    folder: Path | None = None
    is_sent: bool = False
    """Whether they are downloaded here, for the host's Python, and sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPython:
    """The Python of a host, as its probe describes it."""

    path: str
    version: str
    machine: str
    libc: str
    libc_version: str

    def list_platforms(self) -> tuple[str, ...]:
        """Name the platforms whose wheels it takes, the newest first."""
        major, _, minor = self.libc_version.partition(".")
        if self.libc != "glibc" or not minor.isdecimal():
            return tuple(f"musllinux_1_{number}_{self.machine}" for number in (2, 1))
        newer = (f"manylinux_{major}_{number}_{self.machine}" for number in range(int(minor), OLDEST_GLIBC - 1, -1))
        return (*newer, f"manylinux2014_{self.machine}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledNode:
    """What an installation did: the version that a host runs now."""

    place: str
    version: str
    build: str
    python: HostPython
    offer: NodeOffer
    """What the node says that it can do."""
    is_new: bool
    removed: tuple[str, ...]
    """Older builds that nobody uses any more."""


async def install_node(
    place: str,
    environ: Mapping[str, str],
    *,
    python: str | None = None,
    wheels: WheelSource | None = None,
    on_step: OnStep = lambda step: None,
) -> InstalledNode:
    """Install this version on the host *place*, and make it the one that its nodes run.

    A build that is there is used again. Raises `NodeUnavailable`; the host then runs what it ran before.
    """
    wheels = wheels or WheelSource()
    _refuse_option(python)
    async with open_ssh_host(place, environ) as host:
        found = await _probe(host, python)
        on_step(f"Python {found.version} at {found.path}")
        with tempfile.TemporaryDirectory(prefix="shoal-node-") as folder:
            wheel = build_wheel(Path(folder))
            build = f"{__version__}-{hashlib.sha256(wheel.read_bytes()).hexdigest()[:DIGEST_CHARS]}"
            archive = await _pack(wheel, wheels, found, environ)
            on_step(f"sending {archive.stat().st_size / 1e6:.1f} MB, and installing")
            mode = "wheels" if wheels.folder or wheels.is_sent else "index"
            command = host.command(INSTALL, found.path, __version__, build, mode, stdin=archive)
            installed = await _ask(host, command, INSTALL_SECONDS)
        offer = await _greet(host, build)
        switched = await _ask(host, _program(host, found.path, "switch", __version__, build), PROBE_SECONDS)
    removed = switched.get("removed")
    return InstalledNode(
        place=place,
        version=__version__,
        build=build,
        python=found,
        offer=offer,
        is_new=installed.get("is_new") is True,
        removed=tuple(map(str, removed)) if isinstance(removed, list) else (),
    )


async def uninstall_node(place: str, environ: Mapping[str, str], *, python: str | None = None) -> tuple[str, ...]:
    """Remove what was installed on the host *place*, and return the removed builds; the nodes' work stays."""
    _refuse_option(python)
    async with open_ssh_host(place, environ) as host:
        found = await _probe(host, python)
        answer = await _ask(host, _program(host, found.path, "uninstall", "", ""), PROBE_SECONDS)
    builds = answer.get("uninstalled")
    return tuple(map(str, builds)) if isinstance(builds, list) else ()


def _refuse_option(python: str | None) -> None:
    if python is not None and (not python or python.startswith("-") or set(python) & set(" \t\n*?[")):
        raise BadInput(f"--python {python!r} names no program; give its path on the host, or a name like python3.12")


async def _greet(host: SshHost, build: str) -> NodeOffer:
    """Start a node of *build* and exchange greetings, before any run could use it."""
    address = NodeAddress(carrier="ssh", place=host.place, name=host.place)
    async with SshCarrier(address, host, f"builds/{build}").connect(address) as stream:
        hello = await greet(stream, address)
    return hello.offer or NodeOffer(version=hello.version)


async def _probe(host: SshHost, python: str | None) -> HostPython:
    command = host.command(FIND_PYTHON, python or "", stdin=PROGRAM.read_bytes())
    answer = await _ask(host, command, PROBE_SECONDS)
    words = {name: str(answer.get(name, "")) for name in ("version", "machine", "libc", "libc_version")}
    return HostPython(path=str(answer.get("python", "")), **words)


def _program(host: SshHost, python: str, *words: str) -> Command:
    return host.command(RUN_PROGRAM, python, *words, stdin=PROGRAM.read_bytes())


async def _ask(host: SshHost, command: Command, seconds: float) -> Mapping[str, object]:
    """Run *command* on the host, and return its last answer; raise what it says is wrong."""
    try:
        done = await proc.run(command, timeout=seconds)
    except TimeoutError as error:
        raise NodeUnavailable(host.place, f"it took longer than {seconds:.0f} s", "try again") from error
    if done.exit.code == NO_PYTHON:
        raise NodeUnavailable(
            host.place, "there is no such Python", "install python3 there, or name one: --python PATH"
        )
    answers = [answer for line in done.stdout.splitlines() if isinstance(answer := _parse(line), dict)]
    if answers and "error" in answers[-1]:
        raise NodeUnavailable(host.place, str(answers[-1]["error"]), str(answers[-1].get("remedy", "mend it")))
    if not answers or not done.ok:
        raise NodeUnavailable(host.place, *explain_ssh(host.place, done.stderr))
    return answers[-1]


def _parse(line: bytes) -> object:
    """Read an answer; other lines come from the host's login shell."""
    try:
        return json.loads(line)
    except ValueError:
        return None


async def _pack(wheel: Path, wheels: WheelSource, python: HostPython, environ: Mapping[str, str]) -> Path:
    """Pack the program, our wheel, and those of the dependencies where they are sent."""
    sent = wheel.parent / "wheels"
    if wheels.is_sent:
        await _download(wheel, sent, python, environ)
    folder = sent if wheels.is_sent else wheels.folder
    others = sorted(folder.glob("*.whl")) if folder else []
    if folder and not others:
        raise BadInput(f"{folder} has no wheels; `pip download -d {folder} shoal` fills it")
    archive = wheel.parent / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(PROGRAM, "program.py")
        for path in (*(other for other in others if not other.name.startswith("shoal-")), wheel):
            tar.add(path, path.name)
    return archive


async def _download(wheel: Path, target: Path, python: HostPython, environ: Mapping[str, str]) -> None:
    """Download the wheels that the host's Python needs."""
    platforms = [f"--platform={name}" for name in python.list_platforms()]
    version = ".".join(python.version.split(".")[:2])
    words = ("--quiet", "--no-input", "--only-binary=:all:", f"--python-version={version}", *platforms)
    argv = (sys.executable, "-m", "pip", "download", *words, f"--dest={target}", str(wheel))
    done = await proc.run(Command(argv=argv, cwd=wheel.parent, env=environ), timeout=DOWNLOAD_SECONDS)
    if not done.ok:
        text = (done.stderr or done.stdout).decode(errors="replace").strip()[-ERROR_CHARS:]
        raise Unavailable(
            "what Shoal needs on that host",
            f"pip could not download it: {text}",
            "give a folder of wheels: --wheels DIR",
        )
