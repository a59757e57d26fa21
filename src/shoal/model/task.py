"""What a program asks for: a prompt, and as much beside it as it wants to say."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Protocol, Self, runtime_checkable

from shoal.errors import BadInput, UnknownName
from shoal.model.agent import AgentSpec
from shoal.model.limits import ResourceLimits
from shoal.model.permissions import Permissions
from shoal.model.policy import Network
from shoal.model.results import WorkerResult
from shoal.model.retry import Retry


@runtime_checkable
class InProcess(Protocol):
    """An agent that the program made itself, a `shoal.Agent`: each task is given to a fork of it."""

    @property
    def name(self) -> str | None:
        """The name that it was given."""

    def fork(self) -> object:
        """Make an agent that goes on alone from here."""


AgentLike = AgentSpec | str | Mapping[str, object] | InProcess | Callable[..., object]
Variable = str | Mapping[str, str]
"""A literal, or `{"from": HOST_NAME}`: then it is a secret, and masked."""

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,47}")
EXPECTED = ("any", "changes")
KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "base": ((str, WorkerResult), "a git ref or a result"),
    "limits": ((ResourceLimits, Mapping), "a mapping like {'memory_mb': 512}"),
    "env": ((Mapping,), "a mapping of names to texts"),
    "network": ((str,), "`none` or `host`"),
    "context": ((str,), "a text"),
    "permissions": ((Permissions, Mapping), "a mapping"),
    "priority": ((int,), "a whole number"),
}
"""What a key must be where it is given; the others are looked at where they are read."""
ITEMS: Mapping[str, tuple[type, ...]] = {"deps": (str,), "files": (str,), "inputs": (str, WorkerResult)}
SPELLINGS = {
    "task": "prompt",
    "id": "name",
    "needs": "deps",
    "depends_on": "deps",
    "dependencies": "deps",
    "resource_limits": "limits",
}


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work for one agent; what is left out, the coordinator decides.

    *files* are paths of the repository to look at first, *context* is told with the prompt, and *inputs* are results
    of earlier work: all three reach the agent in its prompt, and the inputs as files too. *base* is a git ref, or a
    result whose commit is built on.
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
    context: str | None = None
    inputs: Sequence[WorkerResult | str] = ()
    expect: str = "any"
    permissions: Permissions | Mapping[str, object] | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        """Raise `BadInput` for what no task can mean."""
        if not isinstance(self.prompt, str) or not self.prompt.strip():
            raise BadInput(f"the prompt of a task is empty ({self.prompt!r:.60}); say what the agent is to do")
        if "\0" in self.prompt:
            raise BadInput("a prompt has a NUL in it; take it out")
        if self.name is not None and not (isinstance(self.name, str) and NAME.fullmatch(self.name)):
            raise BadInput(f"{self.name!r:.80} is no name for a task: small letters, digits and dashes, at most 48")
        for name, (kinds, right) in KINDS.items():
            if (value := getattr(self, name)) is not None and not isinstance(value, kinds):
                raise BadInput(f"`{name}` of a task must be {right}, not {value!r:.60}")
        for name, items in ITEMS.items():
            object.__setattr__(self, name, _listed(name, getattr(self, name), items))
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
                raise BadInput(f"{given!r:.80} is no task; give {wanted}")

    @classmethod
    def command(cls, command: str | Sequence[str], *, name: str | None = None, **more: object) -> Self:
        """Make a task of a plain command, for verification: its exit code decides; a text is given to `sh -c`."""
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        said = command if isinstance(command, str) else " ".join(command)
        agent = {"adapter": "command", "command": argv}
        return cls(f"run {said}", **{**_fields(cls, more), "agent": agent, "name": name})


TaskLike = str | Mapping[str, object] | tuple[object, ...] | Task


def _fields(cls: type[Task], given: Mapping[str, object]) -> dict[str, Any]:
    known = [one.name for one in fields(cls)]
    found: dict[str, Any] = {}  # what a user wrote: each value is looked at where it is used
    for key, value in given.items():
        name = SPELLINGS.get(key, key)
        if name not in known:
            raise UnknownName("key of a task", str(key), (*known, *SPELLINGS))
        if name in found:
            raise BadInput(f"a task says {name!r} twice, once as {key!r}")
        found[name] = value
    return found


def _listed(name: str, value: object, items: tuple[type, ...]) -> tuple[object, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadInput(f"`{name}` of a task must be a list, not {value!r:.60}")
    for one in value:
        if not isinstance(one, items):
            raise BadInput(f"{one!r:.60} cannot stand in `{name}` of a task; write names")
    return tuple(value)
