"""A task as a program asks for it: a prompt and optional settings."""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, Protocol, Self, runtime_checkable

from shoal.errors import BadInput, UnknownName
from shoal.model.agent import AgentSpec
from shoal.model.budget import SpendingLimit
from shoal.model.limits import ResourceLimits
from shoal.model.permissions import Permissions
from shoal.model.policy import Network
from shoal.model.results import WorkerResult
from shoal.model.retry import Retry
from shoal.model.talk import TalkGrant


@runtime_checkable
class InProcess(Protocol):
    """An agent that the program made itself, a `shoal.Agent`: each task is given to a fork of it."""

    @property
    def name(self) -> str | None:
        """The name that it was given."""

    def fork(self) -> object:
        """Make an independent agent that continues from here."""


AgentLike = AgentSpec | str | Mapping[str, object] | InProcess | Callable[..., object]
Variable = str | Mapping[str, str]
"""A literal, or `{"from": HOST_NAME}`: then it is a secret, and masked."""

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,47}")
INPUT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
EXPECTED = ("any", "changes")
KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "base": ((str, WorkerResult), "a git ref or a result"),
    "limits": ((ResourceLimits, Mapping), "a mapping like {'memory_mb': 512}"),
    "env": ((Mapping,), "a mapping of names to texts"),
    "network": ((str,), "`none`, `gateway` or `host`"),
    "context": ((str, WorkerResult), "a text or a result"),
    "persona": ((str,), "the name of a persona"),
    "system_prompt": ((str,), "a text"),
    "max_concurrent_agents": ((int,), "a whole number"),
    "params": ((Mapping,), "a mapping of names to plain values"),
    "permissions": ((Permissions, Mapping), "a mapping"),
    "priority": ((int,), "a whole number"),
    "needs_node": ((Mapping,), "a mapping of labels like {'gpu': True}"),
    "talk": ((TalkGrant, Mapping), "a mapping like {'spawn': 3, 'message': True}"),
}
"""What a key must be where it is given; the others are looked at where they are read."""
ITEMS: Mapping[str, tuple[type, ...]] = {
    "deps": (str,),
    "files": (str,),
    "inputs": (str, WorkerResult),
    "contracts": (Mapping,),
    "output_artifacts": (Mapping,),
}
SPELLINGS = {
    "task": "prompt",
    "id": "name",
    "needs": "deps",
    "depends_on": "deps",
    "dependencies": "deps",
    "resource_limits": "limits",
    "contract": "contracts",
}
PROMISES = ("max_concurrent_agents", "contracts", "output_artifacts")
"""What a task says of itself as a step of a file would, in the same words."""
NEAR = 0.8
"""So much like the name of a field is what is meant as one, and no parameter."""


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work for one agent; the coordinator fills in what is left out.

    *files* are paths of the repository to look at first, *context* is told with the prompt, *inputs* are results of
    earlier work, as a list or by names, and *params* are free values of yours: all reach the agent in its prompt, and
    inputs and params as files too. *base* is a git ref, or a result whose commit is built on. *persona*,
    *max_concurrent_agents*, *contracts* and *output_artifacts* mean what they mean in a file; *system_prompt* takes
    the place of the persona's.
    """

    prompt: str
    _: KW_ONLY
    agent: AgentLike | None = None
    name: str | None = None
    base: str | WorkerResult | None = None
    limits: ResourceLimits | Mapping[str, object] | None = None
    env: Mapping[str, Variable] | None = field(default=None, repr=False)
    network: Network | str | None = None
    timeout: float | str | None = None
    """Seconds, or `10m`."""
    retry: Retry | int | Mapping[str, object] | None = None
    deps: Sequence[str] = ()
    files: Sequence[str] = ()
    context: str | WorkerResult | None = None
    inputs: Sequence[WorkerResult | str] | Mapping[str, object] = ()
    expect: str = "any"
    permissions: Permissions | Mapping[str, object] | None = None
    priority: int = 0
    persona: str | None = None
    system_prompt: str | None = None
    max_concurrent_agents: int | None = None
    contracts: Sequence[Mapping[str, object]] | Mapping[str, object] = ()
    output_artifacts: Sequence[Mapping[str, object]] = ()
    params: Mapping[str, object] | None = None
    talk: TalkGrant | Mapping[str, object] | None = None
    needs_node: Mapping[str, object] | None = None
    """The labels that a node must have to run it."""
    budget: SpendingLimit | Mapping[str, object] | float | str | None = None
    """What it may spend on models, with all its attempts: dollars, or `{"usd": 1, "tokens": 200000}`."""

    def __post_init__(self) -> None:
        """Raise `BadInput` for what no task can mean."""
        if not isinstance(self.prompt, str) or not self.prompt.strip():
            raise BadInput(f"the prompt of a task is empty ({self.prompt!r:.60}); say what the agent is to do")
        if "\0" in self.prompt:
            raise BadInput("the prompt contains a NUL byte; remove it")
        try:
            self.prompt.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"the prompt is not UTF-8 at character {error.start + 1}; give it as UTF-8") from None
        if self.name is not None and not (isinstance(self.name, str) and NAME.fullmatch(self.name)):
            raise BadInput(
                f"{self.name!r:.80} is not a valid task name; use at most 48 lowercase letters, digits and dashes"
            )
        for name, (kinds, right) in KINDS.items():
            if (value := getattr(self, name)) is not None and not isinstance(value, kinds):
                raise BadInput(f"`{name}` of a task must be {right}, not {value!r:.60}")
        if isinstance(self.contracts, Mapping):
            object.__setattr__(self, "contracts", (self.contracts,))
        if isinstance(self.inputs, Mapping):
            object.__setattr__(self, "inputs", _by_name(self.inputs))
        for name, items in ITEMS.items():
            if not isinstance(getattr(self, name), Mapping):
                object.__setattr__(self, name, _as_tuple(name, getattr(self, name), items))
        _refuse_params(self.params)
        if self.budget is not None:
            object.__setattr__(self, "budget", SpendingLimit.read(self.budget))
        if self.expect not in EXPECTED:
            raise UnknownName("`expect`", str(self.expect), EXPECTED)

    @classmethod
    def of(cls, given: "TaskLike") -> Self:
        """Read a task as users write them: a text, a mapping, a tuple `(name, prompt, deps)`, or a `Task`."""
        match given:
            case cls():
                return given
            case str():
                return cls(given)
            case Mapping():
                return cls(**{"prompt": None, **_fields(cls, given)})
            case (str(name), str(prompt)):
                return cls(prompt, name=name)
            case (str(name), str(prompt), Mapping() as more):
                return cls(**{**_fields(cls, more), "name": name, "prompt": prompt})
            case (str(name), str(prompt), list() | tuple() as deps):
                return cls(prompt, name=name, deps=deps)
            case _:
                wanted = "a text, a mapping, a Task, or a tuple (name, prompt) or (name, prompt, deps)"
                raise BadInput(f"{given!r:.80} is not a task; give {wanted}")

    @classmethod
    def free(cls, given: Mapping[str, object]) -> Self:
        """Read a task whose unknown keys are parameters; results among those are inputs."""
        known = [parameter.name for parameter in fields(cls)]
        own = {key: value for key, value in given.items() if SPELLINGS.get(key, key) in known}
        free = {key: value for key, value in given.items() if key not in own}
        for key in free:
            if difflib.get_close_matches(str(key), (*known, *SPELLINGS), n=1, cutoff=NEAR):
                raise UnknownName("key of a task", str(key), (*known, *SPELLINGS))
        results = {key: value for key, value in free.items() if _is_results(value)}
        made = cls(**{"prompt": None, **_fields(cls, own)}).with_inputs(results)
        params = {key: value for key, value in free.items() if key not in results}
        return replace(made, params={**(made.params or {}), **params}) if params else made

    def with_inputs(self, more: Sequence[WorkerResult] | Mapping[str, object]) -> Self:
        """Return the task with *more* inputs."""
        if not more:
            return self
        if not isinstance(more, Mapping) and not isinstance(self.inputs, Mapping):
            return replace(self, inputs=(*self.inputs, *more))
        return replace(self, inputs={**_name_inputs(self.inputs), **_name_inputs(more)})

    def resolve_inputs(self, known: Mapping[str, WorkerResult]) -> Self:
        """Put results where its inputs name them."""

        def look_up(value: object) -> object:
            return known.get(value, value) if isinstance(value, str) else value

        if isinstance(self.inputs, Mapping):
            by_name = {name: look_up(value) for name, value in self.inputs.items()}
            return self if by_name == self.inputs else replace(self, inputs=by_name)
        listed = tuple(look_up(value) for value in self.inputs)
        return self if listed == self.inputs else replace(self, inputs=listed)  # type: ignore[arg-type]  # checked there

    @property
    def promises(self) -> dict[str, object]:
        """Return its settings like those of a step in a file."""
        found = {name: getattr(self, name) for name in PROMISES if getattr(self, name)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}

    def as_fields(self) -> dict[str, object]:
        """Return the fields that were given."""
        given = {parameter.name: getattr(self, parameter.name) for parameter in fields(self)}
        return {key: value for key, value in given.items() if value not in (None, (), "any", 0)}

    @classmethod
    def command(cls, command: str | Sequence[str], *, name: str | None = None, **more: object) -> Self:
        """Make a task of a plain command, for verification: its exit code decides; a text is given to `sh -c`."""
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        line = command if isinstance(command, str) else " ".join(command)
        agent = {"adapter": "command", "command": argv}
        return cls(f"run {line}", **{**_fields(cls, more), "agent": agent, "name": name})


TaskLike = str | Mapping[str, object] | tuple[object, ...] | Task


def _fields(cls: type[Task], given: Mapping[str, object]) -> dict[str, Any]:
    known = [parameter.name for parameter in fields(cls)]
    found: dict[str, Any] = {}  # what a user wrote: each value is looked at where it is used
    for key, value in given.items():
        name = SPELLINGS.get(key, key)
        if name not in known:
            raise UnknownName("key of a task", str(key), (*known, *SPELLINGS))
        if name in found:
            raise BadInput(f"a task says {name!r} twice, once as {key!r}")
        found[name] = value
    return found


def _as_tuple(name: str, value: object, items: tuple[type, ...]) -> tuple[object, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadInput(f"`{name}` of a task must be a list, not {value!r:.60}")
    for item in value:
        if not isinstance(item, items):
            raise BadInput(f"{item!r:.60} is not allowed in `{name}` of a task; use names")
    return tuple(value)


def _by_name(inputs: Mapping[str, object]) -> dict[str, WorkerResult | str]:
    """Map each input to a unique name; number those that share one."""
    found: dict[str, WorkerResult | str] = {}
    for name, value in inputs.items():
        if not isinstance(name, str) or not INPUT.fullmatch(name):
            raise BadInput(f"{name!r:.60} is not a valid input name; use letters, digits, `_` and `-`")
        match value:
            case str() | WorkerResult():
                found[name] = value
            case list() | tuple() if all(isinstance(item, str | WorkerResult) for item in value):
                found |= {f"{name}-{number}": item for number, item in enumerate(value, start=1)}
            case _:
                raise BadInput(f"input {name!r} of a task must be a text, a result or a list of those")
    return found


def _name_inputs(inputs: Sequence[WorkerResult | str] | Mapping[str, object]) -> dict[str, object]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {f"input-{number}": item for number, item in enumerate(inputs, start=1)}


def _is_results(value: object) -> bool:
    match value:
        case WorkerResult():
            return True
        case list() | tuple():
            return bool(value) and all(isinstance(item, WorkerResult) for item in value)
    return False


def _refuse_params(params: Mapping[str, object] | None) -> None:
    try:
        json.dumps(params)
    except (TypeError, ValueError) as error:
        raise BadInput(f"`params` of a task must be plain values: {error}") from None
