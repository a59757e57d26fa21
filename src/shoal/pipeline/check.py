"""Check what a document's values mean together: names, references, exclusions.

The checks read the tree and skip what has the wrong shape, so that all problems are reported at once.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from shoal.model.agent import ACP, CLIENTS, EVERY, SCRIPTED
from shoal.model.matrix import cycles
from shoal.pipeline.fields import Shape, nearest_key
from shoal.pipeline.graph_checks import base_problems, has_several_workers, on_conflict_problems
from shoal.pipeline.keys.artifacts import injection_problems
from shoal.pipeline.keys.contracts import contract_problems
from shoal.pipeline.keys.gates import gate_problems
from shoal.pipeline.keys.merging import merging_problems
from shoal.pipeline.keys.queues import QueueProblems
from shoal.pipeline.keys.select import select_problems
from shoal.pipeline.keys.strategy import matrix_problems
from shoal.pipeline.keys.vary import has_agent_for_each, list_vary_agents, vary_problems
from shoal.pipeline.names import is_name, slug
from shoal.pipeline.problems import Position, Problem, key, nearest, show_value
from shoal.pipeline.shape import AgentShape, StepShape
from shoal.pipeline.shell_check import shell_problems
from shoal.pipeline.templates.names import text_problems
from shoal.pipeline.templates.template import BadTemplate, uses
from shoal.pipeline.templates.texts import Text
from shoal.pipeline.tree import (
    NEEDS,
    Fields,
    Items,
    Node,
    Scalar,
    entries,
    find,
    items,
    key_position,
    list_needs,
    text,
    title,
    value_of,
)


def loop_problems(step: Fields, tree: Node, at: Callable[[Position, str], Problem]) -> Iterator[Problem]:
    """Find a loop with several workers that does not select the work for the next round."""
    if value_of(step, "loop") and has_several_workers(step, tree) and not value_of(step, "select"):
        what = "each round builds on the one before, and nobody says on which of its several workers"
        yield at(key_position(step, ["loop"]), f"`loop`: {what}; give it a `select`, or take `concurrency` out")


NAMES = frozenset({"input", "run", "step", "steps", "artifacts", "worker", "matrix", "item", "task", "loop", "this"})
VARIABLE = "hand it over by `env` of the step, and read the variable"
AGENT_HINT = f"an agent's command is the same for all steps; its prompt is on stdin, or {VARIABLE}"
SETUP_HINT = "set-up is made once for all agents of a base; use variables of `env`, or a step with `command`"
BASE_HINT = "`base` is looked up before any step has run; name the step in `needs`, and this one builds on its work"
VERIFY_HINT = "`verify` is the same for every run; use what is in the repository"


def find_untemplated(tree: Node, name: str) -> Iterator[Problem]:
    """Find placeholders in texts that are never filled in; other braces are left alone."""
    for entry in entries(find(tree, "agents")).values():
        yield from _problems(find(entry.value, "command"), name, AGENT_HINT)
        yield from _problems(find(entry.value, "args"), name, AGENT_HINT)
    yield from _problems(find(tree, "runtime", "merge", "verify"), name, VERIFY_HINT)
    for owner in _owners(tree):
        yield from _problems(find(owner, "setup"), name, SETUP_HINT)
        yield from _problems(find(owner, "base"), name, BASE_HINT)


def _owners(tree: Node) -> Iterator[Node | None]:
    yield find(tree, "runtime")
    for section in ("agents", "personas"):
        yield from (entry.value for entry in entries(find(tree, section)).values())
    yield from items(find(tree, "steps"))
    for pipeline in items(find(tree, "pipelines")):
        yield from items(find(pipeline, "steps"))


def _problems(node: Node | None, name: str, hint: str) -> Iterator[Problem]:
    match node:
        case Scalar(value=str()):
            yield from _in_text(Text.of(node), name, hint)
        case Items():
            for item in node.items:
                yield from _problems(item, name, hint)
        case Fields():
            yield from _problems(find(node, "run"), name, hint)
        case _:
            return


def _in_text(written: Text, name: str, hint: str) -> Iterator[Problem]:
    if "{{" not in written.text:
        return
    try:
        found = uses(written.text)
    except BadTemplate:  # braces of another language
        return
    for use in found:
        if use.path.split(".")[0] in NAMES:
            yield Problem(name, written.place(use.at), f"{key(use.path)} is not filled in here: {hint}")


def meaning_problems(tree: Node, name: str, files: Mapping[str, str]) -> Iterator[Problem]:
    """Find everything wrong with the meaning of *tree*; *files* are the system prompts in files, by persona."""
    check = _DocumentCheck(tree, name, files)
    yield from check.top()
    yield from check.agents()
    yield from check.personas()
    yield from check.pipelines()


KINDS = ("prompt", "exec", "command", "gate", "pipeline")
AGENT_KEYS = (
    "agent", "persona", "concurrency", "max_concurrent_agents", "retry", "on_failure", "expect", "contract",
    "contracts", "output_artifacts", "inject_artifacts", "select", "vary", "strategy", "sandbox",
    "isolation_strategy", "limits", "network", "env", "timeout", "permissions", "allow_executable_config",
    "budget", "from_queue",
)  # fmt: skip
WHOSE = {
    "command": "`adapter: command`, and with clients,",
    "args": "clients",
    "refresh_login": "clients",
    "script": "`adapter: scripted`",
    "script_file": "`adapter: scripted`",
    "model": "`adapter: python`, and with clients,",
    "tools": "`adapter: python`",
    "budget": "`adapter: python`, and with clients,",
    "replies": "`adapter: python`",
}
"""The kinds of agent that a key applies to."""
FOREIGN = {
    "command": ("args", "refresh_login", "script", "script_file", "model", "tools", "budget", "replies"),
    "scripted": ("command", "args", "refresh_login", "model", "tools", "budget", "replies"),
    "python": ("command", "args", "refresh_login", "script", "script_file"),
}
"""Keys that make no sense with an adapter."""
CLIENT_FOREIGN = ("script", "script_file", "tools", "replies")


PROMPT_HINT = (
    'say what the agent is to do, like `prompt: Fix the tests`, or `prompt: "{{ input }}"` for what `--input` says'
)


def foreign_keys(adapter: str) -> tuple[str, ...]:
    """Return the keys that *adapter* does not support."""
    return FOREIGN.get(adapter, CLIENT_FOREIGN if adapter in EVERY else ())


class _DocumentCheck:
    """Checks one document."""

    def __init__(self, tree: Node, name: str, files: Mapping[str, str]) -> None:
        self.tree = tree
        self.name = name
        self.files = files
        pipelines = list(items(find(tree, "pipelines")))
        inside = [step for pipeline in pipelines for step in items(find(pipeline, "steps"))]
        self.known_pipelines = dict.fromkeys(label for pipeline in pipelines if (label := text(find(pipeline, "name"))))
        self.queues = QueueProblems(tree, name)
        self.looped = {label for step in inside if value_of(step, "loop") and (label := text(find(step, "pipeline")))}
        """The pipelines that are repeated, as a step of another."""

    def top(self) -> Iterator[Problem]:
        yield from self._exclusive(self.tree, "steps", "pipelines")
        yield from self._not_empty(self.tree, "steps")
        yield from self._not_empty(self.tree, "pipelines")
        yield from merging_problems(self.tree, self.name)
        yield from find_untemplated(self.tree, self.name)

    def agents(self) -> Iterator[Problem]:
        for label, entry in entries(find(self.tree, "agents")).items():
            yield from self._rule("agent", label, entry.at)
            yield from self._agent(entry.value)
            yield from self._talk(entry.value)

    def personas(self) -> Iterator[Problem]:
        for label, entry in entries(find(self.tree, "personas")).items():
            yield from self._rule("persona", label, entry.at)
            yield from self._check_known(entry.value, "agent", "agents")
            yield from self._exclusive(entry.value, "system_prompt", "system_prompt_file")
            yield from self._talk(entry.value)

    def pipelines(self) -> Iterator[Problem]:
        yield from self._steps(find(self.tree, "steps"))
        found = list(items(find(self.tree, "pipelines")))
        yield from self._names("pipeline", [find(pipeline, "name") for pipeline in found])
        for pipeline in found:
            yield from self._not_empty(pipeline, "steps")
            yield from self._steps(find(pipeline, "steps"), text(find(pipeline, "name")))
        yield from self._inside()
        yield from self.queues.of_queues()

    def _talk(self, owner: Node) -> Iterator[Problem]:
        """Find names in `talk` that are not in this file."""
        yield from self.queues.of_talk(owner)
        for label in items(find(owner, "talk", "agents")):
            yield from self._check_name(label, "agent", "agents")

    def _agent(self, agent: Node) -> Iterator[Problem]:
        adapter = text(find(agent, "adapter"))
        if adapter == "command":
            yield from self._check_needed(agent, AgentShape, ("command",), "say what to run")
        if adapter == "scripted":
            yield from self._check_needed(agent, AgentShape, ("script", "script_file"), "list its actions")
            yield from self._exclusive(agent, "script", "script_file")
        if adapter == "python":
            yield from self._check_needed(agent, AgentShape, ("model",), "name one, like anthropic:claude-sonnet-5")
            yield from self._replies(agent)
        if adapter == ACP:
            yield from self._check_needed(agent, AgentShape, ("command",), "say which agent to run, like [goose, acp]")
        for name in foreign_keys(adapter or ""):
            yield from self._foreign(agent, name)

    def _replies(self, agent: Node) -> Iterator[Problem]:
        model, replies = value_of(agent, "model"), value_of(agent, "replies")
        is_scripted = text(model) == SCRIPTED
        if model is not None and is_scripted and replies is None:
            yield self._at(model.at, f"`model: {SCRIPTED}` says what it is told to; list its `replies`")
        if replies is not None and not is_scripted:
            at = key_position(agent, ["replies"])
            yield self._at(at, f"`replies` go with `model: {SCRIPTED}` only; remove them")

    def _steps(self, steps: Node | None, pipeline: str | None = None) -> Iterator[Problem]:
        found = [step for step in items(steps) if isinstance(step, Fields)]
        yield from self._names("step", [value_of(step, "name") or value_of(step, "id") for step in found])
        for step in found:
            yield from self._step(step)
        titled = {label: step for step in found if (label := title(step)) is not None}
        yield from self._needs(titled)
        yield from text_problems(titled, self.tree, self.name, self.files, is_looped=pipeline in self.looped)

    def _needs(self, steps: Mapping[str, Fields]) -> Iterator[Problem]:
        """Find unknown needs, and cycles of needs."""
        waits: dict[str, list[str]] = {}
        for label, step in steps.items():
            needs = [node for node in list_needs(step) if text(node) is not None]
            waits[label] = [need for node in needs if (need := text(node)) in steps and need is not None]
            for node in needs:
                if text(node) not in steps:
                    written, others = str(text(node)), [other for other in steps if other != label]
                    yield self._at(node.at, f"no step named {show_value(written)} to need; {nearest(written, others)}")
            yield from base_problems(step, steps, self.tree, self._at)
            yield from loop_problems(step, self.tree, self._at)
            needed = {need: steps[need] for need in waits[label]}
            yield from injection_problems(step, needed, self._at)
            yield from matrix_problems(step, needed, self._at)
        for cycle in cycles(waits):
            key_at = next(node for node in list_needs(steps[cycle[0]]) if text(node) == cycle[1]).at
            drawn = " → ".join(cycle)
            yield self._at(key_at, f"these steps depend on each other: {drawn}; remove a dependency")

    def _step(self, step: Node) -> Iterator[Problem]:
        yield from self._check_needed(step, StepShape, ("name", "id"), "name the step")
        yield from self._exclusive(step, "name", "id")
        for first, second in itertools.combinations(NEEDS, 2):
            yield from self._exclusive(step, first, second)
        yield from self._kind(step)
        yield from self._not_blank(find(step, "prompt"))
        yield from self._not_blank(find(step, "exec", "source"))
        yield from self._check_known(step, "agent", "agents")
        yield from self._check_known(step, "persona", "personas")
        yield from contract_problems(self.tree, step, self.name)
        yield from vary_problems(step, self._at)
        for agent in list_vary_agents(step):
            yield from self._check_name(agent, "agent", "agents")
        yield from select_problems(step, self._at)
        yield from shell_problems(step, self.name)
        yield from self._judge(step)
        if isinstance(step, Fields):
            yield from self.queues.of_step(step)
            yield from self._talk(step)
            yield from gate_problems(step, self.name)
            yield from on_conflict_problems(step, self._at)

    def _kind(self, step: Node) -> Iterator[Problem]:
        """A step is work for an agent, a plain command, a gate, or a whole pipeline."""
        for first, second in itertools.combinations(KINDS, 2):
            yield from self._exclusive(step, first, second)
        is_command = value_of(step, "command") or text(find(step, "exec", "type")) == "command"
        if value_of(step, "pipeline"):
            yield from self._sub_pipeline(step)
        elif not value_of(step, "gate"):
            if value_of(step, "input"):
                yield self._at(key_position(step, ["input"]), "`input` goes with `pipeline` only; remove it")
            if is_command:
                yield from self._without_agent(step, "command", ("agent", "persona", "max_concurrent_agents", "vary"))
                return
            if not value_of(step, "from_queue"):
                yield from self._check_needed(step, StepShape, ("prompt", "exec"), PROMPT_HINT)
            if not has_agent_for_each(step):
                yield from self._check_needed(step, StepShape, ("persona", "agent"), "name one of yours")
            yield from self._has_agent(step)

    def _sub_pipeline(self, step: Node) -> Iterator[Problem]:
        yield from self._without_agent(step, "pipeline", AGENT_KEYS)
        label = find(step, "pipeline")
        wanted = text(label)
        if label is not None and wanted is not None and wanted not in self.known_pipelines:
            what = f"no pipeline named {show_value(wanted)} in this file"
            yield self._at(label.at, f"{what}; {nearest(wanted, self.known_pipelines)}")

    def _without_agent(self, step: Node, kind: str, keys: Iterable[str]) -> Iterator[Problem]:
        for name in keys:
            if value_of(step, name):
                what = f"`{name}` does not go with `{kind}`, which has no agent of its own; remove it"
                yield self._at(key_position(step, [name]), what)

    def _inside(self) -> Iterator[Problem]:
        """Find pipelines that would contain themselves."""
        uses: dict[str, list[str]] = {}
        places: dict[str, Node] = {}
        for pipeline in items(find(self.tree, "pipelines")):
            for step in items(find(pipeline, "steps")):
                name, inner = text(find(pipeline, "name")), find(step, "pipeline")
                if name is not None and inner is not None and text(inner) is not None:
                    uses.setdefault(name, []).append(str(text(inner)))
                    places[name] = inner
        known = {name: [inner for inner in inners if inner in uses] for name, inners in uses.items()}
        for cycle in cycles(known):
            drawn = " → ".join(cycle)
            yield self._at(places[cycle[0]].at, f"these pipelines contain each other: {drawn}; remove one")

    def _judge(self, step: Node) -> Iterator[Problem]:
        select = find(step, "select")
        if select is not None:
            yield from self._check_known(select, "agent", "agents")
            yield from self._check_known(select, "persona", "personas")
            yield from self._has_agent(select)

    def _has_agent(self, step: Node) -> Iterator[Problem]:
        label = text(find(step, "persona"))
        persona = None if label is None else find(self.tree, "personas", label)
        if label is not None and persona is not None and not value_of(step, "agent") and not value_of(persona, "agent"):
            what = f"neither the step nor its persona {key(label)} names an agent; add `agent`"
            yield self._at(key_position(step, ["persona"]), what)

    def _check_needed(self, node: Node, shape: type[Shape], keys: tuple[str, ...], remedy: str) -> Iterator[Problem]:
        if not isinstance(node, Fields) or any(value_of(node, name) for name in keys):
            return
        if not any(
            nearest_key(shape, label) in keys for label in node.entries
        ):  # a misspelt key is reported where it is
            yield self._at(node.at, f"{' or '.join(f'`{name}`' for name in keys)} is missing; {remedy}")

    def _exclusive(self, node: Node, first: str, second: str) -> Iterator[Problem]:
        if value_of(node, first) and value_of(node, second):
            later = max(key_position(node, [first]), key_position(node, [second]))
            yield self._at(later, f"both `{first}` and `{second}` are given; keep one of them")

    def _foreign(self, agent: Node, name: str) -> Iterator[Problem]:
        if value_of(agent, name) is not None:
            yield self._at(key_position(agent, [name]), f"`{name}` goes with {WHOSE[name]} only; remove it")

    def _not_empty(self, node: Node, name: str) -> Iterator[Problem]:
        found = find(node, name)
        if isinstance(found, Items) and not found.items:
            yield self._at(found.at, f"`{name}` is empty; write at least one")

    def _not_blank(self, written: Node | None) -> Iterator[Problem]:
        words = text(written)
        if written is not None and words is not None and not words.strip():
            yield self._at(written.at, "the prompt is empty; say what the agent is to do")

    def _check_known(self, node: Node, name: str, where: str) -> Iterator[Problem]:
        yield from self._check_name(find(node, name), name, where)

    def _check_name(self, label: Node | None, kind: str, where: str) -> Iterator[Problem]:
        wanted = text(label)
        known = (*entries(find(self.tree, where)), *(CLIENTS if where == "agents" else ()))
        if label is not None and wanted is not None and wanted not in known:
            yield self._at(label.at, f"no {kind} named {show_value(wanted)}; {nearest(wanted, known)}")

    def _names(self, kind: str, labels: Iterable[Node | None]) -> Iterator[Problem]:
        seen: dict[str, Position] = {}
        for label in labels:
            written = text(label)
            if label is None or written is None:
                continue
            yield from self._rule(kind, written, label.at)
            if first := seen.get(written.casefold()):
                what = f"a second {kind} named {show_value(written)}, the first is in line {first.line}; rename one"
                yield self._at(label.at, what)
            seen.setdefault(written.casefold(), label.at)

    def _rule(self, kind: str, label: str, at: Position) -> Iterator[Problem]:
        if not is_name(label):
            rule = "small letters, digits and dashes, at most 48"
            yield self._at(
                at, f"{show_value(label)} is not a valid {kind} name ({rule}); use `{slug(label, otherwise=kind)}`"
            )

    def _at(self, at: Position, what: str) -> Problem:
        return Problem(self.name, at, what)
