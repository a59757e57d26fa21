"""The shape of a pipeline file: which keys there are and what kind of value each takes.

What the values mean together (names, references, exclusions) is asked in `check`.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from shoal.model.plan import Loop
from shoal.model.retry import Retry
from shoal.pipeline.fields import Argv, Duration, NetworkName, Shape, one_of
from shoal.pipeline.keys.artifacts import InjectArtifacts, OutputArtifacts
from shoal.pipeline.keys.contracts import Contracted, Words
from shoal.pipeline.keys.executable_config import ExecutableConfigShape
from shoal.pipeline.keys.gates import GateField
from shoal.pipeline.keys.merging import BetweenSteps, MergingField
from shoal.pipeline.keys.permissions import PermissionsShape
from shoal.pipeline.keys.python_agent import BudgetShape, Replies, Tools
from shoal.pipeline.keys.script import Action
from shoal.pipeline.keys.select import SelectShape
from shoal.pipeline.keys.setup import SetupField
from shoal.pipeline.keys.strategy import StrategyShape
from shoal.pipeline.keys.vary import Vary
from shoal.pipeline.names import AdapterName
from shoal.pipeline.value_types import (
    ELSEWHERE,
    MISPLACED,
    Condition,
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
    ToolFolderName,
)

DEFAULT_WORKERS = 10
MOST_ROUNDS = 100
USUAL_ROUNDS = 10


class RuntimeShape(Shape):
    """How the whole run is to be run."""

    refused: ClassVar[dict[str, str]] = {
        "limits": "in `runtime` it is `resource_limits`",
    }

    resource_limits: Limits | None = None
    """What each agent may spend, where no step, persona or agent says otherwise."""
    fleet_limits: FleetLimits | None = None
    """What all agents of the run may spend together."""
    max_concurrent_workers: int = Field(default=DEFAULT_WORKERS, ge=1, le=1000)
    """Agents at once in this run; `concurrency` is clamped to it, visibly."""
    isolation_strategy: IsolationName = "auto"
    """What a workspace is: `overlay`, a git `worktree`, a plain `directory`, or `auto`: overlay, else worktree."""
    database_strategy: DatabaseName = "per_agent"
    """Where an agent's database lies: `per_agent` gives each one its own SQLite file."""
    auto_merge: bool = False
    """Whether good work is merged by itself when the run has ended: short for `merge: auto`."""
    merge: MergingField | None = None
    """How the work of the run is brought together when it has ended; without it, you do it with `shoal merge`."""
    executable_config: ExecutableConfigShape = Field(default_factory=ExecutableConfigShape)
    """Which changes count as executable config, beside the table that Shoal has."""
    cleanup_on_complete: bool = True
    """Whether workspaces are removed when their work is on a branch; else they stay until `shoal clean`."""
    keep_database: bool = False
    """Whether an agent's own database is kept beside its results, as the artifact `database`."""
    sandbox: SandboxName = "bubblewrap"
    """The wall around each agent; a weaker one than bubblewrap has to be asked for."""
    network: NetworkName | None = None
    """Which network agents are on where nobody nearer says: `none`, or `host`."""
    toolchains: list[ToolFolderName] = Field(default_factory=list)
    """Folders of programs outside of `/usr`, from `/` or `~/`: read-only in every box, and last on PATH."""
    setup: SetupField | None = None
    """Commands that make each workspace ready before its agent is let in; `[]` is none, whatever the repository has."""
    setup_timeout: Duration | None = None
    """Time for set-up, in seconds or like `10m`, which is the usual."""


