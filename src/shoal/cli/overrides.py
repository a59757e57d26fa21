"""Options of the command line that override the plan: its agents, limits, sandbox and money."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from shoal.cli.notify import override_notify
from shoal.errors import BadInput, UnknownName
from shoal.model.budget import SpendingLimit
from shoal.model.gateway import LOGINS, with_logins
from shoal.model.limits import BadLimit, ResourceLimits
from shoal.model.nodes import parse_nodes
from shoal.model.permissions import Permissions
from shoal.model.plan import PipelineGroup, Plan, Stage, Step
from shoal.model.policy import NETWORKS, Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.retry import Retry
from shoal.pipeline.keys.duration import BadDuration, seconds
from shoal.sandboxes.registry import KINDS
from shoal.workspaces.registry import NAMES as WORKSPACE_NAMES

_MEMORY = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<unit>[KMGT]?)(i?B)?", re.IGNORECASE)
_MEGABYTES = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


@dataclass(frozen=True, slots=True)
class RunOverrides:
    """Options of the command line that override the file."""

    at_once: int | None = None
    sandbox: str | None = None
    isolation: str | None = None
    timeout: str | None = None
    network: str | None = None
    retries: int | None = None
    notify: Sequence[str] | None = None
    notify_command: str | None = None
    budget: str | None = None
    allow_hosts: Sequence[str] | None = None
    model: str | None = None
    memory: str | None = None
    cpu: str | None = None
    logins: Sequence[str] | None = None
    nodes: str | None = None

    def assert_valid(self) -> None:
        """Raise `BadInput` for an option with an impossible value."""
        if self.at_once is not None and self.at_once < 1:
            raise BadInput(f"-j must be at least 1, not {self.at_once}")
        if self.retries is not None and self.retries < 0:
            raise BadInput(f"--retries must be at least 0, not {self.retries}")
        if self.sandbox is not None and self.sandbox not in KINDS:
            raise BadInput(f"--sandbox: {UnknownName('sandbox', self.sandbox, KINDS)}")
        if self.isolation is not None and self.isolation not in WORKSPACE_NAMES:
            raise BadInput(f"--isolation: {UnknownName('workspace', self.isolation, WORKSPACE_NAMES)}")
        for login in self.logins or ():
            if login not in LOGINS:
                raise BadInput(f"--login: {UnknownName('client with a login for the gateway', login, LOGINS)}")
        if self.model is not None and not self.model.strip():
            raise BadInput("--model is empty; give the name of a model, or leave it out")
        self.change_limits(None)
        if self.timeout is not None:
            duration("--timeout", self.timeout)

    def change_limits(self, limits: ResourceLimits | None) -> ResourceLimits | None:
        """Return *limits* with `--memory` and `--cpu`."""
        if self.memory is None and self.cpu is None:
            return limits
        changed = limits or ResourceLimits.default()
        try:
            if self.memory is not None:
                changed = replace(changed, memory_mb=_megabytes(self.memory))
            return changed if self.cpu is None else replace(changed, cpu_percent=_percent(self.cpu))
        except BadLimit as error:
            raise BadInput(f"{'--memory' if error.key == 'memory_mb' else '--cpu'}: {error}") from None


def _megabytes(written: str) -> float:
    """Read `512M`, `4G`, or a number of MB, as in `memory_mb`."""
    if (match := _MEMORY.fullmatch(written.strip())) is None:
        raise BadInput(f"--memory {written!r:.40}: give a size like 512M or 4G")
    return float(match["number"]) * _MEGABYTES[match["unit"].upper()]


def _percent(written: str) -> float:
    """Read a number of cores like `1.5`, or `150%`."""
    number, percent = written.strip().removesuffix("%"), written.strip().endswith("%")
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", number):
        raise BadInput(f"--cpu {written!r:.40}: give a number of cores like 1.5, or a share of one like 50%")
    return float(number) * (1 if percent else 100)


def override_plan(plan: Plan, overrides: RunOverrides) -> Plan:
    """Return *plan* with the options of the command line."""
    return replace(
        plan,
        steps=tuple(_override(stage, overrides) for stage in plan.steps),
        max_concurrent=overrides.at_once or plan.max_concurrent,
        sandbox=overrides.sandbox or plan.sandbox,
        isolation_strategy=overrides.isolation or plan.isolation_strategy,
        nodes=plan.nodes if overrides.nodes is None else parse_nodes(overrides.nodes),
        budget=plan.budget if overrides.budget is None else SpendingLimit.parse(overrides.budget),
        notify=override_notify(plan.notify, overrides.notify or (), overrides.notify_command),
        upstreams=with_logins(plan.upstreams, overrides.logins or ()),
    )


def duration(option: str, written: str) -> float:
    """Read `90`, `1.5`, `90s` or `10m`, as it was given to *option*."""
    try:
        return seconds(_number(written))
    except BadDuration as error:
        raise BadInput(f"{option}: {error}") from None


def _number(written: str) -> float | str:
    try:
        return float(written)
    except ValueError:
        return written


def _override(stage: Stage, overrides: RunOverrides) -> Stage:
    if isinstance(stage, PipelineGroup):
        return replace(stage, stages=tuple(_override(inner, overrides) for inner in stage.stages))
    if not isinstance(stage, Step):
        return stage
    return replace(
        stage.change_tasks(partial(_override_task, overrides)),
        sandbox=None if overrides.sandbox else stage.sandbox,
        isolation_strategy=None if overrides.isolation else stage.isolation_strategy,
    )


def _override_task(overrides: RunOverrides, task: ResolvedTask) -> ResolvedTask:
    timeout = None if overrides.timeout is None else duration("--timeout", overrides.timeout)
    network = None if overrides.network is None else Network(overrides.network)
    overridden = replace(
        task,
        timeout=timeout or task.timeout,
        network=network or task.network,
        retry=task.retry if overrides.retries is None else Retry.of(overrides.retries),
        limits=overrides.change_limits(task.limits),
    )
    if overrides.model is not None:
        overridden = overridden.asking(overrides.model)
    return _allow_hosts(overridden, overrides.allow_hosts or ())


def _allow_hosts(task: ResolvedTask, hosts: Sequence[str]) -> ResolvedTask:
    """Let an agent on the gateway reach *hosts* besides those of the file; nothing holds others to any host."""
    if not hosts:
        return task
    from shoal.adapters.client import this_host
    from shoal.adapters.registry import adapter_of
    from shoal.sessions.policy import network_of

    if not NETWORKS[network_of(task, adapter_of(task.agent, this_host()))].has_listener:
        return task
    own = task.permissions or task.agent.permissions or Permissions()
    return replace(task, permissions=replace(own, hosts=(*(own.hosts or ()), *hosts)))
