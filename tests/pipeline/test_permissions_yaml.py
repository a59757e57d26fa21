"""`permissions:` in a document: every mistake at its position, precedence, and no deny is undone."""

import pytest

from shoal.model.permissions import Permissions
from shoal.model.plan import Plan
from shoal.model.resolved_task import ResolvedTask
from shoal.pipeline.load import parse
from shoal.pipeline.plan import agent, plan
from shoal.pipeline.problems import BadDocument


def document(step: str = "", persona: str = "", spec: str = "") -> str:
    """A step with a persona and an agent, each with more keys."""
    return (
        f"agents: {{x: {{adapter: command, command: a{spec}}}}}\n"
        f"personas: {{p: {{agent: x{persona}}}}}\n"
        f"steps:\n"
        f"  - {{name: a, persona: p, prompt: go{step}}}\n"
    )


def planned(text: str, **environ: str) -> Plan:
    return plan(parse(text, "f.yaml"), environ=environ)


def permitted(text: str, **environ: str) -> Permissions | None:
    (step,) = planned(text, **environ).working
    return step.task.permissions


def wrong(text: str, **environ: str) -> list[str]:
    with pytest.raises(BadDocument) as caught:
        planned(text, **environ)
    return str(caught.value).splitlines()


def test_each_level_may_say_them_and_the_nearest_wins_as_a_whole() -> None:
    near = ", permissions: {allowed_tools: [Read], deny: ['Bash(rm *)']}"
    far = ", permissions: {writable: [src], deny: [WebFetch, Write]}"

    assert permitted(document()) is None
    assert permitted(document(spec=far)) == Permissions(writable=("src",), deny=("WebFetch", "Write"))
    assert permitted(document(persona=near, spec=far)) == Permissions(
        allowed_tools=("Read",), deny=("WebFetch", "Write", "Bash(rm *)")
    )
    assert permitted(document(step=", permissions: {}", persona=near, spec=far)) == Permissions(
        deny=("WebFetch", "Write", "Bash(rm *)")
    )


def test_an_empty_list_is_not_a_missing_one() -> None:
    made = permitted(document(step=", permissions: {allowed_tools: [], writable: [], env: [], hosts: []}"))

    assert made == Permissions(allowed_tools=(), writable=(), env=(), hosts=())


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("allow_tools: [Read]", "4:53: unknown key `allow_tools`; did you mean `allowed_tools`?"),
        ("deny: Bash", "4:59: `deny` must be a list, not 'Bash'"),
        ("deny: ~", "4:59: `deny` must be a list, not nothing"),
        ("env: ~", "4:58: `env` must be a list, not nothing"),
        ("deny: [Read, 3]", "4:66: an item of `deny` must be text, not 3; put it in quotes"),
        ("deny: [Read, 'Bash(']", "4:66: the tool pattern 'Bash(' is malformed; write `Tool` or `Tool(glob)`"),
        ("env: [A-B]", "4:59: permissions: 'A-B' is not allowed in 'env'"),
        ("hosts: ['https://a.example']", "4:61: permissions: 'https://a.example' is not allowed in 'hosts'"),
        (
            "readable: [/data, src]",
            "4:71: permissions: readable 'src' cannot be enforced: an agent can read all of its workspace, "
            "by git if not by name; use absolute paths",
        ),
        (
            "writable: [src, /data]",
            "4:69: permissions: writable '/data' lies outside of the workspace, and agents write only in it; "
            "name a path in the workspace, from its top",
        ),
        (
            "writable: [../x]",
            "4:64: permissions: writable '../x' does not say where it leads; "
            "name a path in the workspace, from its top",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(keys: str, expected: str) -> None:
    assert wrong(document(step=f", permissions: {{{keys}}}")) == [f"f.yaml:{expected}"]


@pytest.mark.parametrize("level", ["step", "persona", "spec"])
def test_a_mistake_is_told_at_every_level(level: str) -> None:
    line = {"spec": 1, "persona": 2, "step": 4}[level]

    (said,) = wrong(document(**{level: ", permissions: [Read]"}))

    assert said.startswith(f"f.yaml:{line}:")
    assert said.endswith("`permissions` must be a mapping, not a list")


def test_a_variable_of_the_host_that_is_not_listed_is_refused_where_it_is_asked_for() -> None:
    text = document(
        step=", env: {B: {from: OTHER}, C: {from: KEY}}, permissions: {env: [KEY]}", spec=", env: {A: {from: TOKEN}}"
    )

    assert wrong(text, TOKEN="t", KEY="k", OTHER="o") == [
        "f.yaml:1:60: `TOKEN` may not be taken from the host; add it to `permissions.env`, or remove it",
        "f.yaml:4:55: `OTHER` may not be taken from the host; add it to `permissions.env`, or remove it",
    ]


def test_a_variable_that_a_nearer_literal_replaces_is_not_taken() -> None:
    text = document(step=", env: {A: plain}, permissions: {env: []}", spec=", env: {A: {from: TOKEN}}")

    (step,) = planned(text, TOKEN="t").working

    assert step.task.env == {"A": "plain"}


def test_without_a_list_a_variable_is_taken_by_its_name_alone() -> None:
    (step,) = planned(document(step=", env: {A: {from: T}}, permissions: {deny: [Write]}"), T="t").working

    assert (step.task.env, step.task.secrets) == ({"A": "t"}, frozenset({"A"}))


def test_work_that_is_not_in_a_file_keeps_its_agents_permissions() -> None:
    read = parse(document(spec=", permissions: {writable: [src], deny: [Write]}"), "f.yaml")
    spec = agent(read, "x", environ={})

    task = ResolvedTask(name="work", prompt="do it", agent=spec)

    assert task.permitted == Permissions(writable=("src",), deny=("Write",))


def test_such_work_takes_no_variable_that_its_agent_may_not_have() -> None:
    read = parse(document(spec=", env: {A: {from: T}}, permissions: {env: [KEY]}"), "f.yaml")

    with pytest.raises(BadDocument, match=r"f\.yaml:1:60: `T` may not be taken from the host"):
        agent(read, "x", environ={"T": "t"})