class Surroundings(Shape):
    """What a step, a persona and an agent may each say; the nearest wins."""

    refused: ClassVar[dict[str, str]] = ELSEWHERE

    limits: Limits | None = None
    """What each of its agents may spend; of step, persona, agent and runtime, the nearest holds as a whole."""
    network: NetworkName | None = None
    """Which network it is on: `none`, or `host`; where nobody says, `host` for clients and `none` for others."""
    env: Env = Field(default_factory=dict)
    """Variables of its environment: a value, or `{from: HOST_NAME}`, which is masked everywhere."""
    timeout: Duration | None = None
    """Time for each attempt, in seconds or like `10m`; its limit of time holds as well."""
    stall_timeout: Duration | None = None
    """For clients: how long one may show no sign of life (words, work, a wait for its model) before it has failed."""
    permissions: PermissionsShape | None = None
    """What its agent may use and touch."""
    sandbox: SandboxName | None = None
    """The wall around it, where that is not the run's."""
    isolation_strategy: IsolationName | None = None
    """What its workspace is, where that is not what the run says."""
    setup: SetupField | None = None
    """Commands that make its workspace ready before the agent is let in; of all that say so, the nearest holds."""
    setup_timeout: Duration | None = None
    """Time for set-up, in seconds or like `10m`, which is the usual."""


class AgentShape(Surroundings):
    """An agent: its adapter, and what that needs."""

    adapter: AdapterName
    """The kind of agent: a `command` of yours, a client like `claude`, any `acp` agent, `python`, or `scripted`."""
    command: Argv | None = None
    """With `command`: the program and its arguments, as a list or as one line; with a client: how it is called here."""
    args: list[str] | None = None
    """With a client: more arguments, after Shoal's own."""
    refresh_login: bool = False
    """With a client: whether newer tokens of the same login, which it was given in its box, come back to your home."""
    script: list[Action] | None = None
    """With `scripted`: the actions, one after the other."""
    script_file: str | None = None
    """With `scripted`: a YAML file of actions, beside this one."""
    model: str | None = None
    """The model by its name: for `python` like `anthropic:claude-sonnet-5`, or `scripted`; for a client as it says."""
    tools: Tools | None = None
    """With `python`: the tools that it has in its workspace; all where nothing is said."""
    budget: BudgetShape | None = None
    """With `python`: what it may spend on its model."""
    replies: Replies | None = None
    """With `model: scripted`: what the model says, turn by turn: a text, a call, or a list of calls."""


class PersonaShape(Surroundings):
    """A role that an agent plays."""

    agent: str | None = None
    """Who plays the role, where the step does not say: one of `agents`, or a client by its name."""
    model: str | None = None
    """The model that its agent asks, where that is not the agent's own."""
    system_prompt: str | None = None
    """Words that stand before every prompt."""
    system_prompt_file: str | None = None
    """A file with those words, beside this one."""


class ExecShape(Shape):
    """Another way to write a prompt or a command."""

    type: Annotated[str, one_of("type", "prompt", "command", later=("slash_command",))] = "prompt"
    """What the source is: a `prompt` for an agent, or a `command` for the shell."""
    source: str
    """The prompt, or the command."""


class LoopShape(Shape):
    """A step that is done again, each round on the work of the one before."""

    until: Condition
    """An expression that is asked after each round; the first round after which it holds is the last."""
    max: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = None
    """Rounds at most; 10 where nothing is said."""
    max_iterations: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = None
    """Another word for `max`."""
    on_exhausted: Annotated[str, one_of("on_exhausted", "fail", "continue")] = "fail"
    """What it is when the condition does not hold after the last round: `fail`, or `continue`."""

    @property
    def given(self) -> Loop:
        """Give it as a value."""
        most = self.max or self.max_iterations or USUAL_ROUNDS
        return Loop(until=self.until, most=most, must_hold=self.on_exhausted == "fail")


