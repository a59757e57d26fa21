"""Find the inputs that a pipeline's texts use but nobody gave."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shoal.pipeline.load import Document
from shoal.pipeline.problems import Position, Problem, key
from shoal.pipeline.templates.texts import persona_texts, texts
from shoal.pipeline.tree import Fields, Node, entries, find, items, text, title, value_of

Input = Mapping[str, str] | str | None


@dataclass(frozen=True, slots=True)
class UsedNames:
    """What a pipeline sees as its input: named parts, one text, or nothing; *by* is the step that passes it."""

    parts: frozenset[str] | None = None
    is_text: bool = False
    by: str | None = None

    def why_not(self, path: str) -> str | None:
        """Return why *path* is not available, or `None`."""
        root, _, rest = path.partition(".")
        if root != "input" or (self.is_text and not rest):
            return None
        part = rest.split(".")[0]
        if self.is_text:
            return f"the text uses `{path}`, and the input is one text; {self._remedy(part)}"
        if self.parts is None:
            return "the text uses `input`, and there is none; give it with `--input`"
        if rest and part not in self.parts:
            return f"the text uses `{path}`, which was not given; {self._remedy(part)}"
        return None

    def _remedy(self, part: str) -> str:
        return f"give `--input {part}=…`" if self.by is None else f"add it to the `input` of step {key(self.by)}"


def find_missing_inputs(document: Document, path: tuple[str | int, ...], handed: Input) -> Iterator[Problem]:
    """Find missing inputs of the steps at *path*, and of pipelines nested in them."""
    steps = find(document.tree, *path)
    waiting = [] if steps is None else [(steps, _find_uses(handed))]
    looked: set[tuple[Position, UsedNames]] = set()
    while waiting:
        steps, seen = waiting.pop()
        if (steps.at, seen) in looked:  # one pipeline may be inside of many
            continue
        looked.add((steps.at, seen))
        for step in (node for node in items(steps) if isinstance(node, Fields)):
            for template in (*texts(step), *persona_texts(step, document.tree, document.system_prompts)):
                unmet = ((use.at, seen.why_not(use.path)) for use in template.uses() if not use.is_optional)
                yield from (Problem(document.name, template.place(at), why) for at, why in unmet if why)
            waiting += _inside(document, step, seen)


def _find_uses(handed: Input) -> UsedNames:
    return UsedNames(parts=frozenset(handed) if isinstance(handed, Mapping) else None, is_text=isinstance(handed, str))


def _inside(document: Document, step: Fields, seen: UsedNames) -> Iterator[tuple[Node, UsedNames]]:
    """Yield the steps of a step's pipeline, and the input that they see."""
    wanted = text(find(step, "pipeline"))
    for pipeline in items(find(document.tree, "pipelines")) if wanted else ():
        if text(find(pipeline, "name")) == wanted and (steps := find(pipeline, "steps")) is not None:
            yield steps, _follow_handoff(step, seen)


def _follow_handoff(step: Fields, seen: UsedNames) -> UsedNames:
    node = value_of(step, "input")
    if node is None:
        return seen
    is_text = not isinstance(node, Fields)
    return UsedNames(parts=None if is_text else frozenset(entries(node)), is_text=is_text, by=title(step))
