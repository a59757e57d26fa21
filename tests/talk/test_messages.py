"""Agents of a run talk to each other from their sandboxes: messages arrive once, in order, as quoted data."""

from pathlib import Path

from shoal import AgentCoordinator, Task
from tests.conftest import git
from tests.runs.coordinating import statuses

TALK = {"message": True}


def shell(name: str, script: str, **more: object) -> Task:
    return Task.command(script, name=name, **{"talk": TALK, "timeout": 60, **more})


AWAIT = "until shoal-talk agents | grep -q '^{}: running'; do sleep 0.05; done\n"


async def test_an_agent_asks_another_and_gets_its_answer(repo: Path) -> None:
    asks = shell("asks", AWAIT.format("knows") + "shoal-talk ask knows 'which port?' 30 > answer.txt")
    knows = shell(
        "knows",
        "shoal-talk inbox wait=30 > question.txt\n"
        "shoal-talk reply message=$(sed -n 's/^Message \\([^ ]*\\) .*/\\1/p' question.txt) text='port 8080' > said.txt",
    )
    async with AgentCoordinator(repo, 2) as coordinator:
        results = await coordinator.run_agents([asks, knows])

    assert statuses(results) == ["succeeded", "succeeded"], [result.output for result in results]
    answer = git(repo, "show", f"{results[0].branch}:answer.txt")
    question = git(repo, "show", f"{results[1].branch}:question.txt")
    assert "from the agent knows" in answer
    assert "> port 8080" in answer
    assert "Message asks:1 from the agent asks" in question
    assert "> which port?" in question
