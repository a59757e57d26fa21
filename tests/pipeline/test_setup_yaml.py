"""The key `setup`, in all places and forms."""

import pytest

from shoal.model.plan import Plan
from shoal.model.policy import Network
from shoal.model.setup import Setup
from shoal.pipeline.load import parse
from shoal.pipeline.plan import agent, plan
from shoal.pipeline.problems import BadDocument

DOCUMENT = """\
runtime: {setup: make all, setup_timeout: 5m}
agents:
  plain: {adapter: command, command: ["true"]}
  own: {adapter: command, command: ["true"], setup: [npm ci, npm run build]}
personas:
  role: {agent: own, setup: {run: pip install ., network: host, timeout: 90, each: true}}
steps:
  - {name: a, agent: plain, prompt: x}
  - {name: b, agent: own, prompt: x, setup_timeout: 1m}
  - {name: c, persona: role, prompt: x}
  - {name: d, persona: role, prompt: x, setup: []}
  - {name: e, command: make, setup: "docker ps --format '{{.Names}}'"}
"""


def planned(text: str) -> Plan:
    return plan(parse(text, "shoal.yaml"), environ={})


def test_the_nearest_word_holds() -> None:
    found = [step.task.nearest_setup for step in planned(DOCUMENT).working]

    assert found == [
        Setup(commands=("make all",), timeout=300),
        Setup(commands=("npm ci", "npm run build"), timeout=60),
        Setup(commands=("pip install .",), network=Network.HOST, timeout=90, each=True),
        Setup(timeout=300),
        Setup(commands=("docker ps --format '{{.Names}}'",), timeout=300),
    ]


def test_an_agent_by_itself_has_its_own_or_the_runs() -> None:
    document = parse(DOCUMENT, "shoal.yaml")

    assert agent(document, "own", environ={}).setup == Setup(commands=("npm ci", "npm run build"), timeout=300)
    assert agent(document, "plain", environ={}).setup == Setup(commands=("make all",), timeout=300)


def test_nobodys_word_is_none_at_all() -> None:
    (step,) = planned("steps: [{name: a, command: make}]").working

    assert step.task.nearest_setup is None


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("setup: 3", "1:18: set-up is a command like `npm ci`, or a list of commands, not 3"),
        ("setup: ['', a]", "set-up is a command like `npm ci`, or a list of commands"),
        ("setup: {runs: a}", "unknown key `runs`; did you mean `run`?"),
        ("setup: {run: a, network: lan}", "`network` cannot be"),
        ("setup: {run: a, timeout: soon}", "is not a duration"),
        ("setup_timeout: -1", "is not a duration"),
    ],
)
def test_what_is_wrong_is_told_where_it_stands(written: str, told: str) -> None:
    with pytest.raises(BadDocument) as error:
        parse(f"runtime: {{{written}}}\nsteps: [{{name: a, command: make}}]\n", "shoal.yaml")

    assert told in str(error.value)
    assert "shoal.yaml:1:" in str(error.value)


@pytest.mark.parametrize(
    ("commands", "each", "is_each"),
    [
        ("npm ci", None, False),
        ("echo $SHOAL_PORT", None, True),
        ("echo ${CONDUCTOR_WORKSPACE_NAME}", None, True),
        ("cp $CONDUCTOR_ROOT_PATH/.env .", None, False),
        ("echo $SHOAL_PORT", False, False),
        ("npm ci", True, True),
    ],
)
def test_what_names_a_sessions_own_things_is_not_shared(commands: str, each: bool | None, is_each: bool) -> None:
    assert Setup(commands=(commands,), each=each).is_each == is_each
