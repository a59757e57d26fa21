"""What a document's values mean together: names, references, exclusions.

The checks read the tree and pass over what has the wrong shape, so that all problems come out at once.
"""

from collections.abc import Iterable, Iterator

from shoal.pipeline.names import is_name, slug
from shoal.pipeline.problems import Position, Problem, key, nearest, shown
from shoal.pipeline.tree import Fields, Items, Node, Scalar, entries, find, items, key_position, text


def meaning_problems(tree: Node, name: str) -> Iterator[Problem]:
    """Find all that is wrong with the meaning of *tree*."""
    check = _Check(tree, name)
    yield from check.top()
    yield from check.agents()
    yield from check.personas()
    yield from check.pipelines()


class _Check:
    """One look over one document."""

    def __init__(self, tree: Node, name: str) -> None:
        self.tree = tree
        self.name = name

    def top(self) -> Iterator[Problem]:
        yield from self._exclusive(self.tree, "steps", "pipelines")
        yield from self._not_empty(self.tree, "steps")
        yield from self._not_empty(self.tree, "pipelines")

    def agents(self) -> Iterator[Problem]:
        for label, entry in entries(find(self.tree, "agents")).items():
            yield from self._rule("agent", label, entry.at)
            yield from self._agent(entry.value)

    def personas(self) -> Iterator[Problem]:
        for label, entry in entries(find(self.tree, "personas")).items():
            yield from self._rule("persona", label, entry.at)
            yield from self._known(entry.value, "agent", "agents")
            yield from self._exclusive(entry.value, "system_prompt", "system_prompt_file")

    def pipelines(self) -> Iterator[Problem]:
        yield from self._steps(find(self.tree, "steps"))
        found = list(items(find(self.tree, "pipelines")))
        yield from self._names("pipeline", [find(one, "name") for one in found])
        for one in found:
            yield from self._not_empty(one, "steps")
            yield from self._steps(find(one, "steps"))

    def _agent(self, agent: Node) -> Iterator[Problem]:
        adapter = text(find(agent, "adapter"))
        if adapter == "command":
            yield from self._needed(agent, ("command",), "say what to run")
            yield from self._foreign(agent, ("script", "script_file"), "scripted")
        if adapter == "scripted":
            yield from self._needed(agent, ("script", "script_file"), "list its actions")
            yield from self._exclusive(agent, "script", "script_file")
            yield from self._foreign(agent, ("command",), "command")

    def _steps(self, steps: Node | None) -> Iterator[Problem]:
        found = [one for one in items(steps) if isinstance(one, Fields)]
        yield from self._names("step", [given(one, "name") or given(one, "id") for one in found])
        for one in found:
            yield from self._step(one)

    def _step(self, step: Node) -> Iterator[Problem]:
        yield from self._needed(step, ("name", "id"), "name the step")
        yield from self._exclusive(step, "name", "id")
        yield from self._needed(step, ("prompt", "exec"), "say what the agent is to do")
        yield from self._exclusive(step, "prompt", "exec")
        yield from self._not_blank(find(step, "prompt"))
        yield from self._not_blank(find(step, "exec", "source"))
        yield from self._needed(step, ("persona", "agent"), "name one of yours")
        yield from self._known(step, "agent", "agents")
        yield from self._known(step, "persona", "personas")
        yield from self._has_agent(step)
        yield from self._matrix(step)

    def _has_agent(self, step: Node) -> Iterator[Problem]:
        label = text(find(step, "persona"))
        persona = None if label is None else find(self.tree, "personas", label)
        if label is not None and persona is not None and not given(step, "agent") and not given(persona, "agent"):
            what = f"neither the step nor its persona {key(label)} names an agent; add `agent`"
            yield self._at(key_position(step, ["persona"]), what)

    def _matrix(self, step: Node) -> Iterator[Problem]:
        strategy = find(step, "strategy")
        if strategy is not None and find(strategy, "matrix") and find(step, "concurrency"):
            matrix = key_position(strategy, ["matrix"])
            what = f"`concurrency` and `strategy.matrix` (line {matrix.line}, column {matrix.column})"
            yield self._at(key_position(step, ["concurrency"]), f"{what} exclude each other; keep one of them")

    def _needed(self, node: Node, keys: tuple[str, ...], remedy: str) -> Iterator[Problem]:
        if isinstance(node, Fields) and not any(given(node, one) for one in keys):
            yield self._at(node.at, f"{' or '.join(f'`{one}`' for one in keys)} is missing; {remedy}")

    def _exclusive(self, node: Node, first: str, second: str) -> Iterator[Problem]:
        if given(node, first) and given(node, second):
            later = max(key_position(node, [first]), key_position(node, [second]))
            yield self._at(later, f"both `{first}` and `{second}` are given; keep one of them")

    def _foreign(self, agent: Node, keys: Iterable[str], adapter: str) -> Iterator[Problem]:
        for one in keys:
            if given(agent, one):
                yield self._at(key_position(agent, [one]), f"`{one}` goes with `adapter: {adapter}` only; remove it")

    def _not_empty(self, node: Node, name: str) -> Iterator[Problem]:
        found = find(node, name)
        if isinstance(found, Items) and not found.items:
            yield self._at(found.at, f"`{name}` is empty; write at least one")

    def _not_blank(self, written: Node | None) -> Iterator[Problem]:
        words = text(written)
        if written is not None and words is not None and not words.strip():
            yield self._at(written.at, "the prompt is empty; say what the agent is to do")

    def _known(self, node: Node, name: str, where: str) -> Iterator[Problem]:
        label = find(node, name)
        wanted = text(label)
        known = entries(find(self.tree, where))
        if label is not None and wanted is not None and wanted not in known:
            yield self._at(label.at, f"no {name} named {shown(wanted)}; {nearest(wanted, known)}")

    def _names(self, kind: str, labels: Iterable[Node | None]) -> Iterator[Problem]:
        seen: dict[str, Position] = {}
        for label in labels:
            written = text(label)
            if label is None or written is None:
                continue
            yield from self._rule(kind, written, label.at)
            if first := seen.get(written.casefold()):
                what = f"a second {kind} named {shown(written)}, the first is in line {first.line}; rename one"
                yield self._at(label.at, what)
            seen.setdefault(written.casefold(), label.at)

    def _rule(self, kind: str, label: str, at: Position) -> Iterator[Problem]:
        if not is_name(label):
            rule = "small letters, digits and dashes, at most 48"
            yield self._at(
                at, f"{shown(label)} is not a valid {kind} name ({rule}); use `{slug(label, otherwise=kind)}`"
            )

    def _at(self, at: Position, what: str) -> Problem:
        return Problem(self.name, at, what)


def given(node: Node | None, name: str) -> Node | None:
    """Return the value under *name*, unless it is not there or is null."""
    found = find(node, name)
    return None if isinstance(found, Scalar) and found.value is None else found
