"""The shape of a pipeline file: which keys there are and what kind of value each takes.

What the values mean together (names, references, exclusions) is asked in `check`.
"""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError
from pydantic_core import InitErrorDetails

from shoal.errors import UnknownName
from shoal.model.limits import BadLimit, ResourceLimits
from shoal.model.retry import KEYS, BadRetry, Retry
from shoal.model.rule import FAILURE_RULES
from shoal.pipeline.fields import OURS, UNKNOWN_KEY, Argv, Duration, NetworkName, Shape, one_of, wrong
from shoal.pipeline.mind import BudgetShape, Replies, Tools
from shoal.pipeline.permissions import PermissionsShape
from shoal.pipeline.problems import key, nearest, shown
from shoal.pipeline.script import Action

ADAPTERS = ("command", "scripted", "python")
LATER_ADAPTERS = ("claude", "codex", "goose", "gemini", "opencode", "copilot", "aider", "acp")
DEFAULT_WORKERS = 10
LATER_STEP_KEYS = frozenset(
    {"if", "select", "vary", "strategy", "contract", "output_artifacts", "isolation_strategy", "sandbox"}
)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _limits(value: object) -> ResourceLimits:
    if not isinstance(value, dict):
        raise wrong(f"limits must be a mapping such as {{memory_mb: 1024}}, not {shown(value)}")
    alone = {name: bad for name, given in value.items() if (bad := _bad_limit({name: given}))}
    together = _bad_limit({name: given for name, given in value.items() if name not in alone})
    if problems := [_limit_line(bad, value) for bad in (*alone.values(), together) if bad]:
        raise ValidationError.from_exception_data("limits", problems)
    return ResourceLimits.of(value)


def _bad_limit(given: dict[str, object]) -> BadLimit | None:
    try:
        ResourceLimits.of(given)
    except BadLimit as error:
        return error
    return None


def _limit_line(bad: BadLimit, value: dict[str, object]) -> InitErrorDetails:
    kind = wrong(str(bad), UNKNOWN_KEY if bad.is_about_key else OURS)
    return InitErrorDetails(type=kind, loc=(bad.key,), input=value[bad.key])


def _fleet(value: object) -> ResourceLimits:
    limits = _limits(value)
    if limits.is_exact:
        where = "`disk: exact` gives each agent a disk of its own; say it in `resource_limits` or `limits`"
        line = InitErrorDetails(type=wrong(where), loc=("disk",), input="exact")
        raise ValidationError.from_exception_data("limits", [line])
    return limits


Limits = Annotated[ResourceLimits, PlainValidator(_limits)]
FleetLimits = Annotated[ResourceLimits, PlainValidator(_fleet)]
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
    if isinstance(value, dict):
        return _quorum(value)
    if value not in FAILURE_RULES:
        known = f"use {', '.join(FAILURE_RULES)} or {{quorum: n}}"
        hint = nearest(value, FAILURE_RULES) if isinstance(value, str) else known
        raise wrong(f"`on_failure` cannot be {shown(value)}; {hint}")
    return value


def _quorum(value: dict[object, object]) -> str:
    match value:
        case {"quorum": int(number), **rest} if not rest and not isinstance(number, bool) and number >= 1:
            return f"quorum={number}"
        case _:
            raise wrong("`on_failure` as a mapping is `{quorum: n}`, with a whole number of at least 1")


def _retry(value: object) -> Retry:
    if not isinstance(value, dict | int) or isinstance(value, bool):
        raise wrong(f"`retry` must be a number of further attempts or a mapping, not {shown(value)}")
    try:
        return Retry.of(value)
    except BadRetry as error:
        if error.key is None or not isinstance(value, dict):
            raise wrong(str(error)) from None
        line = InitErrorDetails(type=wrong(str(error)), loc=(error.key,), input=value.get(error.key))
        raise ValidationError.from_exception_data("retry", [line]) from None
    except UnknownName as error:
        name = next(one for one in value if one not in KEYS) if isinstance(value, dict) else ""
        line = InitErrorDetails(type=wrong(str(error), UNKNOWN_KEY), loc=(str(name),), input=value)
        raise ValidationError.from_exception_data("retry", [line]) from None


def _names(value: object) -> object:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_names)]


class RuntimeShape(Shape):
    """How the whole run is to be run."""

    later: ClassVar[frozenset[str]] = frozenset({"toolchains"})
    refused: ClassVar[dict[str, str]] = {
        "limits": "in `runtime` it is `resource_limits`",
    }

    resource_limits: Limits | None = None
    fleet_limits: FleetLimits | None = None
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
    permissions: PermissionsShape | None = None


class AgentShape(Surroundings):
    """An agent: its adapter, and what that needs."""

    later: ClassVar[frozenset[str]] = frozenset({"isolation_strategy", "sandbox"})

    adapter: Annotated[str, one_of("adapter", *ADAPTERS, later=LATER_ADAPTERS)]
    command: Argv | None = None
    script: list[Action] | None = None
    script_file: str | None = None
    model: str | None = None
    tools: Tools | None = None
    budget: BudgetShape | None = None
    replies: Replies | None = None


class PersonaShape(Surroundings):
    """A role that an agent plays."""

    later: ClassVar[frozenset[str]] = frozenset({"isolation_strategy", "sandbox"})

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
    needs: Names | None = None
    dependencies: Names | None = None
    depends_on: Names | None = None
    base: str = "auto"
    optional: bool = False
    retry: Annotated[Retry, PlainValidator(_retry)] = Field(default_factory=Retry)
    on_failure: Annotated[str, BeforeValidator(_failure_rule)] = "fail_fast"
    expect: Annotated[str, one_of("expect", "any", "changes")] = "any"

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
