"""Document to plan: the seeds' shapes, precedence, clamping, hints, and host variables."""

import pytest

from shoal.errors import BadInput, UnknownName
from shoal.model.agent import AgentSpec
from shoal.model.database import DatabaseSettings
from shoal.model.plan import Plan
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.status import Rule
from shoal.model.store import StoreSettings
from shoal.model.task import Task
from shoal.pipeline.adhoc import AdhocAgents, adhoc
from shoal.pipeline.keys.duration import BadDuration, seconds
from shoal.pipeline.load import parse
from shoal.pipeline.names import is_name, slug
from shoal.pipeline.plan import agent, plan
from shoal.pipeline.problems import BadDocument

SEED_000 = """\
runtime: {max_concurrent_workers: 2}
agents: {worker-agent: {adapter: command, command: ["sh", "-c", "cat > seen.txt"]}}
personas: {worker: {agent: worker-agent, system_prompt: "You are a worker."}}
steps:
  - name: process-items
    persona: worker
    prompt: "Do it"
    concurrency: 3
"""
SEED_001 = """\
agents: {x: {adapter: command, command: run --fast 'two words'}}
personas: {implementer: {agent: x, system_prompt: "You build.\\n"}}
pipelines:
  - name: my-pipeline
    steps:
      - {name: implement, persona: implementer, prompt: hi, max_concurrent_agents: 3}
  - name: other
    steps:
      - {id: look, agent: x, exec: {type: prompt, source: look around}, on_failure: best_effort, expect: changes}
"""


def planned(text: str, pipeline: str | None = None, **environ: str) -> Plan:
    return plan(parse(text, "dir/a file.yaml"), pipeline, environ=environ)


def only_task(text: str, **environ: str) -> ResolvedTask:
    (step,) = planned(text, **environ).working
    return step.task


def with_step(keys: str) -> str:
    return f"agents: {{x: {{adapter: command, command: a}}}}\nsteps: [{{name: a, agent: x, prompt: p, {keys}}}]\n"


def test_the_shape_of_seed_000_is_planned_and_clamped_visibly() -> None:
    made = planned(SEED_000)

    (step,) = made.working
    assert (made.name, made.max_concurrent, step.name, step.workers) == ("a-file", 2, "process-items", 2)
    assert made.notes == ("step process-items: concurrency 3 clamped to 2 (runtime.max_concurrent_workers)",)
    assert step.on_failure == "fail_fast"
    assert step.task.system_prompt == "You are a worker."
    assert step.task.agent == AgentSpec(name="worker-agent", adapter="command", command=("sh", "-c", "cat > seen.txt"))


def test_without_a_runtime_ten_at_once_is_the_cap() -> None:
    made = planned(with_step("concurrency: 11"))

    assert (made.max_concurrent, made.working[0].workers) == (10, 10)
    assert made.notes == ("step a: concurrency 11 clamped to 10 (runtime.max_concurrent_workers)",)
    assert (made.isolation_strategy, made.sandbox, made.cleanup_on_complete) == ("auto", "bubblewrap", True)


def test_the_runtime_reaches_the_plan() -> None:
    runtime = (
        "runtime: {isolation_strategy: worktree, sandbox: landlock, cleanup_on_complete: false, "
        "database_strategy: per_agent, auto_merge: false, network: host}\n"
    )

    made = planned(runtime + with_step("expect: any"))

    assert (made.isolation_strategy, made.sandbox, made.cleanup_on_complete) == ("worktree", "landlock", False)
    assert made.working[0].task.network is Network.HOST


def test_a_shared_database_is_on_our_own_server_or_on_a_named_one() -> None:
    own = planned("runtime: {database_strategy: shared}\n" + with_step("expect: any"))
    named = planned("runtime: {database_strategy: shared, database: {from: DB}}\n" + with_step("expect: any"), DB="x")

    assert own.database == DatabaseSettings(is_shared=True)
    assert named.database == DatabaseSettings(is_shared=True, url_from="DB")
    with pytest.raises(BadDocument, match="`database` names a server: add `database_strategy: shared`"):
        planned("runtime: {database: 'postgresql://db/x'}\n" + with_step("expect: any"))
    with pytest.raises(BadDocument, match="the host has no variable `NO_SUCH`"):
        planned("runtime: {database_strategy: shared, database: {from: NO_SUCH}}\n" + with_step("expect: any"))


