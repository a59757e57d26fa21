"""The concurrent agent model: forks of one agent, each with its own end, whatever a tool of theirs does."""

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal import Agent, AgentError, Err, Ok, ScriptedModel, ToolFailed
from shoal.agent import Call
from shoal.agent.scripted import Step


class Harsh(BaseException):
    """An end that no `except Exception` sees."""


def use_tool(prompt: str, step: int) -> Step:
    return Call("work", {"task": prompt}) if step == 0 else f"did {prompt}"


def failing_on_b(error: Callable[[], BaseException]) -> Agent:
    agent = Agent(ScriptedModel(use_tool))

    @agent.tool
    async def work(task: str) -> str:
        """Do the work."""
        await asyncio.sleep(0)
        if task == "task B":
            raise error()
        return "done"

    return agent


async def test_single_agent_code_is_unchanged() -> None:
    agent = Agent(ScriptedModel(["hello yourself"]))

    reply = await agent.prompt("hello")

    assert reply.text == "hello yourself"


async def test_parallel_fan_out_as_printed() -> None:
    agent = Agent(ScriptedModel(lambda prompt, step: f"did {prompt}"))

    results = await agent.run_parallel_prompts(["task A", "task B", "task C"], 3)

    assert [result.value.text for result in results if isinstance(result, Ok)] == [
        "did task A",
        "did task B",
        "did task C",
    ]
    assert agent.messages == [], "each run has a history of its own"
    assert await agent.run_parallel_prompts([], 3) == []


@pytest.mark.parametrize(
    "error", [lambda: SystemExit(3), lambda: Harsh("x"), GeneratorExit, KeyboardInterrupt, lambda: ValueError("v")]
)
async def test_whatever_a_tool_raises_ends_its_own_run_only(error: Callable[[], BaseException]) -> None:
    results = await failing_on_b(error).run_parallel_prompts(["task A", "task B", "task C"], 2)

    assert [type(result) for result in results] == [Ok, Err, Ok]
    failed = results[1]
    assert isinstance(failed, Err)
    assert isinstance(failed.error, ToolFailed)
    assert isinstance(failed.error, AgentError)
    assert type(failed.error.__cause__) is type(error())


async def test_a_plain_tool_that_calls_sys_exit_is_typed_too() -> None:
    agent = Agent(ScriptedModel(use_tool))

    @agent.tool
    def work(task: str) -> str:
        """Do the work."""
        sys.exit(f"no {task}")

    with pytest.raises(ToolFailed, match="SystemExit: no task A"):
        await agent.prompt("task A")


async def test_cancelling_the_whole_still_cancels() -> None:
    agent = Agent(ScriptedModel(use_tool))
    begun = asyncio.Event()

    @agent.tool
    async def work(task: str) -> str:
        """Do the work."""
        begun.set()
        await asyncio.Event().wait()
        return task

    running = asyncio.create_task(agent.run_parallel_prompts(["task A", "task B"], 2))
    await begun.wait()
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running


SIGNALLED = """
    import asyncio, signal, sys
    from shoal import Agent, ScriptedModel
    from shoal.agent import Call

    agent = Agent(ScriptedModel(lambda prompt, step: Call("work", {{}}) if step == 0 else "done"))

    @agent.tool
    async def work() -> str:
        '''Busy, as code that does not await.'''
        print("begun", flush=True)
        while True:
            pass

    def over(*_):
        sys.exit(7)

    def interrupt(*_):
        raise KeyboardInterrupt

    {handling}
    running = agent.run_parallel_prompts(["a"], 1)
    results = {running}
    print("went on", results, flush=True)
"""


@pytest.mark.parametrize(
    ("handling", "running", "number", "code"),
    [
        ("pass", "asyncio.new_event_loop().run_until_complete(running)", signal.SIGINT, -signal.SIGINT),
        ("signal.signal(signal.SIGINT, interrupt)", "asyncio.run(running)", signal.SIGINT, -signal.SIGINT),
        ("signal.signal(signal.SIGTERM, over)", "asyncio.run(running)", signal.SIGTERM, 7),
    ],
)
def test_a_signal_of_the_users_ends_the_program_although_a_tool_runs(
    handling: str, running: str, number: signal.Signals, code: int
) -> None:
    """Python raises it inside of the tool, by itself or from a handler of the program's."""
    script = textwrap.dedent(SIGNALLED).format(handling=handling, running=running)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        program.send_signal(number)

        said = program.stdout.read()
        assert (program.wait(20), said) == (code, "")


def test_the_documentation_has_a_note_on_migration() -> None:
    """The programs in it run with all others of the documentation."""
    page = (Path(__file__).parents[2] / "docs/agent.md").read_text()

    note = page.partition("### From one agent to several\n")[2].partition("\n## ")[0]
    for point in (
        "remains unchanged",
        'await agent.prompt("hello")',
        'await agent.run_parallel_prompts(["task A", "task B", "task C"], 3)',
        "not for one conversation that several share",
        "keep using one `Agent`",
    ):
        assert point in note, point
