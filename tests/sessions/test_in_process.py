"""In-process agents in runs: this process asks the model, and its tools work in the sandbox."""

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import Agent, AgentCoordinator, AgentLimits, ScriptedModel, Task
from shoal.agent import After, Call, sandboxed_tools
from shoal.agent.scripted import Step as Reply
from shoal.errors import BadInput, RateLimited
from shoal.model.activity import Act
from shoal.model.agent import TOOLS
from shoal.model.events import AgentActed, ClientHeard, Output, PermissionDecided, Recorded
from shoal.model.results import RunReport
from shoal.model.status import Status
from shoal.pipeline.load import parse
from shoal.pipeline.plan import plan
from shoal.runs.request import RunRequest
from shoal.runs.run import run
from shoal.testing.model import ModelServer
from tests.acting import assert_nothing_left, fingerprint, paths_in, shown
from tests.conftest import git

MODEL = "anthropic:claude-sonnet-5"


def editor(prompt: str, step: int) -> Reply:
    """A model that puts its prompt into the README."""
    return Call("edit", {"path": "README.md", "old": "scratch", "new": prompt}) if step == 0 else f"did {prompt}"


def event_of(recorded: Recorded) -> object:
    return recorded.event


async def ran(repo: Path, text: str, stop: asyncio.Event | None = None) -> tuple[RunReport, list[Recorded]]:
    """Run the pipeline *text* as `shoal run` would."""
    heard: list[Recorded] = []
    environ = {"HOME": str(repo.parent), "PATH": "/usr/bin:/bin"}
    request = RunRequest(folder=repo, environ=environ, grace=0.5)
    made = plan(parse(text, "f.yaml"), environ=environ)
    return await run(made, request, stop=stop or asyncio.Event(), listen=heard.append), heard


@pytest.mark.deep
async def test_ten_forks_of_one_agent_edit_one_file_and_give_ten_branches(repo: Path) -> None:
    before = fingerprint(repo)
    agent = Agent(ScriptedModel(editor, name="gpt-4o"), name="Editor of Words")
    await agent.prompt("hello")  # what was said before is known to each fork, and stays the agent's own
    said, spent = agent.messages, agent.usage

    async with AgentCoordinator(repo, 5, agent=agent) as task_run:
        results = await task_run.run_agents([f"words of {number}" for number in range(10)])

    assert [one.status for one in results] == [Status.SUCCEEDED] * 10
    assert [shown(repo, one, "README.md") for one in results] == [f"words of {number}" for number in range(10)]
    assert [one.output for one in results] == [f"did words of {number}\n" for number in range(10)]
    assert len({one.branch for one in results}) == 10
    assert agent.messages == said
    assert agent.usage.requests == spent.requests + 20
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


