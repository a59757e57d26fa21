"""The shape of a pipeline file: its keys, and the type of each value.

Their meaning together (names, references, exclusions) is checked in `check.py`.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from shoal.model.plan import Loop
from shoal.model.retry import Retry
from shoal.pipeline.fields import Argv, Duration, NetworkName, Shape, one_of
from shoal.pipeline.keys.artifacts import InjectArtifacts, OutputArtifacts
from shoal.pipeline.keys.checkpoints import CheckpointsField, CheckpointsShape
from shoal.pipeline.keys.contracts import Contracted, Words
from shoal.pipeline.keys.executable_config import ExecutableConfigShape
from shoal.pipeline.keys.gates import GateField
from shoal.pipeline.keys.gateway import GatewayShape
from shoal.pipeline.keys.history import HistoryShape
from shoal.pipeline.keys.merging import BetweenSteps, MergingField
from shoal.pipeline.keys.nodes import Labels, NodeField, PlacementName
from shoal.pipeline.keys.notify import NotifyField, NotifyShape
from shoal.pipeline.keys.permissions import HostItem, PermissionsShape, ProviderToolName
from shoal.pipeline.keys.python_agent import BudgetShape, Replies, SpendingShape, Tools
from shoal.pipeline.keys.queues import QueueShape
from shoal.pipeline.keys.script import Action
from shoal.pipeline.keys.select import SelectShape
from shoal.pipeline.keys.setup import SetupField
from shoal.pipeline.keys.strategy import StrategyShape
from shoal.pipeline.keys.talk import TalkShape
from shoal.pipeline.keys.telemetry import TelemetryField
from shoal.pipeline.keys.vary import Vary
from shoal.pipeline.value_types import (
    ELSEWHERE,
    MISPLACED,
    AdapterName,
    Condition,
    DatabaseField,
    DatabaseName,
    Env,
    FailureRule,
    FleetLimits,
    Input,
    IsolationName,
    Limits,
    Names,
    Retrying,
    SandboxName,
    StoreField,
    ToolFolderName,
)

DEFAULT_WORKERS = 10
MOST_ROUNDS = 100
USUAL_ROUNDS = 10
TASK_PROMPT = "{{ task }}"
"""What an agent gets of a task from a queue, unless the step has a prompt."""


class RuntimeShape(Shape):
    """Settings of the whole run."""

    refused: ClassVar[dict[str, str]] = {
        "limits": "in `runtime` it is `resource_limits`",
    }

    resource_limits: Limits | None = None
    """Limits of each agent, unless its step, persona or agent sets its own."""
    fleet_limits: FleetLimits | None = None
    """Limits of all agents of the run together."""
    max_concurrent_workers: int = Field(default=DEFAULT_WORKERS, ge=1, le=1000)
    """Agents at a time in this run; a larger `concurrency` is reduced to it, with a note."""
    isolation_strategy: IsolationName = "auto"
    """The kind of workspace: `overlay`, a git `worktree`, a plain `directory`, or `auto` (overlay, else worktree)."""
    database_strategy: DatabaseName = "per_agent"
    """`per_agent` gives each agent its own SQLite file; `shared` a role and a schema on one PostgreSQL server."""
    database: DatabaseField | None = None
    """With `shared`, a server of yours: `postgresql://…` without a password, or `{from: HOST_NAME}`."""
    store: StoreField | None = None
    """A PostgreSQL server for the ledger: `{from: HOST_NAME}`, with `repository: NAME` if several clones share it."""
    auto_merge: bool = False
    """Merge successful work when the run ends; short for `merge: auto`."""
    merge: MergingField | None = None
    """How to merge the work when the run ends; by default you merge it with `shoal merge`."""
    executable_config: ExecutableConfigShape = Field(default_factory=ExecutableConfigShape)
    """Which changes count as executable config, besides Shoal's own table."""
    cleanup_on_complete: bool = True
    """Remove a workspace once its work is on a branch; otherwise it stays until `shoal clean`."""
    keep_database: bool = False
    """Keep each agent's database with its results, as the artifact `database`."""
    history: HistoryShape = Field(default_factory=HistoryShape)
    """Remove the history of older runs after each run, never work that is on no branch: `{days: 30, runs: 500}`."""
    checkpoints: CheckpointsField = Field(default_factory=CheckpointsShape)
    """Save each agent's files while it works: `{minutes: 5}`, a duration like `90s`, or `false` for never."""
    notify: NotifyField = Field(default_factory=NotifyShape)
    """How to notify you when the run ends, needs you or conflicts: `bell`, `desktop`, a list of them, or a mapping."""
    telemetry: TelemetryField | None = None
    """Send traces and metrics to an OpenTelemetry collector: `true`, `false`, or a mapping; default: by `OTEL_*`."""
    sandbox: SandboxName = "bubblewrap"
    """The sandbox of each agent; Shoal never falls back to a weaker one by itself."""
    network: NetworkName | None = None
    """The network of agents without a setting of their own: `none`, `gateway` or `host`."""
    nodes: list[NodeField] = Field(default_factory=list)
    """Machines that run the agents, as texts like `build1:8` or mappings with `labels`; default: this machine."""
    placement: PlacementName = "spread"
    """How agents are placed on nodes: `spread` over all of them evenly, or `pack`, on as few as possible."""
    toolchains: list[ToolFolderName] = Field(default_factory=list)
    """Folders of programs outside `/usr`, as absolute or `~/` paths: read-only in every sandbox, last on PATH."""
    budget: SpendingShape | None = None
    """What all agents of the run together may spend on models."""
    setup: SetupField | None = None
    """Commands that prepare each workspace before its agent starts; `[]` means none, whatever the repository has."""
    setup_timeout: Duration | None = None
    """Time limit for set-up, in seconds or like `10m`; default: 10 minutes."""


