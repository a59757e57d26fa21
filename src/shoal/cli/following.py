"""Following a run to its end, for the commands that start one."""

import asyncio
import os
from pathlib import Path

from shoal.cli import output
from shoal.cli.face import Face
from shoal.cli.garbage import seldom_collected
from shoal.cli.interrupt import Interrupt, interruptible
from shoal.cli.render import trouble
from shoal.engine.prepare import Ask
from shoal.engine.run import run
from shoal.model.plan import Plan
from shoal.model.results import RunReport
from shoal.model.status import Status

GOOD, NOT_ALL_GOOD, FOR_A_PERSON, LATE, INTERRUPTED = 0, 1, 4, 124, 130


async def followed(plan: Plan, ask: Ask, face: Face, deadline: float | None = None) -> int:
    """Run *plan* with *face* to show it, for at most *deadline* seconds, and return the exit code."""
    with interruptible(deadline) as interrupt:
        try:
            with seldom_collected():
                report = await run(plan, ask, stop=interrupt.stop, listen=face.hear)
        except asyncio.CancelledError:
            output.tell(trouble.ended_at_once())
            return INTERRUPTED
        await face.conclude(report, ask.folder)
    return _code(report, interrupt)


def asked(plan: Plan, folder: Path, base: str | None = None, *, approve_all: bool = False) -> Ask:
    """Ask for *plan* to be run on *folder*, in the way it says itself."""
    return Ask(
        folder=folder,
        environ=os.environ,
        name=plan.name,
        base=base,
        strategy=plan.isolation_strategy,
        sandbox=plan.sandbox,
        cleanup=plan.cleanup_on_complete,
        fleet=plan.fleet_limits,
        approve_all=approve_all,
    )


def _code(report: RunReport, interrupt: Interrupt) -> int:
    if interrupt.is_late:
        return LATE
    if interrupt.stop.is_set():
        return INTERRUPTED
    if report.status is not Status.SUCCEEDED:
        return NOT_ALL_GOOD
    return FOR_A_PERSON if report.merge is not None and report.merge.needs_a_person else GOOD
