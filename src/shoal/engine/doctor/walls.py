"""Each wall in turn: whether it can be had, whether it is got out of, and what it is known not to hold."""

from dataclasses import dataclass, replace
from pathlib import Path

from shoal import proc
from shoal.engine.doctor.bait import laid
from shoal.engine.doctor.escapes import KNOWN_GAP, attacked, escaped
from shoal.engine.ground import kind_of_workspace, wall
from shoal.engine.site import Site
from shoal.errors import ShoalError, Unavailable
from shoal.model.command import Command
from shoal.model.finding import Finding
from shoal.model.policy import Network
from shoal.sandboxes.bubblewrap import Bubblewrap
from shoal.sandboxes.kind import OUTSIDE_CWD, OUTSIDE_ENV, Sandbox
from shoal.sandboxes.landlock import Landlock

NETWORK = "network"
VERSION_SECONDS = 5.0
NO_SCOPE = "use Linux 6.12 or later, whose Landlock can shut them; or keep agents on `network: none`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walled:
    """What was found about a wall; it *stood* if nothing but its known gaps was open."""

    findings: tuple[Finding, ...]
    stood: bool


async def had(name: str) -> Sandbox | Unavailable:
    """Give the wall of that name, or why it cannot be had."""
    try:
        return await wall(name)
    except Unavailable as refused:
        return refused


async def walled(site: Site, name: str, one: Sandbox | Unavailable, folder: Path, *, needed: bool) -> Walled:
    """Try to get out of *one*, in sessions of *site* that stand behind it."""
    tried = "look at it from inside"
    if isinstance(one, Unavailable):
        absent = Finding(
            area=name, name="wall", held=False, tried=tried, said=one.why, remedy=one.remedy, needed=needed
        )
        return Walled(findings=(absent,), stood=False)
    kind = await kind_of_workspace("auto", one, site.paths)
    escapes = await escaped(replace(site, sandbox=one, kind=kind), folder, needed=needed)
    up = Finding(area=name, name="wall", held=True, tried=tried, said=await _version(one), needed=needed)
    gaps = (Finding(area=name, name="not held", held=None, tried="", said=gap) for gap in one.gaps)
    stood = all(escape.held or escape.remedy == KNOWN_GAP for escape in escapes)
    return Walled(findings=(up, *escapes, *gaps), stood=stood)


async def networked(site: Site, folder: Path) -> tuple[Finding, ...]:
    """Try `network: host`: what it is asked for must work, and what it does not need must stay shut."""
    async with laid(folder, site.repository.git) as bait:
        outcome = await attacked(site, bait, ("tcp", "abstract"), Network.HOST)
    is_reached, is_open = "tcp" in outcome.seen, "abstract" in outcome.seen
    said = "reached, as asked for" if is_reached else outcome.trouble
    shut = "abstract" in outcome.reports and not is_open
    return (
        Finding(
            area=NETWORK,
            name="host",
            held=is_reached,
            tried="reach 127.0.0.1 with `network: host`",
            said=said,
            remedy="" if is_reached else "agents that need a model cannot reach one from here; look at the firewall",
        ),
        Finding(
            area=NETWORK,
            name="abstract",
            held=shut,
            tried="reach an abstract socket with it",
            said="refused" if shut else outcome.seen.get("abstract", outcome.trouble),
            remedy="" if shut else NO_SCOPE,
        ),
    )


async def _version(one: Sandbox) -> str:
    match one:
        case Bubblewrap(bwrap=program):
            command = Command(argv=(str(program), "--version"), cwd=OUTSIDE_CWD, env=OUTSIDE_ENV)
            try:
                done = await proc.run(command, timeout=VERSION_SECONDS)
            except (ShoalError, TimeoutError):
                return str(program)
            return f"{done.stdout.decode(errors='replace').strip()}, {program}"
        case Landlock(abi=abi):
            return f"Landlock version {abi}"
        case _:
            return one.name