@pytest.mark.parametrize(
    ("text", "store"),
    [
        ("{from: LEDGER}", StoreSettings(url_from="LEDGER")),
        ("{from: LEDGER, repository: my-app}", StoreSettings(url_from="LEDGER", repository="my-app")),
        ("postgresql://me@db/x", StoreSettings(url="postgresql://me@db/x")),
        ("{url: 'postgresql://me@db/x', repository: a}", StoreSettings(url="postgresql://me@db/x", repository="a")),
    ],
)
def test_a_ledger_is_named_by_an_address_or_a_variable(text: str, store: StoreSettings) -> None:
    assert planned(f"runtime: {{store: {text}}}\n" + with_step("expect: any")).store == store


def test_the_shape_of_seed_001_gives_the_hint() -> None:
    (step,) = planned(SEED_001, "my-pipeline").working

    hint = "You may spawn up to 3 concurrent sub-agents or workers for this step."
    assert step.task.system_prompt == f"You build.\n\n## Concurrency\n\n{hint}"
    assert step.task.prompt == "hi"
    assert step.task.agent.command == ("run", "--fast", "two words")


@pytest.mark.parametrize("asked", ["expect: any", "max_concurrent_agents: 1", "max_concurrent_agents: 0"])
def test_there_is_no_hint_for_one_agent_or_none(asked: str) -> None:
    assert only_task(with_step(asked)).system_prompt == ""


def test_the_hint_is_capped_at_ten_and_says_so() -> None:
    made = planned(with_step("max_concurrent_agents: 50"))

    hint = "You may spawn up to 10 concurrent sub-agents or workers for this step."
    assert made.working[0].task.system_prompt == f"## Concurrency\n\n{hint}"
    assert made.notes == ("step a: max_concurrent_agents 50 capped to 10",)


def test_synonyms_are_the_same_thing() -> None:
    (step,) = planned(SEED_001, "other").working

    assert (step.name, step.task.name, step.task.prompt) == ("look", "look", "look around")
    assert (step.on_failure, step.task.expect) == ("best_effort", "changes")


def test_one_of_several_pipelines_must_be_named() -> None:
    which = "there are 2 pipelines; say which: my-pipeline, other"

    with pytest.raises(BadDocument) as elsewhere:
        planned(SEED_001)
    with pytest.raises(BadDocument) as own:
        plan(parse(SEED_001, "shoal.yaml"), environ={})

    assert str(elsewhere.value).endswith(f"file.yaml:4:3: {which} (as in `shoal run 'dir/a file.yaml' my-pipeline`)")
    assert str(own.value) == f"shoal.yaml:4:3: {which} (as in `shoal run my-pipeline`)"


NESTED = """\
pipelines:
  - {name: round, steps: [{name: a, command: x}]}
  - {name: main, steps: [{name: b, pipeline: round}]}
"""


def test_the_only_pipeline_that_is_no_step_of_another_need_not_be_named() -> None:
    made = planned(NESTED)

    assert made.name == "main"
    assert made.notes == ("pipeline main is run: of 2 it is the only one that is no step of another",)
    assert planned(NESTED, "main").notes == ()
    with pytest.raises(BadDocument, match="there are 3 pipelines; say which: round, main, more"):
        planned(f"{NESTED}  - {{name: more, steps: [{{name: b, pipeline: round}}]}}\n")


def test_an_unknown_pipeline_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'my-pipeline'"):
        planned(SEED_001, "my-pipelin")


def test_a_file_without_steps_offers_its_agents_but_no_plan() -> None:
    document = parse("agents: {x: {adapter: command, command: a, env: {K: {from: KEY}}}}", "f.yaml")

    spec = agent(document, "x", environ={"KEY": "v"})

    assert (spec.command, spec.env, spec.secrets) == (("a",), {"K": "v"}, frozenset({"K"}))
    with pytest.raises(BadDocument, match="nothing to run"):
        plan(document, environ={})
    with pytest.raises(UnknownName):
        agent(document, "y", environ={})
    with pytest.raises(BadDocument, match=r"f\.yaml:1:60: the host has no variable `KEY`"):
        agent(document, "x", environ={})