class StepShape(Surroundings, Contracted):
    """A step."""

    name: str | None = None
    """Its name: small letters, digits and dashes; branches and folders are named after it."""
    id: str | None = None
    """Another word for `name`."""
    persona: str | None = None
    """The role that its agent plays, one of `personas`."""
    agent: str | None = None
    """Who does it, one of `agents`; else the persona's."""
    prompt: str | None = None
    """What the agent is to do."""
    exec: ExecShape | None = None
    """Another way to write the prompt or the command."""
    concurrency: int = Field(default=1, ge=1)
    """So many agents with the same prompt, each in its own workspace; clamped to the run's `max_concurrent_workers`."""
    max_concurrent_agents: int = 1
    """How many helpers of its own the agent is told that it may start; 10 at most."""
    needs: Names | None = None
    """Steps that must end well first; it starts the moment they have."""
    dependencies: Names | None = None
    """Another word for `needs`."""
    depends_on: Names | None = None
    """Another word for `needs`."""
    base: str = "auto"
    """What it starts from: `auto` or `needs` (the merged work of its needs), `run` (the run's base), or a git ref."""
    on_conflict: BetweenSteps = "report"
    """What is done where several needs changed the same lines: `report` fails the step; `ours` keeps the lines of the
    need that is named first, `theirs` takes those of the one named later."""
    allow_executable_config: bool = False
    """Whether what earlier agents wrote counts: a client's settings (hooks, servers, addresses), set-up's network."""
    optional: bool = False
    """Whether the run, and who needs it, go on when it fails."""
    retry: Retrying = Field(default_factory=Retry)
    """How often an agent that fails is tried again, in a fresh workspace, and told why."""
    on_failure: FailureRule = "fail_fast"
    """What a failure means: `fail_fast` stops the rest, `best_effort` does not, `any` wants one success, a quorum n."""
    expect: Annotated[str, one_of("expect", "any", "changes")] = "any"
    """With `changes`, an agent that changes nothing has failed."""
    command: Words | None = None
    """A command in place of an agent: a text for the shell, or a list of words."""
    condition: Condition | None = Field(default=None, alias="if")
    """An expression; where it does not hold, the step is skipped, and who needs it goes on."""
    output_artifacts: OutputArtifacts = Field(default_factory=list)
    """Files that each agent has to leave, for later steps."""
    inject_artifacts: InjectArtifacts | None = None
    """Which artifacts of earlier steps it is given; all of its needs where nothing is said."""
    select: SelectShape | None = None
    """How one winner is picked from several agents, for later steps to build on."""
    vary: Vary = ()
    """What differs between the workers: a mapping for each, or a list for each key."""
    strategy: StrategyShape | None = None
    """One worker for each cell of a matrix, or for each item that an earlier step left."""
    gate: GateField | None = None
    """Wait for a person's approval; no agent works here."""
    pipeline: str | None = None
    """A pipeline of this file that is run as this step."""
    input: Input | None = None
    """What the inner pipeline sees as `input`; without it, what this one sees."""
    loop: LoopShape | None = None
    """Do it again, each round on the work of the one before, until something holds."""

    @property
    def has_agent(self) -> bool:
        """Say whether it is work for an agent, and no command, gate or pipeline."""
        is_command = self.command is not None or (self.exec is not None and self.exec.type == "command")
        return not is_command and self.gate is None and self.pipeline is None

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the plain command, however it was spelt; a text is for the shell."""
        written = self.command if self.command is not None else self.exec.source if self.exec else ""
        return ("/bin/sh", "-c", written) if isinstance(written, str) else tuple(written)

    @property
    def title(self) -> str:
        """Return the step's name, however it was spelt."""
        return self.name or self.id or ""

    @property
    def wanted(self) -> tuple[str, ...]:
        """Return the steps that must end well first, however they were spelt."""
        return tuple(dict.fromkeys(self.needs or self.dependencies or self.depends_on or ()))

    @property
    def words(self) -> str:
        """Return the prompt, however it was spelt."""
        if self.prompt is not None or not self.has_agent:
            return self.prompt or ""
        return self.exec.source if self.exec else ""


class PipelineShape(Shape):
    """Steps under a name."""

    name: str
    """Its name, for `shoal run NAME`."""
    steps: list[StepShape]
    """What is done; each step starts the moment its own needs are met."""


class FileShape(Shape):
    """A whole file."""

    refused: ClassVar[dict[str, str]] = MISPLACED | {"resource_limits": MISPLACED["limits"]}

    runtime: RuntimeShape = Field(default_factory=RuntimeShape)
    """How the whole run is to be run."""
    agents: dict[str, AgentShape] = Field(default_factory=dict)
    """Who does the work, by name."""
    personas: dict[str, PersonaShape] = Field(default_factory=dict)
    """Roles that agents play, by name."""
    steps: list[StepShape] | None = None
    """What is done, where the file has one pipeline only."""
    pipelines: list[PipelineShape] | None = None
    """Several pipelines, each with steps of its own."""
