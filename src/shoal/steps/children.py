"""Sessions that an agent starts itself: ordinary sessions of the run, within what their parent was given."""

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter_of
from shoal.errors import FAULTS, first_error
from shoal.git.bundle import write_bundle
from shoal.git.run import git_text
from shoal.model.events import StepEnded, StepStarted
from shoal.model.limits import RANGES, ResourceLimits
from shoal.model.permissions import Permissions, effective
from shoal.model.policy import NETWORKS
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import Purpose, WorkerResult
from shoal.model.retry import Retry
from shoal.model.status import Status, single_status
from shoal.model.talk import ChildSpawned, helper_name
from shoal.model.task import Task
from shoal.patterns.slot import LentSlot, run_below
from shoal.sessions.model_access import spending_scopes
from shoal.sessions.policy import network_of
from shoal.sessions.worker import WorkerSpec
from shoal.steps.prompt import briefing
from shoal.talk.kind import CallRefused, ChildOrder, ChildState

if TYPE_CHECKING:
    from shoal.steps.attempts import WorkerRunner

TASK_CHARS = 120
MOST_DIFF_BYTES = 4 * 2**20
FOLDER = "children"
"""Where the work of children lies for their parent, in the folder of what it gets to read."""


@dataclass(slots=True)
class SpawnAllowance:
    """How many sessions an agent and all below it may still start."""

    left: int