async def test_a_pipeline_asks_a_model_by_its_name_and_its_key_stays_outside_of_the_wall(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the-key-of-the-host")
    async with ModelServer() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        report, _ = await ran(
            repo,
            f"""
agents: {{claude: {{adapter: python, model: "{MODEL}", env: {{GIVEN: x}}}}}}
personas: {{poet: {{agent: claude, system_prompt: You are a poet.}}}}
steps:
  - {{name: look, persona: poet, concurrency: 2, prompt: '[[s:shell cmd=env%20>env.txt]]'}}
""",
        )

    workers = report.steps[0].worker_results
    assert [one.status for one in workers] == [Status.SUCCEEDED] * 2, workers
    for one in workers:
        assert "GIVEN=x" in shown(repo, one, "env.txt")
        assert "the-key" not in shown(repo, one, "env.txt")
        assert one.usage["input_tokens"] > 0
        assert one.usage["cost_usd"] > 0
    assert "You are a poet." in server.systems[0]
    assert set(server.requests[0].tools) == set(TOOLS)


async def test_a_scripted_model_gives_the_replies_of_a_file(repo: Path) -> None:
    report, heard = await ran(
        repo,
        """
agents:
  robot:
    adapter: python
    model: scripted
    tools: [edit, read, write]
    replies:
      - {edit: {path: README.md, old: scratch, new: blue}}
      - [{read: {path: README.md}}, {write: {path: new/file, content: "two\\nlines\\n"}}]
      - It is blue now.
steps: [{name: paint, agent: robot, prompt: Paint it.}]
""",
    )

    (result,) = report.steps[0].worker_results
    said = [(one.event.stream, one.event.text) for one in heard if isinstance(one.event, Output)]
    assert result.status is Status.SUCCEEDED, result
    assert result.output == "It is blue now.\n"
    assert result.usage["output_tokens"] > 0
    assert paths_in(repo, result) >= {"README.md", "new/file"}
    assert [
        (event.tool, event.text)
        for event in map(event_of, heard)
        if isinstance(event, AgentActed) and event.act is Act.TOOL
    ] == [
        ("edit", "README.md"),
        ("read", "README.md"),
        ("write", "new/file"),
    ]
    assert [event.usage for event in map(event_of, heard) if isinstance(event, ClientHeard)][-1] == result.usage
    assert ("stdout", "blue") in said


async def test_a_race_of_a_model_and_a_command_has_one_winner_and_keeps_the_losers_work(repo: Path) -> None:
    async def slow(_: str, step: int) -> Reply:
        return Call("write", {"path": "slow", "content": "half"}) if step == 0 else After(600, "late")

    quick = {"adapter": "command", "command": ["/bin/sh", "-c", "sleep 2; echo quick > quick"]}
    async with asyncio.timeout(120), AgentCoordinator(repo, 5, grace=0.5) as task_run:
        won = await task_run.race(
            [Task("a", name="slow", agent=Agent(ScriptedModel(slow))), Task("b", name="quick", agent=quick)]
        )
        report = task_run.report

    (lost,) = next(step for step in report.steps if step.step == "slow").worker_results
    assert shown(repo, won, "quick") == "quick"
    assert lost.status is Status.CANCELLED
    assert shown(repo, lost, "slow") == "half"
    assert lost.usage["input_tokens"] > 0
    assert_nothing_left(repo)


async def test_one_that_is_stopped_in_a_tool_call_leaves_no_process_and_keeps_its_work(repo: Path) -> None:
    stop = asyncio.Event()
    text = """
agents:
  robot:
    adapter: python
    model: scripted
    replies:
      - {write: {path: done, content: before}}
      - {shell: {command: "echo half > half; echo reached; sleep 4711", seconds: 3600}}
      - never
steps: [{name: work, agent: robot, prompt: Work.}]
"""
    heard: list[Recorded] = []

    def listen(one: Recorded) -> None:
        heard.append(one)
        if isinstance(one.event, Output) and one.event.text == "reached":
            stop.set()

    request = RunRequest(folder=repo, environ={"PATH": "/usr/bin:/bin"}, grace=0.5)
    async with asyncio.timeout(120):
        report = await run(plan(parse(text, "f.yaml"), environ={}), request, stop=stop, listen=listen)

    (result,) = report.steps[0].worker_results
    assert result.status is Status.CANCELLED
    assert shown(repo, result, "done") == "before"
    assert shown(repo, result, "half") == "half"
    assert subprocess.run(["pgrep", "-f", "sleep 4711"], check=False, capture_output=True).stdout == b""
    assert_nothing_left(repo)


@pytest.mark.deep
async def test_what_goes_wrong_is_its_own_failure_with_what_to_do_and_its_work_is_kept(repo: Path) -> None:
    def fails(prompt: str, step: int) -> Reply:
        if step == 0:
            return Call("write", {"path": "kept", "content": prompt})
        return {"soon": RateLimited("m", 7), "short": BadInput("no more"), "disk": OSError("disk")}[prompt]

    def loops(prompt: str, _: int) -> Reply:
        return Call("write", {"path": "kept", "content": prompt})

    model = ScriptedModel(fails)
    bounded = Agent(ScriptedModel(loops), limits=AgentLimits(turns=3))
    slow = Agent(ScriptedModel([Call("write", {"path": "kept", "content": "slow"}), After(600, "late")]))
    async with AgentCoordinator(repo, 5, grace=0.5) as task_run:
        results = await task_run.run_agents(
            [
                *(Task(one, agent=Agent(model)) for one in ("soon", "short", "disk")),
                Task("loops", agent=bounded),
                Task("slow", agent=slow, timeout=5),
            ]
        )

    soon, short, disk, many, late = results
    assert [one.status.value for one in results] == ["failed"] * 4 + ["timed_out"], results
    assert [shown(repo, one, "kept") for one in results] == ["soon", "short", "disk", "loops", "slow"]
    assert "wait 7 seconds, or run fewer" in str(soon.error)
    assert short.error == "no more"
    assert "OSError: disk" in str(disk.error)
    assert "after 3 turns" in str(many.error)
    assert late.limit == "time"
    assert all(one.usage["input_tokens"] > 0 for one in results)


async def test_a_provider_that_refuses_for_coming_too_soon_fails_the_task_alone(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    async with ModelServer() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        async with AgentCoordinator(repo, 2, agent={"adapter": "python", "model": MODEL}) as task_run:
            refused, fine = await task_run.run_agents(["[[s:err429 retry=0.02]]", "[[s:write file=a content=b]]"])

    assert refused.status is Status.FAILED
    assert "rate-limited a request; wait" in str(refused.error)
    assert shown(repo, fine, "a") == "b"


async def test_the_rules_for_tools_hold_and_each_decision_is_in_the_log(repo: Path) -> None:
    _, heard = await ran(
        repo,
        """
agents:
  robot:
    adapter: python
    model: scripted
    permissions: {deny: ["Bash(rm:*)", "write(secret*)"]}
    replies:
      - {shell: {command: rm README.md}}
      - {write: {path: secret.txt, content: x}}
      - {shell: {command: echo fine > fine}}
      - done
steps: [{name: work, agent: robot, prompt: Work.}]
""",
    )

    decided = [one.event for one in heard if isinstance(one.event, PermissionDecided)]
    denied = [(one.subject, one.rule) for one in decided if not one.allowed]
    (branch,) = git(repo, "branch", "--list", "--format=%(refname:short)", "agent/*").splitlines()
    assert denied == [("Bash(rm README.md)", "Bash(rm:*)"), ("write(secret.txt)", "write(secret*)")]
    assert git(repo, "diff", "--name-only", "main", branch) == "fine"


async def test_limits_and_writable_paths_hold_for_the_hands(repo: Path) -> None:
    report, _ = await ran(
        repo,
        """
agents:
  robot:
    adapter: python
    model: scripted
    permissions: {writable: [d0]}
    replies:
      - {write: {path: README.md, content: x}}
      - {write: {path: d0/new, content: x}}
      - done
steps: [{name: work, agent: robot, prompt: Work.}]
""",
    )

    (result,) = report.steps[0].worker_results
    assert result.branch is not None
    assert git(repo, "diff", "--name-only", "main", result.branch) == "d0/new"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (MODEL, "ANTHROPIC_API_KEY"),
        ("nonsense", "Unknown model"),
        ("anthropic", "Unknown model"),
    ],
)
async def test_a_model_that_cannot_be_asked_is_refused_before_anything_starts(
    repo: Path, monkeypatch: pytest.MonkeyPatch, model: str, words: str
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)

    with pytest.raises(BadInput, match=f"agent ai: .*{words}"):
        await ran(
            repo,
            f"agents: {{ai: {{adapter: python, model: '{model}'}}}}\nsteps: [{{name: a, agent: ai, prompt: x}}]\n",
        )

    assert git(repo, "branch", "--list", "agent/*") == ""


