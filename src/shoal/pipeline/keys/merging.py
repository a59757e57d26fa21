"""The keys `runtime.merge` and `runtime.auto_merge`, and their contradictions."""

import re
from collections.abc import Container, Iterator
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, PlainValidator, WithJsonSchema

from shoal.model.agent import CLIENTS
from shoal.model.conflict_rule import ConflictRule, Merging, verification
from shoal.model.merge import Strategy
from shoal.pipeline.editor_schema.values import COMMAND
from shoal.pipeline.fields import Duration, Shape, one_of, words_for_booleans, wrong
from shoal.pipeline.problems import Problem, nearest, printable, show_value
from shoal.pipeline.tree import Fields, Node, Scalar, entries, find, key_position, text, value_of

STRATEGIES = tuple(strategy.value for strategy in Strategy)
RULES = tuple(rule.value for rule in ConflictRule)
RULES_BETWEEN_STEPS = ("report", "ours", "theirs")
LONGEST_BRANCH = 200
# What git does not take for the name of a branch, and what would be read as an option.
NO_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/]|/$|(^|/)\.|\.(lock)?(/|$)|^@$|^HEAD$")
OURS = re.compile(r"^(refs/heads/)?(agent|shoal)(/|$)")


def _branch(name: str) -> str:
    if OURS.search(name):
        raise wrong(f"{show_value(name)} is where Shoal keeps its own branches; name one of yours, like `main`")
    if not name or NO_BRANCH.search(name) or name.startswith("refs/") or len(name) > LONGEST_BRANCH:
        raise wrong(f"{show_value(name)} is not a valid branch name; write one like `main`")
    return name


def _command(value: object) -> str | tuple[str, ...]:
    match words_for_booleans(value):
        case str(command) if command.strip() and "\0" not in command:
            return command
        case [str(program), *words] if program.strip() and all(isinstance(word, str) for word in words):
            return (program, *map(str, words))
        case _:
            example = '"pytest -q" or ["pytest", "-q"]'
            raise wrong(
                f"`verify` must be a text for the shell or a list of words, like {example}, not {show_value(value)}"
            )


def _without_agent(rule: str) -> str:
    if rule in RULES and rule not in RULES_BETWEEN_STEPS:
        way = "use `ours` or `theirs`, or let one of the needs need the other, so that its agent sees that work"
        raise wrong(f"`on_conflict: {rule}` needs an agent, and none works between steps; {way}")
    return rule


BetweenSteps = Annotated[str, AfterValidator(_without_agent), one_of("on_conflict", *RULES_BETWEEN_STEPS)]
"""The rules that a step may have for the work of its needs."""


def _expand_text(value: object) -> object:
    """Take a text alone for the strategy."""
    if isinstance(value, str):
        if value not in STRATEGIES:
            raise wrong(f"`merge` cannot be {show_value(value)}; {nearest(value, STRATEGIES)}")
        return {"strategy": value}
    if not isinstance(value, dict | MergingShape):
        raise wrong(f"`merge` must be a strategy or a mapping, like `{{strategy: auto}}`, not {show_value(value)}")
    return value


class MergingShape(Shape):
    """How to merge the work when the run ends."""

    strategy: Annotated[str, one_of("strategy", *STRATEGIES)] | None = None
    """`review` waits for a person; `auto` makes merge commits, `squash` and `rebase` plain ones, `octopus` one."""
    into: Annotated[str, AfterValidator(_branch)] | None = None
    """Your branch to deliver the work into; by default it stays on `shoal/<run>`."""
    verify: Annotated[str | tuple[str, ...], PlainValidator(_command), WithJsonSchema(COMMAND)] | None = None
    """A shell command or argument list that must exit with 0 on the combined work, in the sandbox without a network."""
    verify_timeout: Duration | None = None
    """Time limit of each `verify`."""
    on_conflict: Annotated[str, one_of("on_conflict", *RULES)] = "report"
    """What to do with conflicting work, after the rest is merged: `report` it; let the `resolver` write what both mean
    (`agent`); `redo` the task on the merged work; keep the lines merged before (`ours`) or later (`theirs`)."""
    resolver: str | None = None
    """With `on_conflict: agent`: the resolver, one of `personas` or `agents`, or the name of a client."""
    allow_executable_config: bool = False
    """Merge changes to files that can run code on your machine (hooks, editor tasks, CI) without asking you."""
    allow_secrets: bool = False
    """Merge work that contains your secrets without asking you."""

    def to_merging(self, personas: Container[str]) -> Merging:
        """Build the value; *personas* are those of the document."""
        is_persona = self.resolver in personas
        return Merging(
            strategy=Strategy(self.strategy or Strategy.REVIEW),
            into=self.into,
            verify=None if self.verify is None else verification(self.verify, self.verify_timeout),
            on_conflict=ConflictRule(self.on_conflict),
            resolver_persona=self.resolver if is_persona else None,
            resolver_agent=None if is_persona else self.resolver,
            allow_executable_config=self.allow_executable_config,
            allow_secrets=self.allow_secrets,
        )


