"""The shapes of `output_artifacts:` and `inject_artifacts:`; each wrong item is reported at its position."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_core import InitErrorDetails

from shoal.model.artifact import Artifact, Injection, Type, refusal, type_of
from shoal.pipeline.fields import Shape, one_of, wrong
from shoal.pipeline.names import is_name, slug
from shoal.pipeline.problems import Position, Problem, key, nearest, show_value
from shoal.pipeline.tree import Fields, Node, find, items, text

MOST = 64
AGGREGATE = "aggregate"
RESERVED = {"patch": "a session's own patch", AGGREGATE: "the results of all workers of a step"}
"""Names that Shoal itself gives to files that are handed on."""


def _check_name(name: str) -> str:
    if not is_name(name):
        rule = "small letters, digits and dashes, at most 48"
        raise wrong(
            f"{show_value(name)} is not a valid artifact name ({rule}); use `{slug(name, otherwise='artifact')}`"
        )
    return name


def _inside(path: str) -> str:
    if why := refusal(path):
        raise wrong(f"{show_value(path)}: {why}")
    return str(PurePosixPath(path))


def _normalise(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


Name = Annotated[str, AfterValidator(_check_name)]


class ArtifactShape(Shape):
    """A file that a step must leave."""

    name: Name | None = None
    """Its name in later steps; default: the file's name."""
    path: Annotated[str, AfterValidator(_inside)]
    """The file, from the top of the workspace."""
    type: Annotated[str, one_of("type", *Type)] | None = None
    """Its type, which is checked; default: by its suffix, else text."""
    required: bool = True
    """Fail the step if it is missing."""
    source: Annotated[str, one_of("source", "file", later=("stdout",))] = "file"
    """Where it comes from."""

    @property
    def title(self) -> str:
        """Return its name: what was written, or the nearest to how its file is called."""
        return self.name or _stem(self.path)

    @property
    def given(self) -> Artifact:
        """Build the value."""
        kind = type_of(self.path) if self.type is None else Type(self.type)
        return Artifact(name=self.title, path=self.path, type=kind, required=self.required)


class InjectionShape(Shape):
    """An artifact of an earlier step to pass in."""

    later: ClassVar[frozenset[str]] = frozenset({"optional", "pipeline", "schema_path", "type"})
    refused: ClassVar[dict[str, str]] = {"name": "another name is given with `as`"}

    step: str
    """One of the steps that this one needs."""
    artifact: str
    """Its name in that step."""
    name: Name | None = Field(default=None, alias="as")
    """Another name for it in this step."""

    @property
    def title(self) -> str:
        """Return the name under which it is given."""
        return self.name or self.artifact

    @property
    def given(self) -> Injection:
        """Build the value."""
        return Injection(step=self.step, artifact=self.artifact, name=self.name)


def _all_different(artifacts: list[ArtifactShape]) -> list[ArtifactShape]:
    _assert_few(artifacts)
    titles, paths = [artifact.title for artifact in artifacts], [artifact.path for artifact in artifacts]
    lines = [
        *_twice(titles, "name", "a second artifact named {}; rename one"),
        *_twice(paths, "path", "a second artifact at {}; one of them is enough"),
        *(_refuse_reserved(index, title) for index, title in enumerate(titles) if title in RESERVED),
    ]
    if lines:
        raise ValidationError.from_exception_data("output_artifacts", lines)
    return artifacts


def _all_apart(injections: list[InjectionShape]) -> list[InjectionShape]:
    _assert_few(injections)
    places = [f"{injection.step}/{injection.title}" for injection in injections]
    if lines := [*_twice(places, "as", "a second artifact at {}; give one another name with `as`")]:
        raise ValidationError.from_exception_data("inject_artifacts", lines)
    return injections


OutputArtifacts = Annotated[
    list[Annotated[ArtifactShape, BeforeValidator(_normalise, json_schema_input_type=str | ArtifactShape)]],
    AfterValidator(_all_different),
]
InjectArtifacts = Annotated[list[InjectionShape], AfterValidator(_all_apart)]


def injection_problems(
    step: Node, needed: Mapping[str, Node], at: Callable[[Position, str], Problem]
) -> Iterator[Problem]:
    """Find what *step* is to be given and none of the steps that it needs has; *needed* are those, by name."""
    for injection in items(find(step, "inject_artifacts")):
        source, artifact = find(injection, "step"), find(injection, "artifact")
        name, wanted = text(source), text(artifact)
        if source is None or artifact is None or name is None or wanted is None:
            continue
        if name not in needed:
            what = f"artifacts come from steps that this one needs, and {key(name)} is none of them"
            yield at(source.at, f"{what}; add it to `needs`")
        elif wanted not in (known := list_declared(needed[name])) and find(needed[name], "pipeline") is None:
            what = f"step {key(name)} leaves no artifact named {show_value(wanted)}"
            yield at(artifact.at, f"{what}; {nearest(wanted, known)}")


def list_declared(step: Node) -> list[str]:
    """Name the artifacts that *step* is to leave, as far as they can be read."""
    named = [name for declared in items(find(step, "output_artifacts")) if (name := _title(declared))]
    has_several_workers = find(step, "concurrency") is not None or find(step, "strategy") is not None
    return [*named, AGGREGATE] if has_several_workers else named


def _title(node: Node) -> str | None:
    if isinstance(node, Fields) and (name := text(find(node, "name"))):
        return name
    path = text(find(node, "path") if isinstance(node, Fields) else node)
    return None if path is None else _stem(path)


def _stem(path: str) -> str:
    return slug(PurePosixPath(path).stem, otherwise="artifact")


def _assert_few(given: Sequence[object]) -> None:
    if len(given) > MOST:
        raise wrong(f"{len(given)} artifacts are too many; a step may declare at most {MOST}")


def _twice(keys: Sequence[str], field: str, what: str) -> Iterator[InitErrorDetails]:
    for index, value in enumerate(keys):
        if keys.index(value) < index:
            yield InitErrorDetails(type=wrong(what.format(key(value))), loc=(index, field), input=value)


def _refuse_reserved(index: int, name: str) -> InitErrorDetails:
    sentence = f"`{name}` is what Shoal calls {RESERVED[name]}; choose another `name`"
    return InitErrorDetails(type=wrong(sentence), loc=(index, "name"), input=name)