async def test_a_budget_of_a_file_holds_for_each_task(repo: Path) -> None:
    report, _ = await ran(
        repo,
        """
agents:
  robot:
    adapter: python
    model: scripted
    budget: {turns: 2}
    replies: [{list: {}}, {list: {}}, {list: {}}, done]
steps: [{name: work, agent: robot, prompt: Work., concurrency: 2, on_failure: best_effort}]
""",
    )

    assert ["after 2 turns" in str(one.error) for one in report.steps[0].worker_results] == [True, True]


async def test_an_agents_own_tools_work_beside_those_of_the_session(repo: Path) -> None:
    agent = Agent(ScriptedModel([Call("ask", {}), Call("write", {"path": "a", "content": "b"}), "done"]))

    @agent.tool
    def ask() -> str:
        """Ask the program."""
        return "its own words"

    async with AgentCoordinator(repo, agents={"mine": agent}) as task_run:
        (result,) = await task_run.run_agents([Task("x", agent="mine")])

    assert result.status is Status.SUCCEEDED
    assert agent.tools == ("ask",)


def test_only_a_run_with_an_in_process_agent_brings_in_pydantic_ai() -> None:
    script = "import sys, shoal.runs.run, shoal.runs.coordinator; print('pydantic_ai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_the_arguments_that_a_file_may_name_are_those_of_the_tools() -> None:
    class Nowhere:
        async def run(self, *_: object, **__: object) -> None: ...

    tools = {one.name: tuple(inspect.signature(one.function).parameters) for one in sandboxed_tools(Nowhere())}  # type: ignore[arg-type]

    assert tools == dict(TOOLS)
