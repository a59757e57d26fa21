"""The keys `runtime.merge` and `runtime.auto_merge` in a file: what they mean, and every mistake at its place."""

import pytest

from shoal.errors import UnknownName
from shoal.model.conflict_rule import ConflictRule, Merging
from shoal.model.contract import CommandContract
from shoal.model.merge import Strategy
from shoal.pipeline.fields import Shape
from shoal.pipeline.keys.merging import MergingField, merging, merging_problems
from shoal.pipeline.load import parse
from shoal.pipeline.plan import plan, resolver
from shoal.pipeline.tree import plain
from shoal.pipeline.validation_errors import shape_problems
from shoal.pipeline.yaml_reader import compose


class Runtime(Shape):
    """What a runtime has of merging."""

    merge: MergingField | None = None
    auto_merge: bool = False


class Holder(Shape):
    """A file that has nothing but its runtime."""

    runtime: Runtime


def meant(written: str) -> Merging | None:
    runtime = Holder.model_validate(plain(compose(f"runtime: {{{written}}}\n", "f.yaml").tree)).runtime
    return merging(runtime.merge, {"critic"}, auto_merge=runtime.auto_merge)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", None),
        ("auto_merge: false", None),
        ("auto_merge: true", Merging(strategy=Strategy.AUTO)),
        ("merge: squash", Merging(strategy=Strategy.SQUASH)),
        ("merge: {}", Merging()),
        ("auto_merge: true, merge: {into: main}", Merging(strategy=Strategy.AUTO, into="main")),
        ("merge: {strategy: rebase, into: feature/x.y}", Merging(strategy=Strategy.REBASE, into="feature/x.y")),
        (
            "merge: {verify: 'docker ps --format {{.ID}}', verify_timeout: 10m}",
            Merging(verify=CommandContract(type="verify", command="docker ps --format {{.ID}}", timeout=600.0)),
        ),
        ("merge: {verify: [pytest, -q]}", Merging(verify=CommandContract(type="verify", command=("pytest", "-q")))),
        ("merge: {on_conflict: report, allow_executable_config: true}", Merging(allow_executable_config=True)),
        ("merge: {on_conflict: redo}", Merging(on_conflict=ConflictRule.REDO)),
        ("merge: {on_conflict: ours}", Merging(on_conflict=ConflictRule.OURS)),
        ("merge: {on_conflict: theirs}", Merging(on_conflict=ConflictRule.THEIRS)),
        (
            "merge: {on_conflict: agent, resolver: critic}",
            Merging(on_conflict=ConflictRule.AGENT, resolver_persona="critic"),
        ),
        (
            "merge: {on_conflict: agent, resolver: fixer}",
            Merging(on_conflict=ConflictRule.AGENT, resolver_agent="fixer"),
        ),
    ],
)  # fmt: skip
def test_merging_is_a_strategy_or_a_mapping(written: str, expected: Merging | None) -> None:
    assert meant(written) == expected