NEAREST = """\
runtime: {network: none}
agents:
  x: {adapter: command, command: a, network: host, timeout: 90s, env: {A: agent, B: agent, C: {from: KEY}}}
personas:
  p: {agent: x, timeout: 10m, network: none, env: {B: persona, D: persona}}
  q: {}
steps:
  - {name: from-step, persona: p, prompt: p, network: host, timeout: 5, env: {D: step, C: plain}}
  - {name: from-persona, persona: p, prompt: p}
  - {name: from-agent, agent: x, prompt: p}
  - {name: agent-beside, persona: q, agent: x, prompt: p}
"""


def test_the_nearest_wins() -> None:
    tasks = [step.task for step in planned(NEAREST, KEY="secret").working]

    assert [task.network for task in tasks] == [Network.HOST, Network.NONE, Network.HOST, Network.HOST]
    assert [task.timeout for task in tasks] == [5.0, 600.0, 90.0, 90.0]
    assert tasks[0].env == {"A": "agent", "B": "persona", "C": "plain", "D": "step"}
    assert tasks[1].env == {"A": "agent", "B": "persona", "C": "secret", "D": "persona"}
    assert tasks[2].env == {"A": "agent", "B": "agent", "C": "secret"}


def test_an_exact_disk_reaches_the_agent() -> None:
    exact = only_task(with_step("limits: {disk_mb: 200, disk: exact}")).limits
    polled = only_task(with_step("limits: {disk_mb: 200}")).limits

    assert exact is not None
    assert polled is not None
    assert (exact.disk_bytes, exact.disk) == (200 * 2**20, "exact")
    assert polled.disk == "polled"


def test_values_of_the_host_are_marked_secret_and_not_in_any_repr() -> None:
    made = planned(NEAREST, KEY="hunter2")

    assert [step.task.secrets for step in made.working] == [frozenset(), {"C"}, {"C"}, {"C"}]
    assert "hunter2" not in repr(made)


def test_literals_of_the_environment_stay_as_written() -> None:
    task = only_task(with_step("env: {A: 1.10, B: true, C: 8080, D: no, E: '', F: 0o17}"))

    assert task.env == {"A": "1.10", "B": "true", "C": "8080", "D": "no", "E": "", "F": "0o17"}
    assert task.secrets == frozenset()


def test_every_missing_variable_of_the_host_is_told_with_its_place() -> None:
    with pytest.raises(BadDocument) as caught:
        planned(with_step("env: {A: {from: ONE}, B: {from: TWO}, C: {from: HERE}}"), HERE="")

    assert str(caught.value).splitlines() == [
        "dir/a file.yaml:2:56: the host has no variable `ONE`; set it, or write a value here",
        "dir/a file.yaml:2:72: the host has no variable `TWO`; set it, or write a value here",
    ]


def test_sections_of_the_system_prompt_stand_in_their_order() -> None:
    (step,) = planned(
        "agents: {x: {adapter: command, command: a}}\npersonas: {p: {agent: x, system_prompt: You build.}}\n"
        "steps: [{name: a, persona: p, prompt: hi, max_concurrent_agents: 3, permissions: {deny: [Bash]},"
        " contract: {type: command, command: make}}]"
    ).working

    heads = [line for line in step.task.system_prompt.splitlines() if line.startswith("#")]
    assert step.task.system_prompt.startswith("You build.\n\n")
    assert heads == ["## Contract compliance", "## Concurrency", "## Restrictions"]


def test_a_template_stays_as_it_is_until_its_step_starts() -> None:
    made = planned("agents: {x: {adapter: command, command: a}}\nsteps: [{name: a, agent: x, prompt: '{{ run.id }}'}]")

    assert made.working[0].task.prompt == "{{ run.id }}"
    assert made.working[0].is_template


def test_an_input_that_was_not_given_is_told_where_it_is_used() -> None:
    text = "agents: {x: {adapter: command, command: a}}\nsteps: [{name: a, agent: x, prompt: '{{ input.title }}'}]"

    with pytest.raises(BadDocument, match=r"2:41: the text uses `input`, and there is none; give it with `--input`"):
        planned(text)


INNER = """\
agents: {x: {adapter: command, command: a}}
personas: {p: {agent: x, system_prompt: 'For {{ input.who }}'}}
pipelines:
  - {name: main, steps: [{name: as-is, pipeline: inner}, {name: own, pipeline: inner, input: {who: me}}, {name: one, pipeline: inner, input: go}]}
  - {name: inner, steps: [{name: a, persona: p, prompt: '{{ input.what }} {{ input.how | default("well") }}'}]}
"""


