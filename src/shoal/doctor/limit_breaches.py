"""Exceed each limit once, all at the same time, beside a quiet neighbour: each must end alone, with its limit named."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shoal.adapters.command import CommandAdapter as CommandAdapter
from shoal.errors import FAULTS, first_error
from shoal.model.agent import AgentSpec
from shoal.model.diagnosis import Finding
from shoal.model.limits import ResourceLimits
from shoal.model.resolved_task import ResolvedTask
from shoal.sessions.agent_process import Ending, watch_process
from shoal.sessions.context import RunContext
from shoal.sessions.open_session import open_session
from shoal.sessions.policy import agent_command, session_bounds
from shoal.sessions.sandboxed import open_sandboxed
from shoal.sessions.worker import WorkerSpec

AREA = "limits"
CPU_PERCENT = 20
CPU_RATIO = 2
CPU_SLACK = 15  # a quota is granted in tenths of a second, and the start of the sandbox is counted too
ROOMY: Mapping[str, float] = MappingProxyType({"memory_mb": 512, "time_seconds": 8, "disk_mb": 512, "pids": 256})
BETTER = "hand a control group with memory, pids and cpu to this user, and the kernel holds them exactly"
OTHER = "report it: an agent that passes this limit here is not ended by it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A script that exceeds one limit and no other."""

    name: str
    limits: Mapping[str, float]
    script: str
    tried: str


BREACHES = (
    Breach(
        name="memory",
        limits={"memory_mb": 64},
        script="head -c 134217728 /dev/zero | tail -c 134217728 | sleep 8",
        tried="128 MB where 64 are allowed",
    ),
    Breach(
        name="pids",
        limits={"pids": 20},
        script="n=0; while [ $n -lt 40 ]; do sleep 8 & n=$((n + 1)); done; wait",
        tried="40 processes where 20 are allowed",
    ),
    Breach(
        name="disk",
        limits={"disk_mb": 20},
        script="head -c 41943040 /dev/zero > big; sleep 8",
        tried="write 40 MB where 20 are allowed",
    ),
    Breach(name="time", limits={"time_seconds": 0.5}, script="sleep 8", tried="run 8 s where 0.5 are allowed"),
)
SPINNER = Breach(
    name="cpu",
    limits={"time_seconds": 1.2, "cpu_percent": CPU_PERCENT},
    script="while :; do :; done",
    tried=f"spin where {CPU_PERCENT} % are allowed",
)
# On a busy machine no process gets much CPU: throttling shows only beside an unlimited process.
FREE = Breach(name="free", limits={"time_seconds": 1.2}, script=SPINNER.script, tried="spin without a quota")
ALL = (*BREACHES, SPINNER, FREE)
NEIGHBOUR = Breach(name="neighbour", limits={}, script="sleep 30", tried="work beside all of these")


@dataclass(frozen=True, slots=True, kw_only=True)
class BreachEnd:
    """How one of them ended."""

    ending: Ending | None
    limit: str | None
    seconds: float
    cpu_seconds: float = 0.0
    trouble: str = ""

    @property
    def percent(self) -> float:
        """Its share of a core."""
        return 100 * self.cpu_seconds / self.seconds if self.seconds else 0.0


async def breach_limits(context: RunContext) -> tuple[Finding, ...]:
    """Exceed every limit, all at the same time."""
    over = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(_try_breach(context, NEIGHBOUR, over))
            async with asyncio.TaskGroup() as inner:
                ended = {
                    breach.name: inner.create_task(_try_breach(context, breach, asyncio.Event())) for breach in ALL
                }
            over.set()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    found = [_judge(breach, ended[breach.name].result(), context) for breach in BREACHES]
    return (
        *_enforcement(context),
        *found,
        _judge_cpu(ended[SPINNER.name].result(), ended[FREE.name].result(), context),
        _judge_neighbour(beside.result()),
    )