_Short = Annotated[str, one_of("merge", *STRATEGIES)]
MergingField = Annotated[MergingShape, BeforeValidator(_expand_text, json_schema_input_type=_Short | MergingShape)]


def merging(shape: MergingShape | None, personas: Container[str], *, auto_merge: bool) -> Merging | None:
    """Return how work is merged; `None` if no key says so and the user merges."""
    if shape is None:
        return Merging(strategy=Strategy.AUTO) if auto_merge else None
    if auto_merge and shape.strategy is None:
        shape = shape.model_copy(update={"strategy": Strategy.AUTO.value})
    return shape.to_merging(personas)


def merging_places(tree: Node, name: str) -> dict[str, str]:
    """Return where the keys of `merge` have their values, for what only turns out to be wrong in a repository."""
    merge = value_of(find(tree, "runtime"), "merge")
    if not isinstance(merge, Fields):
        return {}
    return {
        key: f"{printable(name)}:{value.at.line}:{value.at.column}"
        for key in ("into", "verify")
        if (value := value_of(merge, key)) is not None
    }


def merging_problems(tree: Node, name: str) -> Iterator[Problem]:
    """Find contradictions about merging in the document *name*."""
    runtime = find(tree, "runtime")
    merge = value_of(runtime, "merge")
    if runtime is None or merge is None:
        return
    yield from _contradiction(runtime, merge, name)
    if isinstance(merge, Fields):
        yield from _alone(merge, name)
        yield from _resolver(tree, merge, name)


def _contradiction(runtime: Node, merge: Node, name: str) -> Iterator[Problem]:
    """Refuse an `auto_merge` that contradicts the strategy."""
    short = value_of(runtime, "auto_merge")
    strategy = text(merge) if isinstance(merge, Scalar) else text(value_of(merge, "strategy"))
    if not isinstance(short, Scalar) or strategy not in STRATEGIES:
        return
    if (short.value is True and strategy == Strategy.REVIEW) or (short.value is False and strategy != Strategy.REVIEW):
        written = "true" if short.value else "false"
        what = f"`auto_merge: {written}` and `merge.strategy: {strategy}` contradict each other; keep one of them"
        yield Problem(name, key_position(runtime, ["auto_merge"]), what)


def _alone(merge: Fields, name: str) -> Iterator[Problem]:
    if value_of(merge, "verify_timeout") and not value_of(merge, "verify"):
        what = "`verify_timeout` says how long `verify` may take; add that, or remove it"
        yield Problem(name, key_position(merge, ["verify_timeout"]), what)


def _resolver(tree: Node, merge: Fields, name: str) -> Iterator[Problem]:
    resolver, rule = value_of(merge, "resolver"), value_of(merge, "on_conflict")
    is_agent = text(rule) == ConflictRule.AGENT
    if rule is not None and is_agent and resolver is None:
        yield Problem(name, rule.at, "`resolver` is missing; say which persona or agent resolves conflicts")
    if resolver is None or (wanted := text(resolver)) is None:
        return
    if not is_agent:
        what = "`resolver` goes with `on_conflict: agent` only; remove it or add that"
        yield Problem(name, key_position(merge, ["resolver"]), what)
    personas, agents = entries(find(tree, "personas")), (*entries(find(tree, "agents")), *CLIENTS)
    if wanted not in personas and wanted not in agents:
        known = nearest(wanted, [*personas, *agents])
        yield Problem(name, resolver.at, f"no persona or agent named {show_value(wanted)}; {known}")
    elif wanted in personas and not value_of(personas[wanted].value, "agent"):
        yield Problem(name, resolver.at, f"the persona `{wanted}` names no agent, and a resolver needs one")
