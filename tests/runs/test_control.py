"""A program controls its own run by calls, which are recorded as requests of others are."""

import asyncio
import sys
from pathlib import Path

import pytest

from shoal import Agent, AgentCoordinator, ScriptedModel
from shoal.errors import BadInput
from shoal.model.events import AgentMessaged, Event, Output, Recorded, RequestTaken, SessionEnded, SessionStarted
from tests.conftest import git
from tests.runs.coordinating import SHELL, statuses


class Listener:
    """Hears what happens in a run."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()

    def hear(self, recorded: Recorded) -> None:
        self.events.append(recorded.event)
        self._more.set()

    def count(self, *kinds: type[Event]) -> int:
        return sum(isinstance(event, kinds) for event in self.events)

    async def until(self, kind: type[Event], number: int) -> None:
        """Wait for so many events of a kind."""
        async with asyncio.timeout(30):
            while self.count(kind) < number:
                self._more.clear()
                await self._more.wait()


async def test_a_program_pauses_its_run_and_changes_how_many_agents_it_runs(repo: Path) -> None:
    heard = Listener()
    wait = f"while [ ! -e {repo}/go ]; do sleep 0.02; done"
    async with AgentCoordinator(repo, 1, agent=SHELL, sandbox="none", listen=heard.hear) as coordinator:
        async with asyncio.TaskGroup() as group:
            work = group.create_task(coordinator.run_agents([wait, wait, wait]))
            await heard.until(SessionStarted, 1)
            coordinator.pause()
            coordinator.set_max_concurrent(3)
            (repo / "go").touch()
            await heard.until(SessionEnded, 1)
            assert heard.count(SessionStarted) == 1, "paused"
            coordinator.continue_run()
            results = await work
        most = coordinator.max_concurrent

    taken = [event for event in heard.events if isinstance(event, RequestTaken)]
    assert statuses(results) == ["no_changes"] * 3
    assert most == 3
    assert [(event.kind, event.value, event.by) for event in taken] == [
        ("pause", 0, "the program that runs it"),
        ("set", 3, "the program that runs it"),
        ("continue", 0, "the program that runs it"),
    ]


async def test_what_cannot_be_is_refused(repo: Path) -> None:
    coordinator = AgentCoordinator(repo, 1, agent=SHELL, sandbox="none")
    with pytest.raises(BadInput, match="not open"):
        coordinator.pause()
    async with coordinator:
        with pytest.raises(BadInput, match="at least 1"):
            coordinator.set_max_concurrent(0)
        with pytest.raises(BadInput, match="open files"):
            coordinator.set_max_concurrent(10**9)


ACP_AGENT = Path(__file__).parents[1] / "sessions" / "acp_agent.py"


async def test_an_agent_of_the_protocol_gets_a_message_as_its_next_prompt(repo: Path) -> None:
    heard = Listener()
    agent = {"adapter": "acp", "command": [sys.executable, "-c", ACP_AGENT.read_text(), "chat"]}
    settings = {"sandbox": "none", "isolation_strategy": "worktree", "listen": heard.hear}
    async with asyncio.timeout(60), AgentCoordinator(repo, agent=agent, **settings) as coordinator:  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            work = group.create_task(coordinator.run_agents(["do it"]))
            await heard.until(Output, 1)
            ((session, active),) = coordinator.active_sessions.items()
            coordinator.send(session, "and tea")
            assert heard.count(AgentMessaged) == 0, "the turn goes on"
            (active.workspace / "go").touch()
            (result,) = await work
        with pytest.raises(BadInput, match="is not running"):
            coordinator.send(session, "more")

    assert result.output == "do it\nand tea\n"
    assert git(repo, "show", f"{result.branch}:and tea.txt") == "and tea"
    assert (result.usage["input_tokens"], result.usage["output_tokens"]) == (4, 2)


async def test_an_agent_of_the_program_gets_a_message_as_its_next_prompt(repo: Path) -> None:
    heard, release = Listener(), asyncio.Event()

    async def answer(text: str, step: int) -> str:
        if text == "first":
            await release.wait()
        return f"{text}, heard"

    coordinator = AgentCoordinator(repo, agent=Agent(ScriptedModel(answer)), listen=heard.hear)
    async with asyncio.timeout(60), coordinator, asyncio.TaskGroup() as group:
        work = group.create_task(coordinator.run_agents(["first"]))
        await heard.until(SessionStarted, 1)
        (session,) = coordinator.active_sessions
        for text in ("second", "third"):
            coordinator.send(session, text)
        release.set()
        (result,) = await work

    assert result.output == "first, heard\nsecond, heard\nthird, heard\n"
    delivered = [event for event in heard.events if isinstance(event, AgentMessaged)]
    assert [(event.text, event.is_delivered) for event in delivered] == [("second", True), ("third", True)]


async def test_an_agent_of_the_program_cannot_be_frozen(repo: Path) -> None:
    heard, release = Listener(), asyncio.Event()

    async def answer(text: str, step: int) -> str:
        await release.wait()
        return "done"

    coordinator = AgentCoordinator(repo, agent=Agent(ScriptedModel(answer)), listen=heard.hear)
    async with asyncio.timeout(60), coordinator, asyncio.TaskGroup() as group:
        work = group.create_task(coordinator.run_agents(["wait"]))
        await heard.until(SessionStarted, 1)
        with pytest.raises(BadInput, match="cannot be frozen"):
            coordinator.pause(freeze=True)
        release.set()
        await work

    assert heard.count(RequestTaken) == 0
