"""The shape of `contract:` and `contracts:`, and the values that come of it."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import InitErrorDetails

from shoal.errors import BadInput
from shoal.model.artifact import refusal
from shoal.model.contract import Contract
from shoal.pipeline.editor_schema.values import COMMAND
from shoal.pipeline.fields import Duration, Shape, one_of, words_for_booleans, wrong
from shoal.pipeline.json_schema import MOST_SCHEMA_BYTES, BadSchema, canonical
from shoal.pipeline.keys.artifacts import list_declared
from shoal.pipeline.keys.contract_types import KINDS, load_type, own_shapes
from shoal.pipeline.problems import BadDocument, Position, Problem, key, nearest, show_value
from shoal.pipeline.tree import Fields, Items, Node, Scalar, entries, find, items, key_position, text

LONGEST_PATTERN = 500
MOST_FILES = 1_000_000


def _inside(path: str) -> str:
    if why := refusal(path):
        raise wrong(f"{show_value(path)}: {why}")
    return path


def _pattern(pattern: str) -> str:
    if not pattern.strip("/") or pattern.startswith("/") or ".." in pattern.split("/"):
        raise wrong(f"{show_value(pattern)} is not a pattern for paths in the repository; write one like `src/**/*.py`")
    if len(pattern) > LONGEST_PATTERN:
        raise wrong(f"a pattern may have at most {LONGEST_PATTERN} characters, not {len(pattern)}")
    return pattern


def _schema(schema: dict[str, object]) -> dict[str, object]:
    try:
        canonical(schema)
    except BadSchema as error:
        line = InitErrorDetails(type=wrong(str(error)), loc=error.path, input=schema)
        raise ValidationError.from_exception_data("schema", [line]) from None
    return schema


def _parse_command(value: object) -> str | tuple[str, ...]:
    match words_for_booleans(value):
        case str(command) if command.strip():
            return command
        case [str(program), *words] if program.strip() and all(isinstance(word, str) for word in words):
            return (program, *map(str, words))
        case _:
            example = '"pytest -q" or ["pytest", "-q"]'
            raise wrong(f"`command` must be a text for the shell or a list of words, like {example}")


Inside = Annotated[str, AfterValidator(_inside)]
Patterns = Annotated[list[Annotated[str, AfterValidator(_pattern)]], Field(min_length=1)]
Words = Annotated[
    str | tuple[str, ...],
    PlainValidator(_parse_command),
    WithJsonSchema(COMMAND),
]


class ContractKeys(Shape):
    """The keys of contracts, of whatever type."""

    refused: ClassVar[dict[str, str]] = {
        "schema_path": "`schema_path` is `schema_file` here",
        "source": "`source` is `path` here, or `artifact` for one of the step's own",
        "dir": "`dir` is not there: a command is run at the top of the work; write `cd DIR && …`",
    }

    type: Annotated[str, one_of("type", *KINDS)]
    """The type of check."""
    must_pass: bool = True
    """Work that does not satisfy it fails; `false` is the same as `on_failure: warn`."""
    on_failure: Annotated[str, one_of("on_failure", "fail", "warn")] = "fail"
    """`fail`, or `warn`: only report it, and accept the work."""
    path: Inside | None = None
    """For `json_schema` and `non_empty_file`: the file, from the top of the repository."""
    artifact: str | None = None
    """For `json_schema`: one of the step's `output_artifacts`, instead of a `path`."""
    schema_: Annotated[dict[str, object], AfterValidator(_schema)] | None = Field(default=None, alias="schema")
    """For `json_schema`: the schema; it may refer only to itself."""
    schema_file: str | None = None
    """For `json_schema`: a file with the schema, relative to the pipeline file."""
    command: Words | None = None
    """For `test_suite` and `command`: a shell command or argument list that must exit with 0 on the work."""
    timeout: Duration | None = None
    """For commands and reviews: the time limit, at most the step's own."""
    glob: Annotated[str, AfterValidator(_pattern)] | None = None
    """For `source_diff`: which files count; `*` matches within a folder, `**` across folders."""
    paths: Patterns | None = None
    """For `source_diff`: several such patterns."""
    exclude: Patterns | None = None
    """For `source_diff`: which files do not count, such as tests and docs."""
    min_files: Annotated[int, Field(ge=1, le=MOST_FILES)] = 1
    """For `source_diff`: how many files must change."""
    patterns: Patterns | None = None
    """For `no_test_deletions`: which files are tests, besides the usual names."""
    persona: str | None = None
    """For `agent_review`: the reviewing persona."""
    agent: str | None = None
    """For `agent_review`: the reviewing agent, instead of a persona."""
    criteria: Annotated[str, Field(min_length=1)] | None = None
    """For `agent_review`: what the work must meet."""

    @property
    def only_warns(self) -> bool:
        """Return whether work that does not meet it counts all the same."""
        return self.on_failure == "warn" or not self.must_pass