def test_a_resolver_is_named_as_a_reviewer_is() -> None:
    assert Merging(resolver_persona="critic").resolver == "persona critic"
    assert Merging(resolver_agent="claude").resolver == "agent claude"
    assert Merging().resolver is None


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("merge: true", "1:18: `merge` must be a strategy or a mapping, like `{strategy: auto}`, not true"),
        ("merge: sqash", "1:18: `merge` cannot be 'sqash'; did you mean `squash`?"),
        ("merge: {strategy: merge}", "1:29: `strategy` cannot be 'merge'; known: review, auto, squash, rebase, octopus"),
        ("merge: {stratgy: auto}", "1:19: unknown key `stratgy`; did you mean `strategy`?"),
        ("merge: {into: ''}", "1:25: '' is not a valid branch name; write one like `main`"),
        ("merge: {into: -f}", "1:25: '-f' is not a valid branch name"),
        ("merge: {into: 'a..b'}", "1:25: 'a..b' is not a valid branch name"),
        ("merge: {into: 'a b'}", "1:25: 'a b' is not a valid branch name"),
        ("merge: {into: refs/heads/main}", "1:25: 'refs/heads/main' is not a valid branch name"),
        ("merge: {into: shoal/run-1}", "1:25: 'shoal/run-1' is where Shoal keeps its own branches"),
        ("merge: {into: agent}", "1:25: 'agent' is where Shoal keeps its own branches"),
        ("merge: {verify: ' '}", "1:27: `verify` must be a text for the shell or a list of words, like"),
        ("merge: {verify: [1]}", "1:27: `verify` must be a text for the shell or a list of words, like"),
        ("merge: {verify: x, verify_timeout: soon}", "1:46: 'soon' is not a duration"),
        ("merge: {on_conflict: reports}", "1:32: `on_conflict` cannot be 'reports'; did you mean `report`?"),
        ("merge: {allow_executable_config: 1}", "1:44: `allow_executable_config` must be true or false, not 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_at_its_place(written: str, expected: str) -> None:
    (problem,) = shape_problems(Holder, compose(f"runtime: {{{written}}}\n", "f.yaml").tree, "f.yaml")

    assert str(problem).startswith(f"f.yaml:{expected}")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("auto_merge: true, merge: review", "1:11: `auto_merge: true` and `merge.strategy: review` contradict each other"),
        ("auto_merge: false, merge: {strategy: squash}", "1:11: `auto_merge: false` and `merge.strategy: squash` contr"),
        ("merge: {verify_timeout: 1h}", "1:19: `verify_timeout` says how long `verify` may take; add that, or remove it"),
        ("merge: {on_conflict: agent}", "1:32: `resolver` is missing; say which persona or agent resolves conflicts"),
        ("merge: {on_conflict: redo, resolver: fixer}", "1:38: `resolver` goes with `on_conflict: agent` only"),
        ("merge: {resolver: fixer}", "1:19: `resolver` goes with `on_conflict: agent` only"),
        ("merge: {on_conflict: agent, resolver: fixr}", "1:49: no persona or agent named 'fixr'; did you mean `fixer`?"),
        ("merge: {on_conflict: agent, resolver: shy}", "1:49: the persona `shy` names no agent, and a resolver needs one"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_together_is_told_at_its_place(written: str, expected: str) -> None:
    text = f"runtime: {{{written}}}\nagents: {{fixer: {{}}}}\npersonas: {{shy: {{}}, critic: {{agent: fixer}}}}\n"

    (problem,) = merging_problems(compose(text, "f.yaml").tree, "f.yaml")

    assert str(problem).startswith(f"f.yaml:{expected}")


@pytest.mark.parametrize(
    "written",
    [
        "",
        "merge: null",
        "merge: [x]",
        "auto_merge: true, merge: squash",
        "auto_merge: false, merge: review",
        "merge: {on_conflict: agent, resolver: fixer}",
        "merge: {on_conflict: agent, resolver: claude}",
        "merge: {on_conflict: agent, resolver: critic, verify: x, verify_timeout: 3}",
    ],
)
def test_what_makes_sense_is_no_problem(written: str) -> None:
    text = f"runtime: {{{written}}}\nagents: {{fixer: {{}}}}\npersonas: {{critic: {{agent: fixer}}}}\n"

    assert list(merging_problems(compose(text, "f.yaml").tree, "f.yaml")) == []


def test_who_resolves_is_settled_with_the_plan_and_checked_with_it() -> None:
    document = parse(
        "runtime: {merge: {on_conflict: agent, resolver: critic}}\n"
        "agents: {fixer: {adapter: command, command: [sh]}}\n"
        "personas: {critic: {agent: fixer, system_prompt: Be kind., timeout: 3}}\n"
        "steps: [{name: a, command: 'true'}]\n",
        "f.yaml",
    )
    made = plan(document, environ={})

    assert made.merging is not None
    found = made.reviewers[str(made.merging.resolver)]
    assert (found.agent.name, found.system_prompt, found.timeout) == ("fixer", "Be kind.", 3)
    assert found in made.assignments
    assert resolver(document, "critic", environ={}) == found
    assert resolver(document, "fixer", environ={}).system_prompt == ""
    with pytest.raises(UnknownName, match="did you mean 'critic'"):
        resolver(document, "critik", environ={})
