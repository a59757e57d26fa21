"""A user's program with the agent, only ever looked at by the type checker: wrong types would be errors here."""

from collections.abc import Callable
from decimal import Decimal
from typing import assert_type

from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage

from shoal import AgentCoordinator, IsolatedAgentSession, MergeReport, MergeResult, ResourceLimits, Task, WorkerResult
from shoal.agent import Agent, AgentEvent, AgentLimits, Answer, Err, Ok, Prompt, Reply, ScriptedModel, sandboxed_tools


class Plan(BaseModel):
    """A typed answer."""

    steps: list[str]


async def one() -> None:
    """Use one agent."""
    agent = Agent(ScriptedModel(["hello"]), system_prompt="Be short.", limits=AgentLimits(turns=5, dollars=0.5))

    @agent.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert_type(add(1, 2), int)
    assert_type(await agent.prompt("hello"), Reply)
    assert_type(await agent.continue_turn(), Reply)
    assert_type(await agent.prompt_json("plan", Plan), Plan)
    async for piece in agent.stream("hello"):
        assert_type(piece, str)
    assert_type(agent.fork(), Agent)
    assert_type(agent.messages, list[ModelMessage])
    assert_type(agent.usage, RunUsage)
    assert_type(agent.cost, Decimal | None)


async def hear(event: AgentEvent) -> None:
    """Hear an event."""


async def several() -> None:
    """Use several at once."""
    agent = Agent("openai:gpt-5")
    assert_type(agent.subscribe(hear), Callable[[], None])
    results = await agent.run_parallel_prompts(
        ["a", Prompt("b", temperature=0.2)], 3, workspace=lambda index: IsolatedAgentSession(f"p-{index}", ".")
    )
    for result in results:
        match result:
            case Ok(answer):
                assert_type(answer, Answer)
                assert_type(answer.fork, Agent)
            case Err(error):
                assert_type(error, Exception)
    async for outcome in agent.stream_parallel_prompts(["a"]):
        assert_type(outcome, Ok[Answer] | Err)
    async with IsolatedAgentSession("mine", ".") as session:
        Agent("openai:gpt-5", tools=sandboxed_tools(session))


async def members() -> None:
    """Use it as a member of a coordinator's run."""
    agent = Agent("openai:gpt-5", name="editor")
    async with agent, AgentCoordinator(".", agents={"editor": agent}) as task_run:
        tasks = [Task("a", agent=agent), Task("b", agent="editor"), Task("c", agent={"adapter": "python"})]
        assert_type(await task_run.run_agents(tasks), list[WorkerResult])


def plainly() -> None:
    """Use a coordinator without a loop."""
    assert_type(ResourceLimits(max_memory=512).max_memory, float | None)
    with AgentCoordinator(5) as task_run:
        assert_type(task_run.run_agents(["a"], deadline=5), list[WorkerResult])
        assert_type(task_run.spawn_agent("debugger", task="a", target=5), WorkerResult)
        assert_type(task_run.merge_agent_work("a"), MergeResult)
        assert_type(task_run.deliver("main"), MergeReport)
    with IsolatedAgentSession("mine", ".", keep_database=True) as session:
        Agent("openai:gpt-5", tools=sandboxed_tools(session))
