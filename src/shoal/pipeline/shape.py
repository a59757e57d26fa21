"""The shape of a pipeline file: which keys there are and what kind of value each takes.

What the values mean together (names, references, exclusions) is asked in `check`.
"""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, PlainValidator

from shoal.model.limits import BadLimit, ResourceLimits
from shoal.pipeline.fields import UNSUPPORTED, Argv, Duration, NetworkName, Shape, one_of, wrong
from shoal.pipeline.problems import key, nearest, shown
from shoal.pipeline.script import Action

ADAPTERS = ("command", "scripted")
LATER_ADAPTERS = ("claude", "codex", "goose", "gemini", "opencode", "copilot", "aider", "acp")
DEFAULT_WORKERS = 10
LATER_STEP_KEYS = frozenset(
    {"needs", "dependencies", "depends_on", "base", "if", "optional", "select", "vary", "strategy", "retry"}
    | {"contract", "output_artifacts", "isolation_strategy", "sandbox"}
)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _limits(value: object) -> ResourceLimits:
    if not isinstance(value, dict):
        raise wrong(f"limits must be a mapping such as {{memory_mb: 1024}}, not {shown(value)}")
    try:
        return ResourceLimits.of(value)
    except BadLimit as error:
        raise wrong(str(error)) from error


Limits = Annotated[ResourceLimits, PlainValidator(_limits)]
MISPLACED = {"limits": "limits belong to `runtime.resource_limits`, or to a step, persona or agent as `limits`"}
ELSEWHERE = {"resource_limits": "`resource_limits` is the name in `runtime`; here it is `limits`"}


@dataclass(frozen=True, slots=True)
class FromHost:
    """An environment variable whose value is taken from the host when the plan is made."""

    variable: str


def _variable(value: object) -> str | FromHost:
    match value:
        case bool() | str() | int() | float():
            return shown(value) if isinstance(value, bool) else str(value)
        case {"from": str(variable), **rest} if not rest and _VARIABLE.fullmatch(variable):
            return FromHost(variable)
        case _:
            raise wrong(f"a variable must be text, a number, true, false or {{from: HOST_NAME}}, not {shown(value)}")


def _named_variables(value: object) -> object:
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
                raise wrong(f"{key(str(name))} is no name for a variable; use letters, digits and `_`")
            if name.startswith("SHOAL_"):
                raise wrong(f"{key(name)} is set by Shoal itself; choose a name that does not start with SHOAL_")
    return value


Env = Annotated[
    dict[str, Annotated[str | FromHost, PlainValidator(_variable)]],
    BeforeValidator(_named_variables),
]


def _per_agent(value: str) -> str:
    if value == "shared":
        raise wrong("database_strategy: shared comes later; use per_agent")
    return value


def _not_merging(value: object) -> object:
    if value is True:
        raise wrong("auto_merge: merging is not there yet; remove it or say false")
    return value


def _failure_rule(value: object) -> object:
    known = ("fail_fast", "best_effort")
    if value == "any" or (isinstance(value, dict) and "quorum" in value):
        said = "any" if value == "any" else "{quorum: n}"
        raise wrong(f"`on_failure: {said}` {UNSUPPORTED}; use {' or '.join(known)}")
    if value not in known:
        hint = nearest(value, known) if isinstance(value, str) else f"use {' or '.join(known)}"
        raise wrong(f"`on_failure` cannot be {shown(value)}; {hint}")
    return value


class RuntimeShape(Shape):
    """How the whole run is to be run."""

    later: ClassVar[frozenset[str]] = frozenset({"toolchains"})
    refused: ClassVar[dict[str, str]] = {
        "limits": "in `runtime` it is `resource_limits`",
    }

    resource_limits: Limits | None = None
    fleet_limits: Limits | None = None
    max_concurrent_workers: int = Field(default=DEFAULT_WORKERS, ge=1, le=1000)
    isolation_strategy: Annotated[str, one_of("isolation_strategy", "auto", "overlay", "worktree", "directory")] = (
        "auto"
    )
    database_strategy: Annotated[str, one_of("database_strategy", "per_agent"), BeforeValidator(_per_agent)] = (
        "per_agent"
    )
    auto_merge: Annotated[bool, BeforeValidator(_not_merging)] = False
    cleanup_on_complete: bool = True
    sandbox: Annotated[str, one_of("sandbox", "bubblewrap", "landlock", "none")] = "bubblewrap"
    network: NetworkName | None = None


class Surroundings(Shape):
    """What a step, a persona and an agent may each say; the nearest wins."""

    refused: ClassVar[dict[str, str]] = ELSEWHERE

    limits: Limits | None = None
    network: NetworkName | None = None
    env: Env = Field(default_factory=dict)
    timeout: Duration | None = None


class AgentShape(Surroundings):
    """An agent: its adapter, and what that needs."""

    later: ClassVar[frozenset[str]] = frozenset({"isolation_strategy", "sandbox"})

    adapter: Annotated[str, one_of("adapter", *ADAPTERS, later=LATER_ADAPTERS)]
    command: Argv | None = None
    script: list[Action] | None = None
    script_file: str | None = None


class PersonaShape(Surroundings):
    """A role that an agent plays."""

    later: ClassVar[frozenset[str]] = frozenset({"isolation_strategy", "sandbox", "permissions"})

    agent: str | None = None
    system_prompt: str | None = None
    system_prompt_file: str | None = None


class ExecShape(Shape):
    """Another way to write a prompt."""

    type: Annotated[str, one_of("type", "prompt", later=("command", "slash_command"))] = "prompt"
    source: str


class StepShape(Surroundings):
    """A step."""

    later: ClassVar[frozenset[str]] = LATER_STEP_KEYS

    name: str | None = None
    id: str | None = None
    persona: str | None = None
    agent: str | None = None
    prompt: str | None = None
    exec: ExecShape | None = None
    concurrency: int = Field(default=1, ge=1)
    max_concurrent_agents: int = 1
    on_failure: Annotated[str, BeforeValidator(_failure_rule)] = "fail_fast"
    expect: Annotated[str, one_of("expect", "any", "changes")] = "any"

    @property
    def title(self) -> str:
        """Return the step's name, however it was spelt."""
        return self.name or self.id or ""

    @property
    def words(self) -> str:
        """Return the prompt, however it was spelt."""
        return self.prompt if self.prompt is not None else self.exec.source if self.exec else ""


class PipelineShape(Shape):
    """Steps under a name."""

    name: str
    steps: list[StepShape]


class FileShape(Shape):
    """A whole file."""

    refused: ClassVar[dict[str, str]] = MISPLACED | {"resource_limits": MISPLACED["limits"]}

    runtime: RuntimeShape = Field(default_factory=RuntimeShape)
    agents: dict[str, AgentShape] = Field(default_factory=dict)
    personas: dict[str, PersonaShape] = Field(default_factory=dict)
    steps: list[StepShape] | None = None
    pipelines: list[PipelineShape] | None = None