class CommonSettings(Shape):
    """Settings of a step, a persona or an agent; precedence: step > persona > agent > runtime."""

    refused: ClassVar[dict[str, str]] = ELSEWHERE

    limits: Limits | None = None
    """Limits of each agent. Precedence: step > persona > agent > runtime, as a whole."""
    network: NetworkName | None = None
    """Its network: `none`, `gateway` or `host`; default: `gateway` for clients, `none` for others."""
    env: Env = Field(default_factory=dict)
    """Environment variables: a value, or `{from: HOST_NAME}`, which is masked everywhere."""
    timeout: Duration | None = None
    """Time limit of each attempt, in seconds or like `10m`; `time_seconds` applies as well."""
    stall_timeout: Duration | None = None
    """For clients: fail after this long without output, work or a pending model request."""
    permissions: PermissionsShape | None = None
    """What its agent may use and change."""
    hosts: list[HostItem] | None = None
    """On `network: gateway`, hosts it may connect to by TLS, like `pypi.org` or `*.github.com:443`; default: none."""
    provider_tools: list[ProviderToolName] | None = None
    """On `network: gateway`, tools that its model's provider may carry out, such as `web_search`; default: none."""
    needs_node: Labels = Field(default_factory=dict)
    """Labels that a node must have to run it, like `{gpu: true}`; a number means at least that many."""
    talk: TalkShape | None = None
    """What it may do with other agents of its run. Precedence: step > persona > agent, as a whole; default: nothing."""
    sandbox: SandboxName | None = None
    """Its sandbox; default: the run's."""
    isolation_strategy: IsolationName | None = None
    """Its kind of workspace; default: the run's."""
    setup: SetupField | None = None
    """Commands that prepare its workspace. Precedence: step > persona > agent > runtime."""
    setup_timeout: Duration | None = None
    """Time limit for set-up, in seconds or like `10m`; default: 10 minutes."""