if TYPE_CHECKING:
    ContractShape = ContractKeys
else:

    class ContractShape(ContractKeys, *own_shapes()):
        """What the work of a step must satisfy to succeed."""


class Contracted(Shape):
    """What has contracts: a step."""

    contract: ContractShape | None = None
    """What its work must satisfy to succeed."""
    contracts: Annotated[list[ContractShape], Field(min_length=1)] | None = None
    """What its work must satisfy to succeed, checked in this order."""

    def to_contracts(self, schemas: Mapping[str, str]) -> tuple[Contract, ...]:
        """Build the contracts from any spelling."""
        shapes: Sequence[ContractShape] = [self.contract] if self.contract else self.contracts or ()
        return tuple(load_type(shape.type).build(shape, schemas) for shape in shapes)


Read = Callable[[str, int], bytes]
"""Read a file beside the document, of at most so many bytes; raises `BadInput` with the reason."""


def contract_problems(tree: Node, step: Node, name: str) -> Iterator[Problem]:
    """Find what is wrong with the meaning of the contracts of *step* in the document *tree*."""
    check = _ContractCheck(tree, step, name)
    if find(step, "contract") is not None and find(step, "contracts") is not None:
        later = max(key_position(step, ["contract"]), key_position(step, ["contracts"]))
        yield check.at(later, "both `contract` and `contracts` are given; keep one of them")
    for node in contract_nodes(step):
        yield from check.contract(node)


def contract_nodes(step: Node) -> Iterator[Fields]:
    """Go through the contracts of *step*, as far as they are mappings."""
    single, several = find(step, "contract"), find(step, "contracts")
    written = (*((single,) if single is not None else ()), *(several.items if isinstance(several, Items) else ()))
    yield from (node for node in written if isinstance(node, Fields))