async def _try_breach(context: RunContext, breach: Breach, stop: asyncio.Event) -> BreachEnd:
    """Run one script like a session, and return how it ended; its work is discarded."""
    limits = ResourceLimits.of({"cpu_percent": None, **ROOMY, **breach.limits})
    agent = AgentSpec(name=breach.name, adapter="command", command=("/bin/sh", "-c", breach.script))
    task = ResolvedTask(name=breach.name, prompt="", agent=agent, limits=limits)
    worker = WorkerSpec(step=breach.name, index=0, count=1, task=task, adapter=CommandAdapter())
    try:
        return await _run_breach(context, worker, stop)
    except FAULTS as error:
        return BreachEnd(ending=None, limit=None, seconds=0, trouble=str(error) or type(error).__name__)


async def _run_breach(context: RunContext, worker: WorkerSpec, stop: asyncio.Event) -> BreachEnd:
    async with open_session(context, worker) as session:
        command, policy = agent_command(session)
        with context.enforcer.group(worker.session, worker.limits) as group:
            bounds = session_bounds(session, group)
            began = time.monotonic()
            async with open_sandboxed(
                context.sandbox, command, policy, sink=lambda _stream, _data: None, join=group.wrap
            ) as sandboxed:
                seen = await watch_process(sandboxed, bounds, worker.seconds, stop, context.grace)
                seconds, spent = time.monotonic() - began, group.usage().cpu_seconds
        named = (
            "time"
            if seen.ending is Ending.TIME
            else seen.limit or bounds.find_reached_limit(failed=seen.exit.code != 0)
        )
    return BreachEnd(ending=seen.ending, limit=named, seconds=seconds, cpu_seconds=spent or 0.0)


def _enforcement(context: RunContext) -> tuple[Finding, ...]:
    """Report which enforcement works on this host, and its gaps."""
    enforcer = context.enforcer
    held = ", ".join(name for name in ("memory", "cpu", "pids") if name in enforcer.holds)
    is_exact = enforcer.name != "polling"
    best = Finding(
        area=AREA,
        name="enforcement",
        held=True if is_exact else None,
        tried="take the best there is",
        result=f"{enforcer.name} holds {held}",
        remedy="" if is_exact else BETTER,
    )
    gaps = (Finding(area=AREA, name="not held", held=None, tried="", result=gap) for gap in enforcer.gaps)
    return (best, *gaps)


def _judge(breach: Breach, ended: BreachEnd, context: RunContext) -> Finding:
    held = ended.limit == breach.name
    ending = f"ended in {ended.seconds:.1f} s, limit {ended.limit}" if ended.limit else "it was not ended"
    return Finding(
        area=AREA,
        name=breach.name,
        held=held,
        tried=breach.tried,
        result=ended.trouble or ending,
        remedy="" if held else OTHER if breach.name in context.enforcer.holds | {"time", "disk"} else BETTER,
        needed=True,
    )


def _judge_cpu(ended: BreachEnd, free: BreachEnd, context: RunContext) -> Finding:
    used = ended.trouble or f"it had {ended.percent:.0f} %, a free one {free.percent:.0f} %"
    can_hold = "cpu" in context.enforcer.holds
    held = is_throttled(ended, free) if can_hold else None
    why = (
        ""
        if held is not None
        else ", too busy here to tell"
        if can_hold
        else f": {context.enforcer.name} does not hold it"
    )
    return Finding(
        area=AREA,
        name="cpu",
        held=held,
        tried=SPINNER.tried,
        result=used + why,
        remedy=OTHER if held is False else "",
        needed=held is not None,
    )


def is_throttled(ended: BreachEnd, free: BreachEnd) -> bool | None:
    """Return whether the CPU quota was enforced; `None` if the machine was too busy to tell."""
    if ended.ending is not Ending.TIME or not ended.percent or ended.percent > CPU_PERCENT + CPU_SLACK:
        return False
    return True if free.percent >= CPU_RATIO * ended.percent else None


def _judge_neighbour(ended: BreachEnd) -> Finding:
    held = ended.ending is Ending.STOP and ended.limit is None
    return Finding(
        area=AREA,
        name=NEIGHBOUR.name,
        held=held,
        tried=NEIGHBOUR.tried,
        result="not disturbed" if held else ended.trouble or f"it ended with them, limit {ended.limit}",
        remedy="" if held else OTHER,
        needed=True,
    )