@dataclass(slots=True)
class _StartedChild:
    worker: WorkerSpec
    order: ChildOrder
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class Family:
    """The sessions that one session starts; they end when it is stopped, or when its time is over."""

    def __init__(self, runner: "WorkerRunner", parent: WorkerSpec, allowance: SpawnAllowance) -> None:
        self._runner = runner
        self.parent = parent
        """The worker as it runs now."""
        self._allowance = allowance
        self._children: dict[str, _StartedChild] = {}
        self._group = asyncio.TaskGroup()
        self._lending = LentSlot()
        self._is_lent = False
        self._is_over = False
        self._end = None if parent.seconds is None else time.monotonic() + parent.seconds

    @contextlib.asynccontextmanager
    async def hold_slot(self) -> AsyncIterator[None]:
        """Take over the slot of the running attempt, to lend it to children while their parent waits for them."""
        self._end = None if self.parent.seconds is None else time.monotonic() + self.parent.seconds
        with self._lending:
            await self._lending.take_back()
            await self._adopt()
            try:
                yield
            finally:
                self._is_over = True  # a slot that is lent comes back with the last child that uses it

    async def spawn(self, order: ChildOrder) -> str:
        """Start a session and return its name; raises `CallRefused` beyond what is granted."""
        if self._is_over:
            raise CallRefused("your session is ending")
        worker = self._make_worker(order, "")  # refused before it counts
        if (known := self._find_same(order)) is not None:
            return known
        self._take_allowance()
        return await self._start(order, replace(worker, step=self._next_name()))

    def states(self) -> list[ChildState]:
        """Return all of them, in order of their start."""
        return [self._describe(name, child) for name, child in self._children.items()]

    async def wait(self, names: Sequence[str], seconds: float) -> None:
        """Return once all of *names* have ended, or after *seconds*; meanwhile they may use their parent's slot."""
        self._lend()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for name in names:
                    await self._children[name].ended.wait()
        await self._take_back()

    async def diff(self, name: str) -> str:
        """Return what a child changed, as a patch."""
        commit, _, base = self._work(name)
        git = self._runner.context.repository.git
        text = await git_text(git, "diff", "--no-ext-diff", "--no-textconv", "--no-color", base, commit)
        return text[:MOST_DIFF_BYTES]

    async def hand_over(self, name: str) -> str:
        """Put the work of a child where the parent's git can read it, and return the path."""
        _, branch, base = self._work(name)
        context = self._runner.context
        folder = context.paths.session_dir(self.parent.session) / "input" / FOLDER
        folder.mkdir(exist_ok=True)
        target = folder / f"{name}.bundle"
        if not target.exists():
            aside = folder / f"{name}.new"
            await write_bundle(context.repository, aside, branch=branch, base=base)
            os.replace(aside, target)  # noqa: PTH105
        return str(target)

    async def finish(self, result: WorkerResult) -> None:
        """Wait for those that still work, as long as their parent could have; if it was stopped, stop them."""
        is_stopped = result.stopped_by is not None or result.status in (Status.CANCELLED, Status.TIMED_OUT)
        if not is_stopped and result.status is not Status.OVER_LIMIT:
            left = None if self._end is None else max(0.0, self._end - time.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    for child in tuple(self._children.values()):
                        await child.ended.wait()
        for child in self._children.values():
            if child.ended.is_set():
                continue
            if child.worker.session in self._runner.active:
                self._runner.stop_session(child.worker.session, f"the end of {self.parent.agent_name}")
            elif child.task is not None:
                child.task.cancel()

    def _lend(self) -> None:
        if not self._is_lent and not self._is_over:
            self._lending.lend_again()
            self._is_lent = True

    async def _take_back(self) -> None:
        """Take the slot back once no child can be using it; before that, nobody waits for it."""
        is_quiet = all(child.ended.is_set() for child in self._children.values())
        if self._is_lent and is_quiet and not self._is_over:
            self._is_lent = False
            await self._lending.take_back()

    def _take_allowance(self) -> None:
        if self._allowance.left <= 0:
            most = self.parent.task.talk.spawn if self.parent.task.talk else 0
            raise CallRefused(f"you and the agents that you started may start {most}, and all have been started")
        self._allowance.left -= 1

    def _next_name(self) -> str:
        numbers, name = self._runner.child_numbers, self.parent.agent_name
        numbers[name] += 1
        return f"{name}_{numbers[name]}"

    def _find_same(self, order: ChildOrder) -> str | None:
        """Return an adopted child with the same task: a parent that starts again asks for it again."""
        talk = self._runner.context.talk
        return None if talk is None else talk.claim_child(self.parent.agent_name, order)

    async def _adopt(self) -> None:
        """Go on with the children that the session had before the run was resumed."""
        talk = self._runner.context.talk
        for spawned in () if talk is None else talk.adopt_children(self.parent.agent_name):
            order = ChildOrder(task=spawned.task, agent=spawned.agent, files=spawned.files)
            self._runner.child_numbers[self.parent.agent_name] += 1
            with contextlib.suppress(CallRefused):
                self._take_allowance()
                worker = replace(self._make_worker(order, spawned.child), step=spawned.child)
                await self._start(order, worker, is_new=False)

    async def _start(self, order: ChildOrder, worker: WorkerSpec, *, is_new: bool = True) -> str:
        context, name = self._runner.context, worker.step
        started = StepStarted(run=context.run, step=name, workers=1, on_failure="best_effort")
        spawned = ChildSpawned(
            run=context.run,
            session=self.parent.session,
            parent=self.parent.agent_name,
            child=name,
            task=context.mask.text(order.task),
            agent=order.agent,
            files=order.files,
        )
        child = self._children[name] = _StartedChild(worker, order)
        await context.ledger.append(*((spawned, started) if is_new else (started,)))
        self._runner.allowances[name] = self._allowance
        child.task = self._group.create_task(self._run(child))
        return name

    async def _run(self, child: _StartedChild) -> None:
        run_below(self._lending.below)
        runner, worker = self._runner, child.worker
        try:
            await runner.run(worker)
        except FAULTS as error:
            runner.note(worker, worker.result_without_start(Status.FAILED, str(error)))
        finally:
            runner.allowances.pop(worker.step, None)
            status = single_status(runner.result(worker).status)
            runner.context.ledger.post(StepEnded(run=runner.context.run, step=worker.step, status=status))
            child.ended.set()

    def _make_worker(self, order: ChildOrder, name: str) -> WorkerSpec:
        parent = self.parent
        task = self._task(order, name)
        adapter = adapter_of(task.agent, this_host())
        mine, own = network_of(parent.task, parent.adapter), network_of(task, adapter)
        if not NETWORKS[own].is_within(NETWORKS[mine]):
            raise CallRefused(f"the agent {task.agent.name} is on `network: {own}`, and you are on `network: {mine}`")
        return WorkerSpec(
            step=name,
            index=0,
            count=1,
            task=replace(task, network=own),
            adapter=adapter,
            purpose=Purpose.CHILD,
            base=parent.origin or parent.base,
            trusts_base=parent.trusts_base,
            sandbox=parent.sandbox,
            kind=parent.kind,
            reviewers=parent.reviewers,
            charged=spending_scopes(parent),
            parent=parent.session,
        )

    def _task(self, order: ChildOrder, name: str) -> ResolvedTask:
        """Make the task of a child from that of its parent, or of an agent that its parent may start."""
        parent = self.parent.task
        base = parent
        if order.agent not in ("", parent.agent.name):
            known = parent.talk.agents if parent.talk else ()
            if order.agent not in known:
                listed = ", ".join((parent.agent.name, *known))
                raise CallRefused(f"you may not start the agent {order.agent!r:.60}; you may start: {listed}")
            base = self.parent.reviewers[helper_name(order.agent)]
        prompt = briefing(Task(order.task, files=order.files)).prompt
        left = None if self._end is None else max(1.0, self._end - time.monotonic())
        seconds = [bound for bound in (left, base.timeout, base.agent.timeout) if bound is not None]
        return replace(
            base,
            name=name,
            prompt=prompt,
            title="",
            inputs={},
            timeout=min(seconds, default=None),
            limits=_narrow_limits(self.parent.limits, base),
            permissions=_narrow_permissions(parent.permitted, base),
            expect="any",
            retry=Retry(),
            priority=parent.priority,
            budgets={},
            max_concurrent_agents=1,
            allow_executable_config=parent.allow_executable_config,
            talk=None if parent.talk is None else parent.talk.for_child(),
        )

    def _work(self, name: str) -> tuple[str, str, str]:
        """Return the commit, branch and base of a child's work."""
        child = self._children[name]
        result = self._runner.result(child.worker)
        if not child.ended.is_set():
            raise CallRefused(f"{name} still works; call `wait` first")
        if result.commit is None or result.branch is None:
            raise CallRefused(f"{name} ended as {result.status.value} and has changed nothing")
        return result.commit, result.branch, result.base or self._runner.context.base.commit

    def _describe(self, name: str, child: _StartedChild) -> ChildState:
        if not child.ended.is_set():
            is_running = child.worker.session in self._runner.active
            word = "running" if is_running else "waiting for its turn"
            return ChildState(name=name, session=child.worker.session, status=word, is_ended=False)
        result = self._runner.result(child.worker)
        return ChildState(
            name=name,
            session=result.session,
            status=result.status_text,
            is_ended=True,
            branch=result.branch or "",
            commit=result.commit or "",
            files_changed=result.files_changed,
            error=result.error or "",
            output=result.output,
        )


def _narrow_limits(mine: ResourceLimits, base: ResolvedTask) -> ResourceLimits:
    """Return the lower of each limit."""
    own = base.limits or base.agent.limits
    if own is None:
        return mine
    values: dict[str, object] = {}
    for name in RANGES:
        given = [value for value in (getattr(mine, name), getattr(own, name)) if value is not None]
        values[name] = min(given, default=None)
    return dataclasses.replace(mine, **values)  # type: ignore[arg-type]  # each has the type that it had


def _narrow_permissions(mine: Permissions, base: ResolvedTask) -> Permissions:
    """Return what both allow."""
    own = effective(base.permissions, base.agent.permissions) or Permissions()
    return Permissions(
        allowed_tools=_both(mine.allowed_tools, own.allowed_tools),
        deny=tuple(dict.fromkeys((*mine.deny, *own.deny))),
        readable=_among(own.readable, mine.readable),
        writable=_narrow_writable(mine.writable, own.writable),
        env=_both(mine.env, own.env),
        hosts=_among(own.hosts or (), mine.hosts or ()),
        provider_tools=_among(own.provider_tools or (), mine.provider_tools or ()),
    )


def _narrow_writable(mine: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths that both may write; `.` is the whole workspace."""
    both = _both(None if "." in mine else mine, None if "." in own else own)
    return (".",) if both is None else both


def _both(mine: tuple[str, ...] | None, own: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return what both lists have; a list that nobody gave has everything."""
    if mine is None or own is None:
        return own if mine is None else mine
    return _among(own, mine)


def _among(own: Sequence[str], mine: Sequence[str]) -> tuple[str, ...]:
    return tuple(item for item in own if item in mine)


@contextlib.asynccontextmanager
async def open_family(
    runner: "WorkerRunner", worker: WorkerSpec, allowances: Mapping[str, SpawnAllowance]
) -> AsyncIterator[Family | None]:
    """Let the agent of *worker* start sessions, if it may; on exit, they have ended."""
    grant = worker.task.talk
    if grant is None or not grant.may_spawn:
        yield None
        return
    family = Family(runner, worker, allowances.get(worker.step) or SpawnAllowance(grant.spawn))
    error: BaseException | None = None
    try:
        async with family._group:
            try:
                yield family
            except BaseException as raised:  # passed around the task group, which would wrap it
                error = raised
                for child in family._children.values():
                    if child.task is not None:
                        child.task.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    if error is not None:
        raise error