class _ContractCheck:
    """One look over the contracts of one step."""

    def __init__(self, tree: Node, step: Node, name: str) -> None:
        self.tree = tree
        self.step = step
        self.name = name

    def contract(self, node: Fields) -> Iterator[Problem]:
        kind = text(find(node, "type"))
        if kind is None or kind not in KINDS:  # the shape says so
            return
        own = load_type(kind)
        yield from self._foreign(node, kind)
        for group in own.NEEDED:
            yield from self._one_of(node, group, kind)
        yield from self._contradiction(node)
        if "agent" in own.KEYS:
            yield from self._reviewer(node)
        if "criteria" in own.KEYS:
            yield from self._criteria(node)
        if "artifact" in own.KEYS:
            yield from self._artifact(node)

    def _foreign(self, node: Fields, kind: str) -> Iterator[Problem]:
        for label, entry in node.entries.items():
            owners = [f"`{owner}`" for owner in KINDS if label in load_type(owner).KEYS]
            if owners and label not in load_type(kind).KEYS:
                what = f"{key(label)} goes with a contract of type {' or '.join(owners)}, not with `{kind}`; remove it"
                yield self.at(entry.at, what)

    def _one_of(self, node: Fields, group: tuple[str, ...], kind: str) -> Iterator[Problem]:
        there = [label for label in group if _has_value(node, label)]
        if not there:
            what = " or ".join(f"`{label}`" for label in group)
            yield self.at(node.at, f"{what} is missing; a contract of type `{kind}` needs it")
        for first, second in itertools.pairwise(there):
            later = max(key_position(node, [first]), key_position(node, [second]))
            yield self.at(later, f"both `{first}` and `{second}` are given; keep one of them")

    def _contradiction(self, node: Fields) -> Iterator[Problem]:
        must, rule = find(node, "must_pass"), text(find(node, "on_failure"))
        expected = {"warn": True, "fail": False}.get(rule or "")
        if isinstance(must, Scalar) and expected is not None and must.value is expected:
            what = f"`must_pass: {str(must.value).lower()}` and `on_failure: {rule}` contradict each other; keep one"
            yield self.at(key_position(node, ["must_pass"]), what)

    def _reviewer(self, node: Fields) -> Iterator[Problem]:
        for label, section in (("persona", "personas"), ("agent", "agents")):
            named = find(node, label)
            wanted, known = text(named), entries(find(self.tree, section))
            if named is None or wanted is None:
                continue
            if wanted not in known:
                yield self.at(named.at, f"no {label} named {show_value(wanted)}; {nearest(wanted, known)}")
            elif label == "persona" and not _has_value(known[wanted].value, "agent"):
                yield self.at(named.at, f"the persona {key(wanted)} names no agent, and a reviewer needs one")

    def _criteria(self, node: Fields) -> Iterator[Problem]:
        criteria = find(node, "criteria")
        if criteria is not None and (words := text(criteria)) is not None and words and not words.strip():
            yield self.at(criteria.at, "`criteria` is empty; say what good work is")

    def _artifact(self, node: Fields) -> Iterator[Problem]:
        artifact = find(node, "artifact")
        wanted, known = text(artifact), list_declared(self.step)
        if artifact is not None and wanted is not None and wanted not in known:
            what = f"this step leaves no artifact named {show_value(wanted)}; {nearest(wanted, known)}"
            yield self.at(artifact.at, what)

    def at(self, at: Position, what: str) -> Problem:
        return Problem(self.name, at, what)


class Schemas:
    """The schemas in files beside one document, by the names that it uses, and what is wrong with them."""

    def __init__(self, tree: Node, name: str, read: Read) -> None:
        self.name = name
        self.read = read
        self.problems: list[Problem] = []
        self.found: dict[str, str] = {}
        for step in _all_steps(tree):
            for node in contract_nodes(step):
                self._look(find(node, "schema_file"))

    def _look(self, node: Node | None) -> None:
        file = text(node)
        if node is None or file is None or file in self.found:
            return
        try:
            self.found[file] = _load_schema(self.read(file, MOST_SCHEMA_BYTES), file)
        except BadDocument as error:
            self.problems += error.problems
        except BadInput as error:
            self.problems.append(Problem(self.name, node.at, f"`schema_file`: {error}"))


def _load_schema(content: bytes, file: str) -> str:
    try:
        schema = json.loads(content.decode().removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        where = Position(error.lineno, error.colno)
        raise BadDocument([Problem(file, where, f"this is not JSON ({error.msg})")]) from None
    except (ValueError, RecursionError):
        raise BadInput(f"{file!r} is not valid JSON; check it") from None
    if not isinstance(schema, dict | bool):
        raise BadInput(f"{file!r} does not contain a JSON Schema, which must be a mapping; check it")
    return canonical(schema)


def _all_steps(tree: Node) -> Iterator[Node]:
    yield from items(find(tree, "steps"))
    for pipeline in items(find(tree, "pipelines")):
        yield from items(find(pipeline, "steps"))


def _has_value(node: Node, label: str) -> bool:
    found = find(node, label)
    return found is not None and not (isinstance(found, Scalar) and found.value is None)
