"""The shape of `contract:` and `contracts:`, and the values that come of it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import InitErrorDetails

from shoal.model.artifact import refusal
from shoal.model.contract import (
    AgentReview,
    Contract,
    JsonSchema,
    NonEmptyFile,
    NoTestDeletions,
    Passes,
    SourceDiff,
)
from shoal.model.shell import script_of
from shoal.pipeline.fields import Duration, Shape, one_of, worded, wrong
from shoal.pipeline.json_schema import BadSchema, canonical
from shoal.pipeline.problems import shown
from shoal.pipeline.values import COMMAND

OWN_KEYS: Mapping[str, tuple[str, ...]] = {
    "json_schema": ("path", "artifact", "schema", "schema_file"),
    "test_suite": ("command", "timeout"),
    "command": ("command", "timeout"),
    "non_empty_file": ("path",),
    "source_diff": ("glob", "paths", "exclude", "min_files"),
    "no_test_deletions": ("patterns",),
    "agent_review": ("persona", "agent", "criteria", "timeout"),
}
"""Which keys go with which type, beside those that all have."""
LONGEST_PATTERN = 500
MOST_FILES = 1_000_000


def _inside(path: str) -> str:
    if why := refusal(path):
        raise wrong(f"{shown(path)}: {why}")
    return path


def _pattern(pattern: str) -> str:
    if not pattern.strip("/") or pattern.startswith("/") or ".." in pattern.split("/"):
        raise wrong(f"{shown(pattern)} is no pattern for paths from the top of the repository, like `src/**/*.py`")
    if len(pattern) > LONGEST_PATTERN:
        raise wrong(f"a pattern may have {LONGEST_PATTERN} signs, not {len(pattern)}")
    return pattern


def _schema(schema: dict[str, object]) -> dict[str, object]:
    try:
        canonical(schema)
    except BadSchema as error:
        line = InitErrorDetails(type=wrong(str(error)), loc=error.path, input=schema)
        raise ValidationError.from_exception_data("schema", [line]) from None
    return schema


def _words(value: object) -> str | tuple[str, ...]:
    match worded(value):
        case str(command) if command.strip():
            return _fillable(command)
        case [str(program), *words] if program.strip() and all(isinstance(word, str) for word in words):
            argv = (program, *map(str, words))
            _fillable(script_of(argv))
            return argv
        case _:
            example = '"pytest -q" or ["pytest", "-q"]'
            raise wrong(f"`command` must be a text for the shell or a list of words, like {example}")


def _fillable(command: str) -> str:
    """Accept a shell's text whose places can be handed to it as parameters, which it never reads as commands."""
    if "{%" in command:
        raise wrong("`{% … %}` cannot be used in a shell's text; give it values by `{{ … }}`, and let the shell decide")
    return command


Inside = Annotated[str, AfterValidator(_inside)]
Patterns = Annotated[list[Annotated[str, AfterValidator(_pattern)]], Field(min_length=1)]
Words = Annotated[
    str | tuple[str, ...],
    PlainValidator(_words),
    WithJsonSchema(COMMAND),
]


class ContractShape(Shape):
    """What the work of a step must meet before it counts as good."""

    refused: ClassVar[dict[str, str]] = {
        "schema_path": "`schema_path` is `schema_file` here",
        "source": "`source` is `path` here, or `artifact` for one of the step's own",
        "dir": "`dir` is not there: a command is run at the top of the work; write `cd DIR && …`",
    }

    type: Annotated[str, one_of("type", *OWN_KEYS)]
    """What is checked."""
    must_pass: bool = True
    """Whether work that does not meet it has failed; `false` is the same as `on_failure: warn`."""
    on_failure: Annotated[str, one_of("on_failure", "fail", "warn")] = "fail"
    """`fail`, or `warn`: then it is told in the report, and the work counts all the same."""
    path: Inside | None = None
    """For `json_schema` and `non_empty_file`: the file, from the top of the repository."""
    artifact: str | None = None
    """For `json_schema`: one of the step's `output_artifacts`, in place of a `path`."""
    schema_: Annotated[dict[str, object], AfterValidator(_schema)] | None = Field(default=None, alias="schema")
    """For `json_schema`: the schema itself; it may refer only to what is in it."""
    schema_file: str | None = None
    """For `json_schema`: a file with the schema, beside the pipeline's own."""
    command: Words | None = None
    """For `test_suite` and `command`: what has to exit with 0 on the work; a text is the shell's."""
    timeout: Duration | None = None
    """For commands and reviews: how long it may take; never longer than the step's own limit of time."""
    glob: Annotated[str, AfterValidator(_pattern)] | None = None
    """For `source_diff`: which files count; `*` stays in a folder, `**` goes through all below."""
    paths: Patterns | None = None
    """For `source_diff`: several such patterns."""
    exclude: Patterns | None = None
    """For `source_diff`: which files do not count, such as tests and docs."""
    min_files: Annotated[int, Field(ge=1, le=MOST_FILES)] = 1
    """For `source_diff`: how many files have to be changed."""
    patterns: Patterns | None = None
    """For `no_test_deletions`: which files are tests, where the usual names do not say it."""
    persona: str | None = None
    """For `agent_review`: who reviews."""
    agent: str | None = None
    """For `agent_review`: who reviews, where that is no persona."""
    criteria: Annotated[str, Field(min_length=1)] | None = None
    """For `agent_review`: what good work is."""

    def given(self, schemas: Mapping[str, str]) -> Contract:
        """Give it as a value; *schemas* are those of the files that the document names, by those names."""
        kind, only_warns = self.type, self.on_failure == "warn" or not self.must_pass
        match kind:
            case "json_schema":
                schema = schemas[self.schema_file] if self.schema_file else canonical(self.schema_ or {})
                return JsonSchema(
                    type=kind, only_warns=only_warns, schema=schema, path=self.path, artifact=self.artifact
                )
            case "test_suite" | "command":
                return Passes(type=kind, only_warns=only_warns, command=self.command or "", timeout=self.timeout)
            case "non_empty_file":
                return NonEmptyFile(type=kind, only_warns=only_warns, path=self.path or "")
            case "source_diff":
                return self._source_diff(only_warns)
            case "no_test_deletions":
                return NoTestDeletions(type=kind, only_warns=only_warns, patterns=tuple(self.patterns or ()))
            case _:
                return self._review(only_warns)

    def _source_diff(self, only_warns: bool) -> SourceDiff:
        paths = (*((self.glob,) if self.glob else ()), *(self.paths or ())) or ("**",)
        exclude = tuple(self.exclude or ())
        return SourceDiff(type=self.type, only_warns=only_warns, paths=paths, exclude=exclude, min_files=self.min_files)

    def _review(self, only_warns: bool) -> AgentReview:
        return AgentReview(
            type=self.type,
            only_warns=only_warns,
            criteria=self.criteria or "",
            persona=self.persona,
            agent=self.agent,
            timeout=self.timeout,
        )


class Contracted(Shape):
    """What has contracts: a step."""

    contract: ContractShape | None = None
    """What its work must meet before it counts as good."""
    contracts: Annotated[list[ContractShape], Field(min_length=1)] | None = None
    """All that its work must meet before it counts as good, checked in this order."""

    def promised(self, schemas: Mapping[str, str]) -> tuple[Contract, ...]:
        """Give the contracts as values, however they were written."""
        shapes: Sequence[ContractShape] = [self.contract] if self.contract else self.contracts or ()
        return tuple(shape.given(schemas) for shape in shapes)
