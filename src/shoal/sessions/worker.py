"""A worker of a step and its opened session, as values."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.adapters.kind import Adapter, SessionPaths, is_conversational
from shoal.model.agent import ACP
from shoal.model.artifact import Artifact
from shoal.model.contract import CommandContract, Contract
from shoal.model.limits import ResourceLimits
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import Purpose, Usage, WorkerResult
from shoal.model.status import Status
from shoal.model.task import Task
from shoal.sandboxes.kind import Sandbox
from shoal.sessions.context import RunContext
from shoal.sessions.output_log import OutputLog
from shoal.sessions.session_control import SessionControl
from shoal.sessions.session_dir import SessionDir
from shoal.workspaces.kind import Kind, Workspace

GO_ON = (
    "You were interrupted while you worked on your task: the program that runs you was stopped. Your files are as you "
    "left them; commands that you had started no longer run. Go on with your task from where you were."
)
"""The prompt for a client that continues its conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker of a step, with its names, which are unique."""

    step: str
    index: int
    count: int
    task: ResolvedTask
    adapter: Adapter
    purpose: Purpose = Purpose.WORK
    attempt: int = 1
    visit: int = 1
    """How often its step has been entered, if that is in a loop."""
    origin: str | None = None
    """The commit that its work is measured from, if it starts with the files of an interrupted session."""
    start_note: str = ""
    """A remark for its result about how it started."""
    conversation: str | None = None
    """The client's own id of the conversation that it is to continue."""
    content: str = ""
    """A digest of its agent and first prompt."""
    spent_before: Usage = field(default_factory=dict)
    """The usage of that conversation so far."""
    database: str | None = None
    """The name of its database, if not the session's own."""
    base: str | None = None
    """The commit to start from, if not the run's."""
    trusts_base: bool = True
    """Whether a client may use the settings in the base: the user's own, or work that the user approved."""
    needs: tuple[str, ...] = ()
    """The steps that must succeed first."""
    is_stacked: bool = True
    """Whether it starts from the work of its needs."""
    wish: Task | None = None
    """The original request, if its inputs may name its needs."""
    function: Callable[..., object] | None = None
    """A function to run in a thread of this process, for trusted code."""
    item: str | None = None
    """The item of a matrix that it works on."""
    artifacts: tuple[Artifact, ...] = ()
    """The files that it has to leave."""
    contracts: tuple[Contract, ...] = ()
    """The requirements that its work must meet to count as a success."""
    trial: CommandContract | None = None
    """A command that compares its work with that of its siblings."""
    reviewers: Mapping[str, ResolvedTask] = field(default_factory=dict, repr=False)
    """The reviewers by the names that contracts use."""
    charged: tuple[str, ...] = ()
    """What its spending counts towards besides its own budgets: those of the agent that started it."""
    parent: str = ""
    """The session whose agent started it."""
    sandbox: Sandbox | None = None
    """Its sandbox, if not the run's."""
    kind: Kind | None = None
    """Its kind of workspace, if not the run's."""
    label: str = ""
    """What its sessions and branches are called after, if not its step."""
    hex: str = field(default_factory=lambda: secrets.token_hex(3))

    def adapt_context(self, context: RunContext) -> RunContext:
        """Return *context* with this worker's sandbox and kind of workspace."""
        if self.sandbox is None and self.kind is None:
            return context
        return replace(context, sandbox=self.sandbox or context.sandbox, kind=self.kind or context.kind)

    @property
    def session(self) -> str:
        """The session's id, which is also the name of its directory."""
        return f"{self.label or self.step}-{self.hex}"

    @property
    def branch(self) -> str:
        """The branch for its work."""
        return f"agent/{self.label or self.step}/{self.hex}"

    @property
    def agent_name(self) -> str:
        """Its name for other agents of the run: the step's, with a number where that has several workers."""
        return self.step if self.count == 1 else f"{self.step}_{self.index + 1}"

    @property
    def is_in_process(self) -> bool:
        """Whether this process asks its model, and only its tools run in the sandbox."""
        return self.task.agent.adapter == "python"

    @property
    def takes_messages(self) -> bool:
        """Whether its agent takes messages between its turns."""
        if is_conversational(self.adapter):
            return self.adapter.takes_messages(self.task)
        return self.is_in_process or self.task.agent.adapter == ACP

    @property
    def is_program(self) -> bool:
        """Whether it is a program that starts as soon as its sandbox is ready."""
        return self.function is None and not self.is_in_process

    def result_without_start(self, status: Status, why: str | None = None) -> WorkerResult:
        """Make the result of a worker that never started."""
        return WorkerResult(
            index=self.index, session=self.session, status=status, attempts=0, error=why, item=self.item
        )

    @property
    def limits(self) -> ResourceLimits:
        """Its limits."""
        return self.task.limits or ResourceLimits.default()

    def message(self, masked: Callable[[str], str], *, is_repeatable: bool = False) -> str:
        """Return the message of the sealing commit; masked before it is cut, or half of a secret could remain.

        One that *is_repeatable* is the same in a replay: it names the worker instead of the session.
        """
        subject = " ".join(masked(self.task.title or self.task.prompt).split())[:72]
        name = f"Shoal-Worker: {self.key}" if is_repeatable else f"Shoal-Session: {self.session}"
        return f"{self.label or self.step}: {subject or 'work of an agent'}\n\n{name}\n"

    @property
    def key(self) -> str:
        """Name it as in every run of the same plan: step, worker, visit and attempt."""
        return name_attempt(self.step, self.index, self.visit, self.attempt)

    @property
    def seconds(self) -> float | None:
        """Its time limit: the requested one, but never more than its limit."""
        asked = self.task.timeout if self.task.timeout is not None else self.task.agent.timeout
        bounds = [seconds for seconds in (asked, self.limits.time_seconds) if seconds is not None]
        return min(bounds, default=None)


def name_attempt(step: str, index: int, visit: int, attempt: int) -> str:
    """Name an attempt of a worker in every run of the same plan."""
    return f"{step}/worker_{index}/{visit}.{attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One attempt of one worker, opened: everything that its agent works with."""

    context: RunContext
    worker: WorkerSpec
    workspace: Workspace
    directory: SessionDir
    log: OutputLog
    """The agent's output, recorded in the session's own database."""
    control: SessionControl = field(default_factory=SessionControl)
    has_history: Callable[[], bool] = field(default=lambda: True, repr=False)
    """Whether the agent's own gitdir may contain commits or other changes."""
    free_at_start: int = 0
    """How many bytes the disk had free before the agent could write."""

    @property
    def stop(self) -> asyncio.Event:
        """Set when the agent has to stop."""
        return self.control.stop

    @property
    def id(self) -> str:
        """The session's id, which is also the name of its directory."""
        return self.worker.session

    @property
    def raw_files(self) -> Path:
        """Where its files are if they cannot be kept."""
        is_apart = not self.workspace.is_overlay and not self.worker.limits.is_exact
        return self.workspace.path if is_apart else self.directory.path

    @property
    def paths(self) -> SessionPaths:
        """The paths for an adapter's command."""
        return SessionPaths(
            home=self.directory.home,
            inputs=self.directory.inputs,
            workspace=self.workspace.path,
            conversation=self.worker.conversation,
        )

    @property
    def task(self) -> ResolvedTask:
        """The agent's prompt: the whole task, or to go on in its conversation."""
        task = self.worker.task
        return task if self.worker.conversation is None else replace(task, prompt=GO_ON)

    def with_new_log(self) -> "Session":
        """Return the session with an empty log, for another program in it."""
        return replace(self, log=self.context.output_log(self.id))