class AgentShape(CommonSettings):
    """An agent: its adapter, and the adapter's settings."""

    adapter: AdapterName
    """The kind of agent: your own `command`, a client like `claude`, any `acp` agent, `python`, or `scripted`."""
    command: Argv | None = None
    """With `command`: the program and its arguments, as a list or one line; with a client: how to start it here."""
    args: list[str] | None = None
    """With a client: more arguments, after Shoal's own."""
    refresh_login: bool = False
    """With a client: copy tokens that it refreshed in its sandbox back to your login."""
    script: list[Action] | None = None
    """With `scripted`: the actions, in order."""
    script_file: str | None = None
    """With `scripted`: a YAML file of actions, relative to this file."""
    model: str | None = None
    """The model: for `python` like `anthropic:claude-sonnet-5`, or `scripted`; for a client, its own name of it."""
    tools: Tools | None = None
    """With `python`: its tools in the workspace; default: all."""
    budget: BudgetShape | None = None
    """What each session of it may spend on its model."""
    replies: Replies | None = None
    """With `model: scripted`: the model's replies, turn by turn: a text, a call, or a list of calls."""


class PersonaShape(CommonSettings):
    """A role of an agent."""

    agent: str | None = None
    """The agent, unless the step names one: one of `agents`, or the name of a client."""
    model: str | None = None
    """The model; default: the agent's own."""
    system_prompt: str | None = None
    """Text placed before every prompt."""
    system_prompt_file: str | None = None
    """A file with that text, relative to this file."""
    budget: SpendingShape | None = None
    """What all agents with this role together may spend on models."""


class ExecShape(Shape):
    """Another way to write a prompt or a command."""

    type: Annotated[str, one_of("type", "prompt", "command", later=("slash_command",))] = "prompt"
    """The type of `source`: a `prompt` for an agent, or a shell `command`."""
    source: str
    """The prompt, or the command."""


class LoopShape(Shape):
    """Repeat a step, each round on the work of the round before."""

    until: Condition
    """An expression, evaluated after each round; the loop ends when it is true."""
    max: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = None
    """Maximum number of rounds; default: 10."""
    max_iterations: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = None
    """Alias of `max`."""
    on_exhausted: Annotated[str, one_of("on_exhausted", "fail", "continue")] = "fail"
    """What happens if `until` is still false after the last round: `fail` or `continue`."""

    @property
    def given(self) -> Loop:
        """Build the value."""
        most = self.max or self.max_iterations or USUAL_ROUNDS
        return Loop(until=self.until, most=most, must_hold=self.on_exhausted == "fail")


