"""The actions of a scripted agent: their shape, and the JSON that its program is given."""

import json
from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, RootModel, model_validator

from shoal.pipeline.fields import Shape, runnable, wrong
from shoal.pipeline.problems import BadDocument
from shoal.pipeline.tree import plain
from shoal.pipeline.validation_errors import shape_problems
from shoal.pipeline.yaml_reader import compose

LONGEST_SLEEP = 24 * 3600


def script(text: str, name: str) -> str:
    """Read the YAML list of actions in the file *name*, and return it as canonical JSON."""
    composed = compose(text, name)
    if problems := [*composed.problems, *shape_problems(Script, composed.tree, name)]:
        raise BadDocument(problems)
    return canonical(Script.model_validate(plain(composed.tree)).root)


def _check_name(value: str) -> str:
    if not value:
        raise wrong("the path is empty; name a file")
    return value


def _shell(value: object) -> object:
    if not isinstance(value, str):
        return value
    return ["/bin/sh", "-c", value] if value.strip() else []


FilePath = Annotated[str, AfterValidator(_check_name)]
Run = Annotated[list[str], AfterValidator(runnable), BeforeValidator(_shell)]


class FileText(Shape):
    """A file, and the text that goes into it."""

    path: FilePath
    """The file, from the workspace."""
    content: str
    """The text."""


class Action(Shape):
    """One action of the agent: exactly one verb."""

    verbs: ClassVar[tuple[str, ...]] = ("write", "append", "delete", "run", "sleep", "say", "receive", "fail", "exit")

    write: FileText | None = None
    """Write a file, replacing what was there."""
    append: FileText | None = None
    """Add a text to the end of a file."""
    delete: FilePath | None = None
    """Remove a file."""
    run: Run | None = None
    """Run a program: a list of arguments, or a shell command."""
    sleep: Annotated[float, Field(ge=0, le=LONGEST_SLEEP, allow_inf_nan=False)] | None = None
    """Wait this many seconds."""
    say: str | None = None
    """Print a line."""
    receive: FilePath | None = None
    """Wait for a message by `shoal send`, and write it to this file."""
    fail: str | None = None
    """Print the reason and fail."""
    exit: Annotated[int, Field(ge=0, le=255)] | None = None
    """Exit with this code."""
    ignore_failure: bool = False
    """With `run`: continue if the program fails."""

    @model_validator(mode="after")
    def _one_verb(self) -> Self:
        given = [verb for verb in self.verbs if getattr(self, verb) is not None]
        if len(given) != 1:
            found = " and ".join(f"`{verb}`" for verb in given) or "no action"
            raise wrong(f"{found} in one item; give exactly one of {', '.join(self.verbs)}")
        if self.ignore_failure and self.run is None:
            raise wrong(f"`ignore_failure` with `{given[0]}`; use it with `run` only")
        return self


class Script(RootModel[list[Action]]):
    """A whole script."""


def canonical(actions: Sequence[Action]) -> str:
    """Write actions as the JSON that the scripted agent reads: the same actions give the same text."""
    spelt = [action.model_dump(exclude_defaults=True) for action in actions]
    return json.dumps(spelt, sort_keys=True, separators=(",", ":"))
