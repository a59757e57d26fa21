"""What the contracts of a document mean: which keys go with which type, who reviews, and schemas in files beside it."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping

from shoal.errors import BadInput
from shoal.pipeline.artifacts import declared
from shoal.pipeline.contracts import OWN_KEYS
from shoal.pipeline.json_schema import MOST_SCHEMA_BYTES, canonical
from shoal.pipeline.problems import BadDocument, Position, Problem, key, nearest, shown
from shoal.pipeline.tree import Fields, Items, Node, Scalar, entries, find, items, key_position, text

Read = Callable[[str, int], bytes]
"""Read a file beside the document, of at most so many bytes; raises `BadInput` with the reason."""

NEEDED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "json_schema": (("path", "artifact"), ("schema", "schema_file")),
    "test_suite": (("command",),),
    "command": (("command",),),
    "non_empty_file": (("path",),),
    "agent_review": (("persona", "agent"), ("criteria",)),
}
"""Of each of these groups of keys, one has to be there, and no two."""


def contract_problems(tree: Node, step: Node, name: str) -> Iterator[Problem]:
    """Find what is wrong with the meaning of the contracts of *step* in the document *tree*."""
    check = _Check(tree, step, name)
    if find(step, "contract") is not None and find(step, "contracts") is not None:
        later = max(key_position(step, ["contract"]), key_position(step, ["contracts"]))
        yield check.at(later, "both `contract` and `contracts` are given; keep one of them")
    for node in contract_nodes(step):
        yield from check.contract(node)


def contract_nodes(step: Node) -> Iterator[Fields]:
    """Go through the contracts of *step*, as far as they are mappings."""
    one, several = find(step, "contract"), find(step, "contracts")
    written = (*((one,) if one is not None else ()), *(several.items if isinstance(several, Items) else ()))
    yield from (node for node in written if isinstance(node, Fields))


class _Check:
    """One look over the contracts of one step."""

    def __init__(self, tree: Node, step: Node, name: str) -> None:
        self.tree = tree
        self.step = step
        self.name = name

    def contract(self, node: Fields) -> Iterator[Problem]:
        kind = text(find(node, "type"))
        if kind is None or kind not in OWN_KEYS:  # the shape says so
            return
        yield from self._foreign(node, kind)
        for group in NEEDED.get(kind, ()):
            yield from self._one_of(node, group, kind)
        yield from self._contradiction(node)
        if kind == "agent_review":
            yield from self._reviewer(node)
            yield from self._criteria(node)
        if kind == "json_schema":
            yield from self._artifact(node)

    def _foreign(self, node: Fields, kind: str) -> Iterator[Problem]:
        for label, entry in node.entries.items():
            owners = [f"`{owner}`" for owner, keys in OWN_KEYS.items() if label in keys]
            if owners and label not in OWN_KEYS[kind]:
                what = f"{key(label)} goes with a contract of type {' or '.join(owners)}, not with `{kind}`; remove it"
                yield self.at(entry.at, what)

    def _one_of(self, node: Fields, group: tuple[str, ...], kind: str) -> Iterator[Problem]:
        there = [label for label in group if _given(node, label)]
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
                yield self.at(named.at, f"no {label} named {shown(wanted)}; {nearest(wanted, known)}")
            elif label == "persona" and not _given(known[wanted].value, "agent"):
                yield self.at(named.at, f"the persona {key(wanted)} names no agent, and a reviewer needs one")

    def _criteria(self, node: Fields) -> Iterator[Problem]:
        criteria = find(node, "criteria")
        if criteria is not None and (words := text(criteria)) is not None and words and not words.strip():
            yield self.at(criteria.at, "`criteria` is empty; say what good work is")

    def _artifact(self, node: Fields) -> Iterator[Problem]:
        artifact = find(node, "artifact")
        wanted, known = text(artifact), declared(self.step)
        if artifact is not None and wanted is not None and wanted not in known:
            what = f"this step leaves no artifact named {shown(wanted)}; {nearest(wanted, known)}"
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
            self.found[file] = _loaded(self.read(file, MOST_SCHEMA_BYTES), file)
        except BadDocument as error:
            self.problems += error.problems
        except BadInput as error:
            self.problems.append(Problem(self.name, node.at, f"`schema_file`: {error}"))


def _loaded(content: bytes, file: str) -> str:
    try:
        schema = json.loads(content.decode().removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        where = Position(error.lineno, error.colno)
        raise BadDocument([Problem(file, where, f"this is no JSON ({error.msg})")]) from None
    except (ValueError, RecursionError):
        raise BadInput(f"{file!r} is no JSON that can be read; check it") from None
    if not isinstance(schema, dict | bool):
        raise BadInput(f"{file!r} holds no JSON Schema, which is a mapping; check it")
    return canonical(schema)


def _all_steps(tree: Node) -> Iterator[Node]:
    yield from items(find(tree, "steps"))
    for pipeline in items(find(tree, "pipelines")):
        yield from items(find(pipeline, "steps"))


def _given(node: Node, label: str) -> bool:
    found = find(node, label)
    return found is not None and not (isinstance(found, Scalar) and found.value is None)