class StepShape(CommonSettings, Contracted):
    """A step."""

    name: str | None = None
    """Its name: lowercase letters, digits and dashes; used in branches and folders."""
    id: str | None = None
    """Alias of `name`."""
    persona: str | None = None
    """The role of its agent, one of `personas`."""
    agent: str | None = None
    """The agent, one of `agents`; default: the persona's."""
    prompt: str | None = None
    """The task of the agent."""
    exec: ExecShape | None = None
    """Another way to write the prompt or the command."""
    concurrency: int = Field(default=1, ge=1)
    """How many agents get the same prompt, each in its own workspace; at most `max_concurrent_workers`. With
    `from_queue`: how many tasks are worked on at a time."""
    max_concurrent_agents: int = 1
    """How many sub-agents the agent may start, as stated in its prompt; at most 10."""
    needs: Names | None = None
    """Steps that must succeed first; the step starts as soon as they have."""
    dependencies: Names | None = None
    """Alias of `needs`."""
    depends_on: Names | None = None
    """Alias of `needs`."""
    base: str = "auto"
    """Where it starts: `auto` or `needs` (the merged work of its needs), `run` (the run's base), or a git ref."""
    on_conflict: BetweenSteps = "report"
    """What to do if several needs changed the same lines: `report` fails the step, `ours` keeps the lines of the need
    named first, `theirs` those of the need named later."""
    allow_executable_config: bool = False
    """Trust what earlier agents wrote: a client's settings (hooks, servers, addresses), and set-up with a network."""
    optional: bool = False
    """If it fails, the run and its dependants continue."""
    retry: Retrying = Field(default_factory=Retry)
    """How often to retry an agent that fails, in a fresh workspace, with the reason in its prompt."""
    on_failure: FailureRule = "fail_fast"
    """`fail_fast`: a failure stops the rest; `best_effort`: it does not; `any`: one success is enough; or a quorum."""
    budget: SpendingShape | None = None
    """What all agents of the step together may spend on models, retries included."""
    expect: Annotated[str, one_of("expect", "any", "changes")] = "any"
    """With `changes`, an agent that changes nothing fails."""
    command: Words | None = None
    """A command instead of an agent: a shell command, or a list of arguments."""
    condition: Condition | None = Field(default=None, alias="if")
    """An expression; if it is false, the step is skipped and its dependants continue."""
    output_artifacts: OutputArtifacts = Field(default_factory=list)
    """Files that each agent must leave for later steps."""
    inject_artifacts: InjectArtifacts | None = None
    """Artifacts of earlier steps to pass in; default: all artifacts of its needs."""
    select: SelectShape | None = None
    """How to pick one of several agents, for later steps to build on."""
    vary: Vary = ()
    """What differs between the workers: a mapping for each, or a list for each key."""
    strategy: StrategyShape | None = None
    """One worker for each cell of a matrix, or for each item from an earlier step."""
    from_queue: str | None = None
    """The queue, one of `queues`, whose tasks it works on, one agent for each: `{{ task }}` in the prompt."""
    gate: GateField | None = None
    """Wait for a person's approval, without an agent."""
    pipeline: str | None = None
    """A pipeline of this file to run as this step."""
    input: Input | None = None
    """The `input` of the inner pipeline; default: this pipeline's."""
    loop: LoopShape | None = None
    """Repeat it, each round on the work of the round before, until a condition is true."""

    @property
    def has_agent(self) -> bool:
        """Return whether it is work for an agent, and no command, gate or pipeline."""
        is_command = self.command is not None or (self.exec is not None and self.exec.type == "command")
        return not is_command and self.gate is None and self.pipeline is None

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command from any spelling; a string is for the shell."""
        written = self.command if self.command is not None else self.exec.source if self.exec else ""
        return ("/bin/sh", "-c", written) if isinstance(written, str) else tuple(written)

    @property
    def title(self) -> str:
        """Return the step's name from any spelling."""
        return self.name or self.id or ""

    @property
    def wanted(self) -> tuple[str, ...]:
        """Return the step's dependencies from any spelling."""
        return tuple(dict.fromkeys(self.needs or self.dependencies or self.depends_on or ()))

    @property
    def words(self) -> str:
        """Return the prompt from any spelling."""
        if self.prompt is not None or not self.has_agent:
            return self.prompt or ""
        return self.exec.source if self.exec else TASK_PROMPT if self.from_queue else ""


class PipelineShape(Shape):
    """A named list of steps."""

    name: str
    """Its name, for `shoal run NAME`."""
    steps: list[StepShape]
    """The steps; each starts as soon as its needs are met."""


class FileShape(Shape):
    """A whole file."""

    refused: ClassVar[dict[str, str]] = MISPLACED | {"resource_limits": MISPLACED["limits"]}

    runtime: RuntimeShape = Field(default_factory=RuntimeShape)
    """Settings of the whole run."""
    gateway: GatewayShape = Field(default_factory=GatewayShape)
    """The models that agents reach through the gateway; default: as the environment says."""
    agents: dict[str, AgentShape] = Field(default_factory=dict)
    """Agents, by name."""
    personas: dict[str, PersonaShape] = Field(default_factory=dict)
    """Roles of agents, by name."""
    queues: dict[str, QueueShape] = Field(default_factory=dict)
    """Queues of tasks, by name: steps take from them, and agents may add to them."""
    steps: list[StepShape] | None = None
    """The steps, if the file has only one pipeline."""
    pipelines: list[PipelineShape] | None = None
    """Several pipelines, each with its own steps."""