def test_what_pipelines_inside_and_personas_lack_is_told_too() -> None:
    with pytest.raises(BadDocument) as caught:
        plan(parse(INNER, "f.yaml"), "main", environ={}, given={"who": "you"})

    assert str(caught.value).splitlines() == [
        "f.yaml:2:49: the text uses `input.who`, and the input is one text; add it to the `input` of step `one`",
        "f.yaml:5:61: the text uses `input.what`, and the input is one text; add it to the `input` of step `one`",
        "f.yaml:5:61: the text uses `input.what`, which was not given; add it to the `input` of step `own`",
        "f.yaml:5:61: the text uses `input.what`, which was not given; give `--input what=…`",
    ]


def test_a_text_that_says_what_to_take_instead_needs_no_input() -> None:
    text = "agents: {x: {adapter: command, command: a}}\nsteps: [{name: a, agent: x, if: input.y is defined, prompt: '{{ input.x | default(1) }}'}]"

    assert planned(text).input is None


def test_adhoc_makes_one_step_per_task_or_one_per_task_and_agent() -> None:
    spec = AgentSpec(name="x", adapter="command", command=("a",), timeout=9.0)
    tasks = [Task("one", name="a"), Task("two", name="b", deps=["a"])]
    given = {
        (task, agent): ResolvedTask(name=task, prompt="p", agent=spec) for task in "ab" for agent in ("", "x", "y")
    }

    one_each = AdhocAgents(workers={"": 1}, assigned=given)
    five = AdhocAgents(workers={"x": 3, "y": 2}, assigned=given)

    alone = adhoc(tasks, one_each)
    several = adhoc(tasks[:1], five, Rule("quorum", 5))

    assert [(step.name, step.workers, step.on_failure, step.needs) for step in alone.working] == [
        ("a", 1, "best_effort", ()),
        ("b", 1, "best_effort", ("a",)),
    ]
    assert alone.max_concurrent == 5
    assert [(step.name, step.workers) for step in several.working] == [("a-x", 3), ("a-y", 2)]
    with pytest.raises(BadInput, match="quorum of 6 needs more than 5"):
        adhoc(tasks[:1], five, Rule("quorum", 6))
    with pytest.raises(BadInput, match="cannot use --pattern"):
        adhoc(tasks, one_each, Rule("race"))


@pytest.mark.parametrize(
    ("written", "meant"), [(90, 90), (0.5, 0.5), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h 5s", 3605)]
)
def test_a_length_of_time_is_read(written: str | float, meant: float) -> None:
    assert seconds(written) == meant


@pytest.mark.parametrize("written", ["", "90", "1d", "s", "-5s", "5m1h", "0s", 0, -1, float("inf"), "9999999h", True])
def test_a_bad_length_of_time_is_refused(written: str | float) -> None:
    with pytest.raises(BadDuration):
        seconds(written)


@pytest.mark.parametrize("text", ["a\n", "é", "a_b", "A", "", "-a", "a" * 49])
def test_what_is_no_name_has_a_slug_that_is_one(text: str) -> None:
    assert not is_name(text)
    assert is_name(slug(text))


def nested(*sizes: int) -> str:
    """Write a file of pipelines, each with the next one in it so many times."""
    inner = [f"pipeline: p{number}" for number in range(1, len(sizes))] + ["command: 'true'"]
    lines = [
        f"  - {{name: p{number}, steps: [{', '.join(f'{{name: s{index}, {what}}}' for index in range(size))}]}}"
        for number, (size, what) in enumerate(zip(sizes, inner, strict=True))
    ]
    return "\n".join(["pipelines:", *lines])


@pytest.mark.deep
def test_pipelines_inside_of_pipelines_may_not_come_to_millions_of_steps() -> None:
    text = nested(*[10] * 9)

    with pytest.raises(BadDocument) as refused:
        planned(text, "p0")

    (problem,) = refused.value.problems
    assert "with the pipelines inside of pipelines there are more than 10000 steps; nest less" in problem.what
    assert len(planned(nested(10, 10, 10), "p0").working) == 1000


@pytest.mark.deep
@pytest.mark.parametrize("levels", [92, 1000])
def test_pipelines_that_lie_too_deep_inside_of_each_other_are_told_by_their_names(levels: int) -> None:
    with pytest.raises(BadDocument) as refused:
        planned(nested(*[1] * levels), "p0")

    (problem,) = refused.value.problems
    assert "nest less deeply, or use shorter names" in problem.what
